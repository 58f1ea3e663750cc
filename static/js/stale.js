// The mark in a page's head while what it asks for by itself does not come.
import { words } from "./words.js";

export function markStale(page, stale) {
  const marks = page.querySelectorAll("[data-stale-mark]");
  if (stale && marks.length) return; // it is said once
  for (const mark of marks) mark.remove();
  const head = page.querySelector(".head");
  if (!stale || !head) return;
  const mark = document.createElement("span");
  mark.className = "pill warn";
  mark.dataset.staleMark = "";
  mark.setAttribute("role", "status");
  head.append(mark);
  mark.textContent = words.reconnecting;
}
