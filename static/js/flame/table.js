// The same tree as a table, a page of rows at a time: what the canvas shows, for those who do not see it.
import { CLUSTER, KINDS } from "./tree.js";
import { details, nameOf } from "./tooltip.js";
import { kindWord, memory, percent, say } from "./words.js";

const ROWS = 50;

export class TreeTable {
  // `details` holds a table, its pager and a line that says which rows these are.
  constructor(details) {
    this.details = details;
    this.body = details.querySelector("tbody");
    this.told = details.querySelector("[data-told]");
    this.rows = details.querySelector('[role="region"]');
    this.page = 0;
    this.tree = null;
    details.addEventListener("toggle", () => this.#fill());
    details.querySelector("[data-back]").addEventListener("click", () => this.#turn(-1));
    details.querySelector("[data-on]").addEventListener("click", () => this.#turn(1));
  }

  // `search`: the text that `dimmed` comes of.
  show(tree, scope, dimmed, search) {
    // Another topology does not turn the page back under whoever reads it; another scope or search does.
    const asked = `${tree.keys[scope]}|${search}`;
    if (asked !== this.asked) this.page = 0;
    this.asked = asked;
    this.tree = tree;
    this.scope = scope;
    this.dimmed = dimmed;
    this.#fill();
  }

  #turn(step) {
    this.page += step;
    this.#fill();
  }

  // Places of the scope that the search leaves.
  #places() {
    const { tree, scope, dimmed } = this;
    const found = [];
    for (let place = scope; place < tree.end[scope]; place++) {
      if (tree.kind[place] !== CLUSTER && (dimmed === null || !dimmed[place])) found.push(place);
    }
    return found;
  }

  #fill() {
    if (!this.details.open || !this.tree) return;
    const places = this.#places();
    const pages = Math.max(1, Math.ceil(places.length / ROWS));
    this.page = Math.min(Math.max(0, this.page), pages - 1);
    const first = this.page * ROWS;
    const shown = places.slice(first, first + ROWS);
    while (this.body.children.length > shown.length) this.body.lastElementChild.remove();
    while (this.body.children.length < shown.length) this.body.append(this.#row());
    shown.forEach((place, at) => this.#write(this.body.children[at], place));
    const told = say("rows", { from: places.length ? first + 1 : 0, to: first + shown.length, n: places.length });
    if (this.told.textContent !== told) this.told.textContent = told;
    const [back, on] = ["[data-back]", "[data-on]"].map((name) => this.details.querySelector(name));
    const held = [back, on].find((button) => button === document.activeElement);
    back.disabled = this.page === 0;
    on.disabled = this.page >= pages - 1;
    // The keyboard stays at the pages, or with the rows where all are on one.
    if (held?.disabled) [back, on, this.rows].find((place) => !place.disabled).focus();
  }

  #row() {
    const row = document.createElement("tr");
    for (let column = 0; column < 6; column++) {
      const cell = document.createElement(column === 0 ? "th" : "td");
      if (column === 0) cell.scope = "row";
      if (column > 1 && column < 4) cell.className = "num";
      row.append(cell);
    }
    return row;
  }

  #write(row, place) {
    const { tree } = this;
    const above = tree.parent[place];
    const path = tree.path(above).filter((at) => tree.kind[at] !== CLUSTER);
    const texts = [
      nameOf(tree, place),
      kindWord(KINDS[tree.kind[place]]),
      memory(tree.sum[place]),
      tree.sum[above] > 0 ? percent(tree.sum[place] / tree.sum[above]) : "–",
      path.map((at) => nameOf(tree, at)).join(" / ") || "–",
      details(tree, place) || "–",
    ];
    texts.forEach((text, at) => {
      if (row.children[at].textContent !== text) row.children[at].textContent = text;
    });
    const level = `level-${tree.kind[place]}`;
    if (row.className !== level) row.className = level;
  }
}
