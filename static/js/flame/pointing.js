// What the pointer is on: its tooltip at once, and a moment later all that belongs with it stays bright.
import { kin, kinOf } from "./search.js";
import { SEGMENT } from "./tree.js";

const HOVER_MS = 140; // so that a pointer on its way does not make the wall flicker

export class Pointing {
  // `onDims(dimmed or null)`.
  constructor(stage, tooltip, onDims) {
    this.stage = stage;
    this.tooltip = tooltip;
    this.onDims = onDims;
    this.key = "";
    this.timer = 0;
  }

  // Another tree or scope: what was found in the one of before says nothing of it.
  forget() {
    clearTimeout(this.timer);
    this.key = "";
  }

  // `place` is -1 for none; without an event the pointer has left.
  on(tree, place, event) {
    if (place < 0 || !event) {
      this.forget();
      this.tooltip.hide();
      this.onDims(null);
      return;
    }
    const box = this.stage.getBoundingClientRect();
    this.tooltip.show(tree, place, event.clientX - box.left, event.clientY - box.top, box.width);
    const target = tree.kind[place] === SEGMENT ? tree.parent[place] : place;
    const key = kinOf(tree, target) === null ? "" : tree.keys[target];
    if (key === this.key) return;
    this.forget();
    this.key = key;
    this.timer = setTimeout(() => this.onDims(key ? kin(tree, target) : null), HOVER_MS);
  }
}
