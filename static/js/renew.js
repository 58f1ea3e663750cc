// Parts of a page that are put in place anew: whoever is in there with the keyboard, or has scrolled, stays where they were.
const SCROLLED = ".timeline, .scroll-x, .slo-rows";

// What says of a thing that a fresh one is the same: where it leads, what it is called by, or what it belongs to.
function sameness(node) {
  const belongs = [node.closest("form")?.getAttribute("action"), node.closest("details")?.id];
  return [node.tagName, node.getAttribute("href"), node.getAttribute("aria-labelledby"), ...belongs].join(" ");
}

const alike = (place, key) => [...place.querySelectorAll("a, button, summary, [tabindex]")].filter((one) => sameness(one) === key);

export function put(place, html) {
  const focused = place.contains(document.activeElement) ? document.activeElement : null;
  const key = focused && sameness(focused);
  const at = focused ? alike(place, key).indexOf(focused) : -1; // rows of one thing have links that are equal
  const open = [...place.querySelectorAll("details[open][id]")].map((one) => one.id);
  const scrolled = [...place.querySelectorAll(SCROLLED)].map((one) => [one.scrollTop, one.scrollLeft]);
  place.innerHTML = html;
  for (const id of open) document.getElementById(id)?.setAttribute("open", ""); // what is shut does not scroll
  for (const [nth, one] of [...place.querySelectorAll(SCROLLED)].entries()) [one.scrollTop, one.scrollLeft] = scrolled[nth] ?? [0, 0];
  if (focused) {
    const fresh = alike(place, key);
    (fresh[at] ?? fresh[0])?.focus({ preventScroll: true });
  }
  window.htmx?.process(place);
}
