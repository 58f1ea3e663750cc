// Puts live frames into the rows that the server rendered.
import { denied } from "./denied.js";
import { live, showState } from "./live.js";
import { fillSlots, setClock } from "./slots.js";

const page = document.getElementById("overview");
const pill = document.getElementById("live");

function fillRows(panel, rows) {
  const body = panel.querySelector("tbody");
  const template = panel.querySelector("[data-row-template]");
  const known = new Map([...body.children].map((row) => [row.dataset.row, row]));
  rows.forEach((values, place) => {
    let row = known.get(values.id);
    known.delete(values.id);
    if (!row) {
      row = template.content.firstElementChild.cloneNode(true);
      row.dataset.row = values.id;
      for (const link of row.querySelectorAll("[data-link]")) link.href = link.dataset.link.replace("{id}", values.id);
    }
    fillSlots(row, values);
    if (body.children[place] !== row) body.insertBefore(row, body.children[place] ?? null);
  });
  for (const gone of known.values()) gone.remove();
  panel.querySelector("[data-filled]").hidden = rows.length === 0;
  panel.querySelector("[data-empty]").hidden = rows.length > 0;
}

function showFrame(frame) {
  setClock(frame.at);
  const figures = page.querySelector('[data-panel="figures"]');
  fillSlots(figures, frame.figures);
  for (const figure of figures.querySelectorAll("[data-bad-if]")) {
    figure.classList.toggle("bad", frame.figures[figure.dataset.badIf] >= 0.5);
  }
  fillRows(page.querySelector('[data-panel="devices"]'), frame.devices);
  page.querySelector("[data-cut]").hidden = frame.figures.devices <= frame.devices.length;
  fillRows(page.querySelector('[data-panel="instances"]'), frame.instances);
}

function showLive(state, at, why) {
  showState(pill, state, at, why);
  page.classList.toggle("stale", !denied(state, why) && !["live", "connecting"].includes(state));
}

// Nobody looks: it is asked for anew with the first round that somebody does. Whoever is in it with the keyboard keeps
// their place: htmx gives the focus to what has the same id in the fresh list.
document.addEventListener("htmx:before:request", (event) => {
  if (event.target.id === "attention" && document.hidden) event.preventDefault();
});

live("fleet", "", { onFrame: showFrame, onState: showLive });
