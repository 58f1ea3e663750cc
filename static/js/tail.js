// Rows of a growing list that come over a channel: each is told once, and where some were left out that is said.
import { words } from "./words.js";

const MOST_KNOWN = 2000; // far more than a frame has

export class Tail {
  constructor() {
    this.known = new Set();
    this.began = false;
  }

  // Rows that the page has already.
  skip(ids) {
    for (const id of ids) this.known.add(id);
  }

  // Those of a frame that have not been told yet, and whether there may be others before them.
  take(frame) {
    const rows = frame.rows ?? frame.more;
    const fresh = rows.filter((row) => !this.known.has(row.id));
    // A page that was too slow for all of it, or hidden for a while, gets the newest ones alone.
    const apart = this.began && rows.length > 0 && fresh.length === rows.length;
    const gap = Boolean(frame.rows) && apart && (frame.gap || this.known.size > 0);
    this.began = true;
    for (const row of fresh) this.known.add(row.id);
    for (const id of this.known) {
      if (this.known.size <= MOST_KNOWN) break;
      this.known.delete(id);
    }
    return { fresh, gap };
  }
}

export function gapRow(columns) {
  const row = document.createElement("tr");
  row.dataset.gap = "";
  const cell = document.createElement("td");
  cell.colSpan = columns;
  cell.className = "note";
  cell.textContent = words.live_gap;
  row.append(cell);
  return row;
}
