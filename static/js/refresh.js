// Pages whose parts change by themselves: asked for anew while they can be seen, and put in place where they differ.
import { giveWay } from "./denied.js";
import { put } from "./renew.js";
import { markStale } from "./stale.js";

const SECONDS = 2;
const page = document.querySelector("[data-refresh]");
const HTMX_MARK = / data-htmx-powered="true"/g; // htmx begins in a task of its own: before this script, or after it
const shown = new Map(); // region -> what the server said last
let over = false; // the server has said that nothing more will come

class Over extends Error {}

function tell(stale) {
  page.classList.toggle("stale", stale);
  markStale(page, stale);
}

async function fetched(address) {
  const answer = await fetch(address, { headers: { "X-Requested-With": "refresh" }, redirect: "manual" });
  // The page of logging in is where the redirect leads.
  if (answer.type === "opaqueredirect" || answer.status === 403) throw new Over("denied");
  if (answer.status === 404) throw new Over("gone");
  if (!answer.ok) throw new Error(String(answer.status));
  return answer.text();
}

async function refreshRegions() {
  const fresh = new DOMParser().parseFromString(await fetched(page.dataset.refresh), "text/html");
  for (const part of fresh.querySelectorAll("[data-region]")) {
    const name = part.dataset.region;
    const place = page.querySelector(`[data-region="${name}"]`);
    if (!place || shown.get(name) === part.innerHTML) continue;
    put(place, part.innerHTML);
    shown.set(name, part.innerHTML);
  }
  const asOf = page.querySelector("[data-as-of]");
  const at = fresh.querySelector("[data-as-of]");
  if (asOf && at) asOf.textContent = at.textContent;
}

async function refreshLog(place) {
  const html = await fetched(place.dataset.log);
  if (shown.get("log") === html) return;
  const before = place.querySelector(".log");
  const followed = !before || before.scrollTop + before.clientHeight >= before.scrollHeight - 4;
  const top = before?.scrollTop ?? 0;
  const focused = before !== null && document.activeElement === before;
  put(place, html);
  shown.set("log", html);
  const after = place.querySelector(".log");
  if (!after) return;
  after.scrollTop = followed ? after.scrollHeight : top;
  if (focused) after.focus({ preventScroll: true });
}

function fail(error) {
  if (over) return;
  over = error instanceof Over;
  tell(!over);
  if (over) giveWay(error.message);
}

async function round() {
  if (over) return;
  if (!document.hidden) {
    try {
      await refreshRegions();
      for (const place of page.querySelectorAll("[data-log]:not([hidden])")) await refreshLog(place);
      if (!over) tell(false);
    } catch (error) {
      fail(error);
    }
  }
  setTimeout(round, SECONDS * 1000);
}

document.addEventListener("click", (event) => {
  const opener = event.target.closest("[data-open-log]");
  if (!opener) return;
  event.preventDefault();
  const place = document.getElementById(opener.dataset.openLog);
  place.hidden = !place.hidden;
  opener.setAttribute("aria-expanded", String(!place.hidden));
  if (!place.hidden) refreshLog(place).catch(fail);
});

if (page) {
  for (const opener of page.querySelectorAll("[data-open-log]")) {
    opener.setAttribute("aria-expanded", "false");
    opener.setAttribute("aria-controls", opener.dataset.openLog);
  }
  // A press must not fall on a link that is put in place of itself.
  for (const place of page.querySelectorAll("[data-region]")) {
    shown.set(place.dataset.region, place.innerHTML.replaceAll(HTMX_MARK, ""));
  }
  setTimeout(round, SECONDS * 1000);
}
