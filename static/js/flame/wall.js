// The stage: a canvas of rectangles below plotly's axes, and a second one for outlines, so that pointing draws little.
import { Axes } from "./axes.js";
import { elided, Painter, scaleFor } from "./draw.js";
import { Plan } from "./layout.js";
import { CLUSTER, NODE } from "./tree.js";

const CLICK_PIXELS = 4;
const NARROW = 560;
const AXES_DRIFT = 0.002; // of the widest band, which axes may be behind

export class Wall {
  // `on`: {enter(place), point(place, event), zoomed(bool)}.
  constructor(stage, on) {
    this.stage = stage;
    this.on = on;
    this.canvas = stage.querySelector("canvas.flame-canvas");
    this.overlay = stage.querySelector("canvas.flame-overlay");
    this.axesBox = stage.querySelector(".flame-axes");
    this.axes = new Axes(this.axesBox, { onZoom: (range) => this.#zoom(range) });
    this.plan = null;
    this.styles = null;
    this.palette = null;
    this.dimmed = null;
    this.hovered = -1;
    this.focused = -1;
    this.pointer = null; // where it was last, while it is on the stage
    this.range = null;
    this.late = new Set(); // bands that are to be drawn when they come into sight
    this.frames = new Map(); // by kind of work: the next animation frame that does it
    new ResizeObserver(() => this.#resized()).observe(stage.parentElement);
    this.#watchScale();
    for (const event of ["scroll", "resize"]) {
      addEventListener(event, () => this.late.size && this.#soon("late", () => this.#drawLate()), { passive: true });
    }
    addEventListener("beforeprint", () => this.plan && this.#drawLate({ all: true })); // paper has no scrolling
    this.#listen();
  }

  // Zoom of the browser, or another screen: the query is of one ratio, and so made anew for each.
  #watchScale() {
    const query = matchMedia(`(resolution: ${devicePixelRatio}dppx)`);
    query.addEventListener("change", () => (this.#watchScale(), this.show(this.plan)), { once: true });
  }

  setLook(palette, styles) {
    this.palette = palette;
    this.styles = styles;
  }

  // Another tree, scope, view, theme or size: axes and all.
  show(plan, { keepZoom = true } = {}) {
    if (!plan) return;
    const full = [0, Math.max(1, plan.widest)];
    const before = this.plan;
    this.plan = plan;
    const zoomed = keepZoom && before && (this.range[0] > 0 || this.range[1] < this.drawnWidest);
    const other = before !== plan && Math.abs(this.drawnWidest - plan.widest) > 0.5;
    if (!zoomed || other || this.range[1] > plan.widest) this.range = full;
    const wide = this.stage.parentElement.clientWidth;
    const margins = this.#margins(plan, wide);
    this.margins = margins;
    this.width = Math.max(60, wide - margins.left - margins.right);
    this.stage.style.height = `${margins.top + plan.height + margins.bottom}px`;
    // A canvas that is too large stays blank: a thousand bands are drawn less finely than eight.
    this.scale = scaleFor(this.width, plan.height, Math.min(3, devicePixelRatio || 1));
    this.drawnWidest = plan.widest;
    this.ratio = devicePixelRatio;
    this.#prepare();
    const { tree } = plan;
    const bands = plan.banded
      ? plan.bands.map(({ root, top }) => ({ label: this.#bandLabel(tree.short[root]), centre: top + plan.bandHeight / 2 }))
      : [];
    const look = { plan, bands, margins, width: this.width, palette: this.palette, range: this.range };
    // Other instances on the same devices leave the axes as they are.
    const axes = JSON.stringify([bands, margins, this.width, plan.height, this.range, this.palette.dim]);
    if (axes !== this.lastAxes) this.axes.show(look);
    this.lastAxes = axes;
    this.on.zoomed(this.range[0] > 0 || this.range[1] < full[1]);
    this.draw();
  }

  // Canvases and what paints on them; other instances on the same devices keep both.
  #prepare() {
    const { plan, margins, painter } = this;
    const size = JSON.stringify([this.width, plan.height, this.scale, margins.left, margins.top]);
    if (painter && painter.palette === this.palette && size === this.lastSize) {
      this.context.clearRect(0, 0, this.width, plan.height);
      painter.forget();
      return;
    }
    this.lastSize = size;
    for (const canvas of [this.canvas, this.overlay]) {
      canvas.width = Math.round(this.width * this.scale);
      canvas.height = Math.round(plan.height * this.scale);
      canvas.style.width = `${this.width}px`;
      canvas.style.height = `${plan.height}px`;
      canvas.style.left = `${margins.left}px`;
      canvas.style.top = `${margins.top}px`;
    }
    this.context = this.canvas.getContext("2d");
    this.context.setTransform(this.scale, 0, 0, this.scale, 0, 0);
    this.over = this.overlay.getContext("2d");
    this.over.setTransform(this.scale, 0, 0, this.scale, 0, 0);
    this.painter = new Painter(this.context, this.palette, this.scale);
  }

  #margins(plan, wide) {
    const top = 14;
    if (!plan.banded) return { left: 18, right: 18, top, bottom: 32 };
    const longest = Math.max(...plan.bands.map(({ root }) => plan.tree.short[root].length), 4);
    const left = Math.min(wide < NARROW ? 82 : 168, Math.max(62, longest * 7.3 + 30));
    return { left, right: wide < NARROW ? 10 : 18, top, bottom: 32 };
  }

  #bandLabel(name) {
    const size = this.plan.bands.length > 20 ? 10.5 : 12;
    const fit = (text) => elided(this.over, `700 ${size}px ${this.palette.font}`, text, this.margins.left - 20);
    if (fit(name) === name) return name;
    // Names of machines differ at their ends: it is the beginning that is cut.
    const turned = (text) => [...text].reverse().join("");
    return turned(fit(turned(name)));
  }

  scene() {
    return {
      plan: this.plan,
      styles: this.styles,
      dimmed: this.dimmed,
      width: this.width,
      from: this.range[0],
      to: this.range[1],
    };
  }

  // All bands that are in sight now; the others once they are.
  draw() {
    if (!this.plan) return;
    this.late = new Set(this.plan.bands);
    this.#drawLate();
    this.outline();
  }

  #drawLate({ all = false } = {}) {
    const box = this.stage.getBoundingClientRect();
    const from = -box.top - this.margins.top - 40;
    const to = from + innerHeight + 80;
    const scene = this.scene();
    for (const band of this.late) {
      if (!all && (band.top > to || band.top + this.plan.bandHeight < from)) continue;
      this.painter.band(scene, band);
      this.late.delete(band);
    }
  }

  // After other figures: axes stand still, unless a band has grown or shrunk, as those of unknown size do.
  follow() {
    const { widest } = this.plan;
    const still = Math.abs(widest - this.drawnWidest) <= AXES_DRIFT * this.drawnWidest && this.ratio === devicePixelRatio;
    if (still) this.draw();
    else this.show(this.plan);
  }

  // The part of the bytes that is shown moves to where `place` is, if it is elsewhere.
  reveal(place) {
    const rect = this.plan.rect(place);
    const [from, to] = this.range;
    if (!rect || (rect.x < to && rect.x + rect.width > from)) return;
    const start = Math.max(0, Math.min(rect.x + rect.width / 2 - (to - from) / 2, this.plan.widest - (to - from)));
    this.#zoom([start, start + to - from]);
  }

  // Each kind of work has a frame of its own: what is redrawn must not keep another size from being shown.
  #soon(kind, work) {
    cancelAnimationFrame(this.frames.get(kind));
    this.frames.set(kind, requestAnimationFrame(work));
  }

  redraw() {
    this.#soon("draw", () => this.draw());
  }

  outline() {
    const { over, plan } = this;
    if (!over) return;
    over.clearRect(0, 0, this.width, plan.height);
    if (this.hovered >= 0 && this.hovered !== this.focused) this.#frame(this.hovered, this.palette.text, 1);
    if (this.focused >= 0) {
      this.#frame(this.focused, this.palette.surface, 4);
      this.#frame(this.focused, this.palette.focus, 2);
    }
  }

  #frame(place, colour, line) {
    const rect = this.rectOf(place);
    if (!rect) return;
    const { over } = this;
    over.strokeStyle = colour;
    over.lineWidth = line;
    const inset = line / 2;
    over.strokeRect(rect.left + inset, rect.top + inset, Math.max(1, rect.width - line), Math.max(1, rect.height - line));
  }

  // In pixels of the canvas; null where it is not drawn.
  rectOf(place) {
    const found = this.plan.rect(place);
    if (!found) return null;
    const k = this.width / (this.range[1] - this.range[0]);
    const left = Math.max(0, (found.x - this.range[0]) * k);
    const right = Math.min(this.width, (found.x + found.width - this.range[0]) * k);
    return { left, width: Math.max(2, right - left), top: found.top, height: found.bottom - found.top };
  }

  #zoom([from, to]) {
    const whole = Math.max(1, this.plan.widest);
    const least = whole / 100000;
    this.range = [Math.max(0, from), Math.min(whole, Math.max(to, from + least))];
    this.show(this.plan);
  }

  zoomOut() {
    this.show(this.plan, { keepZoom: false });
  }

  #resized() {
    const wide = this.stage.parentElement.clientWidth;
    if (!this.plan || wide === this.lastWide) return;
    this.lastWide = wide;
    this.#soon("show", () => this.show(this.plan));
  }

  // What lies under the pointer: a place; a band's label is its band.
  #under(event) {
    const box = this.stage.getBoundingClientRect();
    const x = event.clientX - box.left - this.margins.left;
    const y = event.clientY - box.top - this.margins.top;
    if (y < 0 || y >= this.plan.height || x > this.width) return -1;
    if (x < 0) return this.plan.banded ? (this.plan.bandAt(y)?.root ?? -1) : -1;
    return this.plan.at(this.range[0] + (x / this.width) * (this.range[1] - this.range[0]), y);
  }

