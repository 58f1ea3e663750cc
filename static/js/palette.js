// The command palette: Ctrl/Cmd-K or "/" opens it, arrows move, Enter goes. Asks the server as one types.
import { fill, words } from "./words.js";

const WAIT_MS = 120;
const ORDER = ["page", "tenant", "model", "node", "instance", "key"];

const dialog = document.getElementById("palette");
const input = dialog?.querySelector("input");
const list = dialog?.querySelector("ul");
const status = dialog?.querySelector('[role="status"]');
const keys = dialog?.querySelector("[data-keys]");
let timer = 0;
let asked = 0;
let chosen = -1;
let stale = false; // what is listed is not the answer to what stands in the field
let hasty = false; // Enter came before the answer: it goes once that is there

function options() {
  return [...list.querySelectorAll('[role="option"]')];
}

function choose(index) {
  const all = options();
  if (!all.length) return;
  chosen = (index + all.length) % all.length;
  all.forEach((one, at) => one.setAttribute("aria-selected", String(at === chosen)));
  input.setAttribute("aria-activedescendant", all[chosen].id);
  all[chosen].scrollIntoView({ block: "nearest" });
}

function icon(name) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("class", "icon");
  svg.setAttribute("aria-hidden", "true");
  const use = document.createElementNS("http://www.w3.org/2000/svg", "use");
  use.setAttribute("href", `${dialog.dataset.sprite}#${name}`);
  svg.append(use);
  return svg;
}

function tell(text, count) {
  status.textContent = text;
  keys.hidden = count === 0;
  input.setAttribute("aria-expanded", String(count > 0));
}

function show(found) {
  list.replaceChildren();
  chosen = -1;
  input.removeAttribute("aria-activedescendant");
  found.sort((one, other) => ORDER.indexOf(one.kind) - ORDER.indexOf(other.kind));
  let kind = "";
  let group = null;
  found.forEach((one, at) => {
    if (one.kind !== kind) {
      kind = one.kind;
      group = document.createElement("li");
      group.setAttribute("role", "group");
      group.setAttribute("aria-label", words.kinds[kind] ?? kind);
      const title = document.createElement("span");
      title.className = "kind";
      title.setAttribute("aria-hidden", "true");
      title.textContent = words.kinds[kind] ?? kind;
      group.append(title);
      list.append(group);
    }
    const line = document.createElement("div");
    line.id = `palette-${at}`;
    line.setAttribute("role", "option");
    line.setAttribute("aria-selected", "false");
    line.dataset.href = one.href;
    const label = document.createElement("span");
    label.textContent = one.label;
    const where = document.createElement("span");
    where.className = "where";
    where.textContent = one.where;
    line.append(icon(one.icon), label, where);
    group.append(line);
  });
  tell(found.length ? fill(words.found, { n: found.length }) : words.nothing_found, found.length);
  if (found.length) choose(0);
  stale = false;
  if (hasty) follow(options()[chosen]);
  hasty = false;
}

async function ask() {
  const turn = ++asked;
  clearTimeout(timer);
  try {
    const answer = await fetch(`${dialog.dataset.address}?q=${encodeURIComponent(input.value.trim())}`);
    if (!answer.ok || answer.redirected) throw new Error(String(answer.status));
    const found = await answer.json();
    if (turn === asked) show(found);
  } catch {
    if (turn === asked) {
      hasty = false;
      list.replaceChildren();
      input.removeAttribute("aria-activedescendant");
      tell(words.failed, 0);
    }
  }
}

function open() {
  if (dialog.open || document.querySelector("dialog[open]")) return;
  dialog.showModal();
  input.value = "";
  list.replaceChildren(); // of what was sought before
  input.removeAttribute("aria-activedescendant");
  tell("", 0);
  stale = true;
  ask();
}

function enter() {
  if (!stale) follow(options()[chosen]);
  else if (!hasty) {
    hasty = true;
    ask();
  }
}

function follow(line) {
  if (line) location.assign(line.dataset.href);
}

if (dialog) {
  document.addEventListener("keydown", (event) => {
    const typing = event.target.closest?.("input, textarea, select, [contenteditable]");
    if ((event.key === "k" || event.key === "K") && (event.ctrlKey || event.metaKey)) {
      event.preventDefault();
      if (dialog.open) dialog.close();
      else open();
    } else if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey && !event.altKey) {
      event.preventDefault();
      open();
    }
  });
  document.querySelector("[data-palette]")?.addEventListener("click", open);
  const key = document.querySelector("[data-palette] kbd");
  if (key && !/Mac|iPhone|iPad/.test(navigator.platform)) key.textContent = "Ctrl K"; // no ⌘ on other keyboards
  input.addEventListener("input", () => {
    stale = true;
    hasty = false;
    asked += 1; // an answer on its way is to another question
    clearTimeout(timer);
    timer = setTimeout(ask, WAIT_MS);
  });
  dialog.addEventListener("close", () => {
    clearTimeout(timer);
    asked += 1; // an answer on its way is to nobody's question
    hasty = false;
  });
  input.addEventListener("keydown", (event) => {
    if (event.isComposing) return; // Enter and arrows choose among an input method's characters then
    if (event.key === "ArrowDown") choose(chosen + 1);
    else if (event.key === "ArrowUp") choose(chosen - 1);
    else if (event.key === "Enter") enter();
    else return;
    event.preventDefault();
  });
  list.addEventListener("click", (event) => follow(event.target.closest('[role="option"]')));
  dialog.addEventListener("click", (event) => {
    if (event.target === dialog) dialog.close();
  });
}
