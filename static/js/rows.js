// Keeps the rows of a page up to date: the pill names [data-live="channel/scope"], each row its [data-row]. Rows do not
// come or move by themselves, for the page is one of a sorted and filtered list; those that are gone are struck out.
import { denied } from "./denied.js";
import { live, showState } from "./live.js";
import { fillSlots, setClock } from "./slots.js";

const page = document.querySelector("main");
const pill = document.getElementById("live");
const [channel, scope] = pill.dataset.live.split("/");

const told = new Set(); // rows that frames were ever about: lists have others, of what has long ended

function rowsOf(id) {
  return page.querySelectorAll(`[data-row="${CSS.escape(id)}"]`);
}

function fill(rows) {
  for (const [id, values] of Object.entries(rows)) {
    for (const row of rowsOf(id)) {
      fillSlots(row, values);
      delete row.dataset.gone;
      told.add(id);
    }
  }
}

// A frame of all rows: those that were told of before went while this page was not looking.
function markGone(rows) {
  for (const id of told) if (!(id in rows)) for (const row of rowsOf(id)) row.dataset.gone = "";
}

live(channel, scope, {
  onFrame(frame) {
    setClock(frame.at);
    fill(frame.rows ?? frame.set);
    if (frame.rows) markGone(frame.rows);
    for (const id of frame.gone ?? []) for (const row of rowsOf(id)) row.dataset.gone = "";
  },
  onState(state, at, why) {
    showState(pill, state, at, why);
    page.classList.toggle("stale", !denied(state, why) && !["live", "connecting"].includes(state));
  },
});
