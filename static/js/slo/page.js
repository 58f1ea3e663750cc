// Draws the charts, and asks for the page's parts anew when the live channel says that figures have changed.
import { denied } from "../denied.js";
import { live, showState } from "../live.js";
import { put } from "../renew.js";
import { drawBudget, drawBurn, drawHeat } from "./charts.js";

const MOST_WAIT_MS = 1500;
const page = document.getElementById("slo");
const pill = document.getElementById("live");
let seen = null; // what the last frame said
let asking = false;
let missed = false; // figures changed while they could not be asked for

function draw() {
  const node = document.getElementById("slo-figures");
  if (!node || !window.Plotly) return;
  const figures = JSON.parse(node.textContent);
  const tone = ["good", "warn", "bad"].find((one) => page.querySelector(".slo-budget")?.classList.contains(one));
  drawBudget(figures.budget, `--gh-${tone ?? "idle"}`);
  drawBurn(figures.burn);
  drawHeat(figures.heat);
}

function renew(place, html) {
  const focused = place.contains(document.activeElement) ? document.activeElement : null;
  if (focused?.matches("input, select, textarea")) return; // who writes keeps it: the next round is soon
  for (const chart of place.querySelectorAll(".gh-chart")) window.Plotly?.purge(chart);
  put(place, html);
}

// Spread out, so that everybody's page does not ask in the same moment.
function refreshSoon() {
  setTimeout(refresh, Math.random() * MOST_WAIT_MS);
}

async function refresh() {
  missed = asking || Boolean(document.getElementById("sheet")?.open);
  if (missed) return;
  asking = true;
  try {
    const answer = await fetch(location.href, { headers: { "X-Requested-With": "refresh" }, redirect: "error" });
    if (answer.status === 404) location.replace(page.dataset.home); // somebody deleted the one that is shown
    if (!answer.ok) return;
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
    for (const part of fresh.querySelectorAll("[data-region]")) {
      const place = page.querySelector(`[data-region="${part.dataset.region}"]`);
      if (place) renew(place, part.innerHTML);
    }
    draw();
  } catch {
    // The pill says how the channel is; the next frame tries again.
  } finally {
    asking = false;
    if (missed) refreshSoon(); // what has come may be of before
  }
}

function onFrame(frame) {
  const said = JSON.stringify([frame.as_of, frame.objectives]);
  if (seen !== null && seen !== said) refreshSoon();
  seen = said;
}

if (page && pill) {
  draw();
  document.addEventListener("gatehouse:theme", draw);
  document.getElementById("sheet")?.addEventListener("close", () => missed && refreshSoon());
  const onState = (state, at, why) => {
    showState(pill, state, at, why);
    denied(state, why);
  };
  live("slo", page.dataset.scope, { onFrame, onState });
}
