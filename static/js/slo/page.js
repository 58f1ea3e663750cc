// Draws the charts, and asks for the page's parts anew when the live channel says that figures have changed.
import { denied } from "../denied.js";
import { live, showState } from "../live.js";
import { drawBudget, drawBurn, drawHeat } from "./charts.js";

const MOST_WAIT_MS = 1500;
const SCROLLED = ".slo-rows, .scroll-x";
const page = document.getElementById("slo");
const pill = document.getElementById("live");
let seen = null; // what the last frame said
let known = []; // the objectives in it
let asking = false;

function draw() {
  const node = document.getElementById("slo-figures");
  if (!node || !window.Plotly) return;
  const figures = JSON.parse(node.textContent);
  const tone = ["good", "warn", "bad"].find((one) => page.querySelector(".slo-budget")?.classList.contains(one));
  drawBudget(figures.budget, `--gh-${tone ?? "idle"}`);
  drawBurn(figures.burn);
  drawHeat(figures.heat);
}

// What says of a thing with the focus that a fresh one is the same: where it leads, or what it belongs to.
function sameness(node) {
  const belongs = [node.closest("form")?.getAttribute("action"), node.closest("details")?.id];
  return [node.tagName, node.getAttribute("href"), node.getAttribute("aria-labelledby"), ...belongs].join(" ");
}

function put(place, html) {
  const focused = place.contains(document.activeElement) ? document.activeElement : null;
  if (focused?.matches("input, select, textarea")) return; // who writes keeps it: the next round is soon
  const key = focused && sameness(focused);
  const open = [...place.querySelectorAll("details[open]")].map((one) => one.id);
  const scrolled = [...place.querySelectorAll(SCROLLED)].map((one) => one.scrollTop);
  for (const chart of place.querySelectorAll(".gh-chart")) window.Plotly?.purge(chart);
  place.innerHTML = html;
  for (const id of open) document.getElementById(id)?.setAttribute("open", "");
  for (const [at, one] of [...place.querySelectorAll(SCROLLED)].entries()) one.scrollTop = scrolled[at] ?? 0;
  if (key) [...place.querySelectorAll("a, button, summary, [tabindex]")].find((one) => sameness(one) === key)?.focus({ preventScroll: true });
  window.htmx?.process(place);
}

async function refresh() {
  if (asking || document.getElementById("sheet")?.open) return;
  asking = true;
  try {
    const answer = await fetch(location.href, { headers: { "X-Requested-With": "refresh" }, redirect: "error" });
    if (!answer.ok) return;
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
    for (const part of fresh.querySelectorAll("[data-region]")) {
      const place = page.querySelector(`[data-region="${part.dataset.region}"]`);
      if (place) put(place, part.innerHTML);
    }
    draw();
  } catch {
    // The pill says how the channel is; the next frame tries again.
  } finally {
    asking = false;
  }
}

function onFrame(frame) {
  const told = frame.objectives.map((one) => one.id);
  if (known.some((id) => !told.includes(id) && location.pathname.includes(id))) {
    location.replace(page.dataset.home); // somebody deleted the one that is shown
    return;
  }
  known = told;
  const said = JSON.stringify([frame.as_of, frame.objectives]);
  if (seen !== null && seen !== said) {
    // Spread out, so that everybody's page does not ask in the same moment.
    setTimeout(refresh, Math.random() * MOST_WAIT_MS);
  }
  seen = said;
}

if (page && pill) {
  draw();
  document.addEventListener("gatehouse:theme", draw);
  const onState = (state, at, why) => {
    showState(pill, state, at, why);
    denied(state, why);
  };
  live("slo", page.dataset.scope, { onFrame, onState });
}
