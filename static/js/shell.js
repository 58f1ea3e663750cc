// Menus, theme, navigation on small screens, copy buttons, tabs and the dialog that htmx fills.
import { WRONG } from "./fields.js";
import { markStale } from "./stale.js";
import { words } from "./words.js";

const root = document.documentElement;
const system = matchMedia("(prefers-color-scheme: dark)");
const TOAST_MS = 8000;
const OUTCOME_MS = 300;
let hideToast = 0;

function applyTheme(choice) {
  const dark = choice === "dark" || (choice !== "light" && system.matches);
  root.dataset.themeChoice = choice;
  root.dataset.bsTheme = dark ? "dark" : "light";
  for (const button of document.querySelectorAll("[data-set-theme]")) {
    button.setAttribute("aria-pressed", String(button.dataset.setTheme === choice));
  }
  document.dispatchEvent(new CustomEvent("gatehouse:theme"));
}

function rememberTheme(choice) {
  try {
    localStorage.setItem("gatehouse.theme", choice);
  } catch {
    // Storage is off: the choice lasts as long as the page.
  }
  applyTheme(choice);
}

async function copy(button) {
  const source = document.querySelector(button.dataset.copy);
  const text = "value" in source ? source.value : source.textContent;
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // No clipboard without HTTPS on other hosts: select it, so that Ctrl-C takes it.
    if (source.select) source.select();
    else getSelection().selectAllChildren(source);
    if (!document.execCommand("copy")) return;
  }
  const before = button.title;
  button.classList.add("copied");
  button.title = words.copied;
  announce(words.copied);
  setTimeout(() => {
    button.classList.remove("copied");
    button.title = before;
  }, 1600);
}

const region = document.getElementById("announcements") ?? document.createElement("div");
region.id = "announcements";
region.setAttribute("role", "status");
stand();

// It stands where something may be said before it is: what is put into one that was there before is told for sure.
// Nothing behind an open dialog is told or can be seen, and what is in one that is shut neither.
function stand() {
  const place = [...document.querySelectorAll("dialog[open]")].at(-1) ?? document.body;
  if (region.parentElement === place) return;
  if (!region.matches(".gh-toast")) hush(); // it was told already
  place.append(region);
}

document.addEventListener("close", stand, true); // of any dialog, and before what it holds goes

// Says it to assistive technology; `shown`: to everybody, for a while.
function announce(text, { shown = false } = {}) {
  stand();
  region.className = shown ? "gh-toast" : "sr";
  region.textContent = text;
  clearTimeout(hideToast);
  if (shown) hideToast = setTimeout(hush, TOAST_MS);
}

function hush() {
  region.className = "sr";
  region.textContent = "";
}

function selectTab(tab) {
  for (const other of tab.closest('[role="tablist"]').querySelectorAll('[role="tab"]')) {
    const chosen = other === tab;
    other.setAttribute("aria-selected", String(chosen));
    other.tabIndex = chosen ? 0 : -1;
    document.getElementById(other.getAttribute("aria-controls")).hidden = !chosen;
  }
  tab.focus();
}

function openNavigation(open) {
  const side = document.getElementById("side");
  const toggle = document.querySelector("[data-nav-toggle]");
  const back = !open && side?.contains(document.activeElement); // it is about to be hidden
  document.body.classList.toggle("nav-open", open);
  toggle?.setAttribute("aria-expanded", String(open));
  const scrim = document.querySelector(".scrim");
  if (scrim) scrim.hidden = !open;
  if (open) side?.querySelector("a").focus(); // it stands before the button that opens it
  else if (back) toggle?.focus();
}

function shutMenus({ target }) {
  if (target.closest?.("dialog")) return; // what it was opened from has the focus again afterwards
  for (const menu of document.querySelectorAll("details.menu[open]")) if (!menu.contains(target)) menu.open = false;
}

document.addEventListener("focusin", (event) => {
  stand(); // a dialog that opens takes the focus
  shutMenus(event); // they would lie over what has it now
});
document.addEventListener("click", (event) => {
  shutMenus(event);
  const target = event.target.closest(
    "[data-set-theme], [data-copy], [data-sheet-close], [data-nav-toggle], [data-nav-close], [role=tab]",
  );
  if (!target) return;
  if (target.dataset.setTheme) {
    rememberTheme(target.dataset.setTheme);
    const menu = target.closest("details");
    menu.open = false;
    menu.querySelector("summary").focus();
  } else if (target.dataset.copy) {
    copy(target);
  } else if (target.hasAttribute("data-sheet-close")) {
    const sheet = target.closest("dialog");
    if (sheet) {
      event.preventDefault();
      sheet.close();
    }
  } else if (target.hasAttribute("data-nav-toggle")) {
    openNavigation(!document.body.classList.contains("nav-open"));
  } else if (target.hasAttribute("data-nav-close")) {
    openNavigation(false);
  } else {
    selectTab(target);
  }
});

