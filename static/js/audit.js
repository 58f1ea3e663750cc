// The audit log as it happens: rows come over the `audit` channel while somebody follows.
import { denied } from "./denied.js";
import { live, showState } from "./live.js";
import { Tail, gapRow } from "./tail.js";
import { words } from "./words.js";

const MOST_ROWS = 100;
const tail = document.getElementById("audit-tail");
const button = tail.querySelector("[data-tail]");
const pill = tail.querySelector("[data-live]");
const frame = tail.querySelector("[data-rows]");
const body = frame.querySelector("tbody");
const clock = new Intl.DateTimeFormat(document.documentElement.lang, { timeStyle: "medium", hourCycle: "h23", timeZone: words.zone });
let off = null;
let told = new Tail();

function cell(text, sub, href) {
  const td = document.createElement("td");
  const main = document.createElement(href ? "a" : "span");
  if (href) main.href = href;
  main.textContent = text || "–";
  td.append(main);
  if (sub) {
    const small = document.createElement("span");
    small.className = "sub";
    small.textContent = sub;
    td.append(small);
  }
  return td;
}

function add(row) {
  const tr = document.createElement("tr");
  tr.dataset.row = row.id;
  const action = cell(row.action);
  action.firstElementChild.className = "mono";
  tr.append(
    cell(clock.format(row.at * 1000), "", `${tail.dataset.event}${row.id}/`),
    cell(row.actor, words.words.audit_actor[row.actor_kind] ?? row.actor_kind),
    action,
    cell(row.subject, row.subject_type),
    cell(row.tenant),
  );
  body.prepend(tr);
}

function onFrame(message) {
  const { fresh, gap } = told.take(message);
  if (gap && body.children.length) body.prepend(gapRow(frame.querySelectorAll("thead th").length));
  for (const row of fresh) add(row);
  while (body.children.length > MOST_ROWS) body.lastElementChild.remove();
}

function onState(state, at, why) {
  showState(pill, state, at, why);
  denied(state, why);
}

button.addEventListener("click", () => {
  const on = off === null;
  button.querySelector("[data-when-on]").hidden = !on;
  button.querySelector("[data-when-off]").hidden = on;
  pill.hidden = !on;
  frame.hidden = !on;
  if (on) off = live("audit", tail.dataset.scope, { onFrame, onState });
  else {
    off();
    off = null;
    told = new Tail();
    body.replaceChildren();
  }
});
