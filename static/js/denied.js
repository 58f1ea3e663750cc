// What one may no longer see must not stay on the screen: what stands under a page's head gives way to a word about it.
import { words } from "./words.js";

// Nothing is lost by these: what the page shows may still be seen, it only grows old.
const STILL_SEEN = ["suspended", "unknown", "too_many", "bad_message"];

// `what`: the id of the template that takes its place, denied or gone.
export function giveWay(what) {
  const head = document.querySelector("#main .head");
  while (head.nextElementSibling) head.nextElementSibling.remove();
  for (const part of [...head.children]) if (!part.matches("h1, #live, [data-live-why]")) part.remove();
  head.after(document.getElementById(what).content.cloneNode(true));
  const sheet = document.getElementById("sheet");
  sheet.close();
  sheet.replaceChildren();
}

// Whether a channel that is denied for `why` takes what is shown with it.
export const isLost = (state, why = "") =>
  state === "denied" && !STILL_SEEN.some((code) => words.live_why[code] === why);

// For onState of live channels; true once the page has given way.
export function denied(state, why = "") {
  const gone = isLost(state, why);
  if (gone) giveWay("denied");
  return gone;
}
