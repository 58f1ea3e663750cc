// The mark in a page's head while what it asks for by itself does not come. It is there from the beginning, and empty:
// what is put into such a place is read out for sure.
import { words } from "./words.js";

function markOf(page) {
  const head = page.querySelector(".head");
  const there = head?.querySelector("[data-stale-mark]");
  if (there || !head) return there;
  const mark = document.createElement("span");
  mark.className = "sr";
  mark.dataset.staleMark = "";
  mark.setAttribute("role", "status");
  head.append(mark);
  return mark;
}

export function markStale(page, stale) {
  const mark = markOf(page);
  const text = stale ? words.reconnecting : "";
  if (!mark || mark.textContent === text) return; // it is said once
  mark.className = stale ? "pill warn" : "sr";
  mark.textContent = text;
}

markStale(document, false);
