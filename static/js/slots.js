// Puts figures into what the server rendered: [data-f="name:format"], [data-show="name"] (or "name=value", shown while
// it is that), [data-meter="part/whole"].
// A text of format `why` comes in each language that says it otherwise, under its name and `_in`.
import { age, formats } from "./format.js";
import { words } from "./words.js";

let clockSkewSeconds = 0;

// `at` is the server's clock, in seconds since the epoch: ages are counted by it.
export function setClock(at) {
  clockSkewSeconds = at - Date.now() / 1000;
}

function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

function setPill(slot, kind, value) {
  let mark = slot.firstElementChild;
  if (!mark) {
    mark = document.createElement("span");
    slot.append(mark);
  }
  if (mark.dataset.value === value) return;
  mark.className = `pill ${words.tones[value] ?? "idle"}`;
  mark.dataset.value = value;
  mark.textContent = words.words[kind][value] ?? value;
}

export function fillSlots(scope, values) {
  for (const slot of scope.querySelectorAll("[data-f]")) {
    const [name, format = "text", kind] = slot.dataset.f.split(":");
    const value = values[name];
    if (value === undefined) continue; // not told: it stays as it is
    if (format === "pill") setPill(slot, kind, value);
    else if (format === "why") setText(slot, values[`${name}_in`]?.[document.documentElement.lang] ?? value);
    else if (format === "age") {
      slot.dataset.since = value;
      setText(slot, age(Date.now() / 1000 + clockSkewSeconds - value));
    } else setText(slot, formats[format](value));
  }
  for (const mark of scope.querySelectorAll("[data-show]")) {
    const [name, wanted] = mark.dataset.show.split("=");
    const value = values[name];
    if (value !== undefined) mark.hidden = wanted === undefined ? !value : value !== wanted;
  }
  for (const meter of scope.querySelectorAll("[data-meter]")) {
    const [part, whole] = meter.dataset.meter.split("/");
    if (values[part] === undefined) continue;
    meter.max = values[whole] || 1;
    meter.value = values[part] ?? 0;
  }
}
