// How limits stand, kept fresh by the live channel: bars, figures and times of every element with data-limit.
import { denied } from "./denied.js";
import { formats, age, number } from "./format.js";
import { live, showState } from "./live.js";
import { words } from "./words.js";

const card = document.querySelector("[data-limits]");
const MICROS = 1e6;
const TONES = ["bad", "used", "idle"];

function inUnits(value, metric) {
  if (value === null) return words.unknown;
  if (metric === "gpu_memory") return formats.bytes(value);
  if (metric !== "money") return formats.count(value);
  return `${number(value / MICROS, 2)} ${words.currency}`;
}

function write(root, name, value, metric) {
  const node = root.querySelector(`[data-${name}]`);
  if (node) node.textContent = inUnits(value, metric);
}

function show(frame) {
  for (const one of frame.limits) {
    for (const root of document.querySelectorAll(`[data-limit="${CSS.escape(one.id)}"]`)) {
      const { metric } = root.dataset;
      write(root, "amount", one.amount, metric);
      write(root, "used", one.used, metric);
      write(root, "taken", one.used === null ? null : one.used + (one.reserved ?? 0), metric);
      const reserved = root.querySelector("[data-reserved]");
      if (reserved) {
        if (one.reserved === null) reserved.textContent = "–";
        else write(root, "reserved", one.reserved, metric);
      }
      const bar = root.querySelector("[data-bar]");
      if (bar) {
        if (one.share === null) bar.removeAttribute("value"); // unknown is not nothing
        else bar.value = one.share;
        bar.classList.remove(...TONES);
        if (one.tone) bar.classList.add(one.tone);
      }
      const share = root.querySelector("[data-share]");
      if (share) share.textContent = formats.percent(one.share);
      const reset = root.querySelector("[data-reset]");
      if (reset && !("standing" in reset.dataset)) reset.textContent = one.reset === null ? "–" : age(one.reset);
    }
  }
}

if (card) {
  const pill = card.querySelector("[data-limits-state]");
  live("limits", `tenant:${card.dataset.limits}`, {
    onFrame: show,
    onState(state, at, why) {
      showState(pill, state, at, why);
      denied(state, why);
    },
  });
}