  #listen() {
    let down = null;
    // In the capture phase: plotly swallows what happens on its drag layer.
    this.stage.addEventListener("pointerdown", (event) => (down = event), true);
    document.addEventListener(
      "pointerup",
      (event) => {
        const from = down;
        down = null;
        if (!from || event.button !== 0 || !this.plan) return;
        if (Math.hypot(event.clientX - from.clientX, event.clientY - from.clientY) > CLICK_PIXELS) return;
        const place = this.#under(event);
        if (place >= 0) this.on.enter(place);
      },
      true,
    );
    this.stage.addEventListener("pointermove", (event) => this.plan && event.pointerType !== "touch" && this.#point(event), true);
    this.stage.addEventListener("pointerleave", () => this.#leave());
  }

  #point(event) {
    this.pointer = event;
    const place = event.buttons ? -1 : this.#under(event);
    const kind = place < 0 ? CLUSTER : this.plan.tree.kind[place];
    this.stage.classList.toggle("at-label", kind === NODE);
    if (place !== this.hovered) {
      this.hovered = place;
      this.outline();
    }
    this.on.point(place, event);
  }

  // Other figures or another tree below a pointer that stands still.
  repoint() {
    if (this.pointer) this.#point(this.pointer);
  }

  #leave() {
    this.pointer = null;
    this.hovered = -1;
    this.outline();
    this.on.point(-1, null);
  }

  forget() {
    this.hovered = -1;
    this.focused = -1;
  }
}