// The reader's own zone, which the server does not know, beside those that it offers.
function offerOwnZone(zones) {
  const own = Intl.DateTimeFormat().resolvedOptions().timeZone;
  if (!own || [...zones.children].some((link) => link.textContent === own)) return;
  const asked = new URLSearchParams(location.search);
  asked.set("zone", own);
  for (const name of ["from", "to"]) if (zones.dataset[name]) asked.set(name, zones.dataset[name]); // the same moments
  for (const name of ["after", "before"]) asked.delete(name);
  const link = document.createElement("a");
  link.href = `?${asked}`;
  link.textContent = own;
  zones.append(link);
}

document.querySelectorAll("[data-zones]").forEach(offerOwnZone);

document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && !document.querySelector("dialog[open]")) {
    if (document.body.classList.contains("nav-open")) openNavigation(false);
    for (const menu of document.querySelectorAll("details.menu[open]")) {
      menu.open = false;
      menu.querySelector("summary").focus();
    }
  }
  if (event.target.matches?.('[role="tab"]') && (event.key === "ArrowRight" || event.key === "ArrowLeft")) {
    const tabs = [...event.target.parentElement.querySelectorAll('[role="tab"]')];
    const step = event.key === "ArrowRight" ? 1 : tabs.length - 1;
    selectTab(tabs[(tabs.indexOf(event.target) + step) % tabs.length]);
  }
});

let filled = null; // what the dialog begins with: parts of the page behind it are swapped, too
let opener = null;

document.addEventListener("htmx:after:swap", () => {
  const sheet = document.getElementById("sheet");
  if (!sheet?.childElementCount || sheet.firstElementChild === filled) return;
  filled = sheet.firstElementChild;
  const first = sheet.querySelector(WRONG) ?? sheet.querySelector("[autofocus]");
  const said = sheet.querySelectorAll(":scope > p, :scope > .notice:not([role]) > p"); // one with a role tells itself
  const texts = [...said].map((text, at) => (text.id ||= `sheet-text-${at}`));
  if (!sheet.open) {
    opener = document.activeElement;
    sheet.setAttribute("aria-describedby", texts.join(" ")); // what will happen is told with the title
    sheet.showModal();
  } else if (texts.length && first && !first.matches(WRONG)) {
    // Of a dialog that was open before nothing is told but what has the focus: that a secret is shown this once, say.
    const own = first.getAttribute("aria-describedby") ?? "";
    first.setAttribute("aria-describedby", [own, "sheet-title", ...texts].join(" ").trim());
  }
  stand(); // what was in a dialog that was open before is gone
  first?.focus();
});

// A press that failed is told each time. What a page asks for by itself is told once, until an answer comes; while the
// server is away by a mark in its head, where no live channel's pill says so anyway.
const failing = new Map(); // address -> whether the server is away

const asksByItself = (ctx) => ctx?.sourceEvent?.type === "every";
const addressOf = (ctx) => ctx.request.action.split("?")[0];

function markAway() {
  const said = ["reconnecting", "stale", "denied"].includes(document.getElementById("live")?.dataset.value);
  markStale(document, !said && [...failing.values()].includes(true));
}

function tellFailure(ctx, text, { away }) {
  let fresh = true;
  if (asksByItself(ctx)) {
    fresh = !away && failing.get(addressOf(ctx)) !== false;
    failing.set(addressOf(ctx), away);
    markAway();
  }
  if (fresh) announce(text, { shown: true });
}

document.addEventListener("htmx:error", (event) => tellFailure(event.detail.ctx, words.failed, { away: true }));
document.addEventListener("htmx:response:error", (event) => {
  const { ctx } = event.detail;
  const { status, headers } = ctx.response;
  if (status === 422) return; // a form that came back says what is wrong itself
  const id = headers?.get?.("X-Request-Id");
  const text = status < 500 ? words.refused : words.failed;
  tellFailure(ctx, id && status >= 500 ? `${text} (${id})` : text, { away: status >= 500 });
});
document.addEventListener("htmx:after:request", (event) => {
  const { ctx } = event.detail;
  if (!asksByItself(ctx) || ctx.response.status >= 400) return;
  failing.delete(addressOf(ctx));
  markAway();
});

const sheet = document.getElementById("sheet");
sheet?.addEventListener("close", () => {
  // A secret must not stay in the page behind a closed dialog; the list needs to show what is new.
  const created = sheet.querySelector("#new-secret, [data-changed]");
  sheet.replaceChildren();
  if (created) location.reload();
  else if (opener && !opener.isConnected) {
    // What opened it was put in place anew behind it.
    const href = opener.getAttribute("href");
    [...document.querySelectorAll("main a[href]")].find((link) => link.getAttribute("href") === href)?.focus();
  }
});

// A deed's outcome stands in the page from its start, and what stands there is not read out: what comes later is.
addEventListener("load", () => setTimeout(tellOutcomes, OUTCOME_MS));

function tellOutcomes() {
  for (const text of document.querySelectorAll('main > .notice[role="status"] > p')) {
    text.replaceChildren(...[...text.childNodes].map((node) => node.cloneNode(true)));
  }
}

system.addEventListener("change", () => applyTheme(root.dataset.themeChoice));
applyTheme(root.dataset.themeChoice || "auto");
