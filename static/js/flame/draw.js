// Draws rectangles and their labels on a canvas, or on anything with the same few methods (svg.js).
import { hatch } from "./colours.js";
import { GPU, INSTANCE, SEGMENT, SEGMENTS, TENANT } from "./tree.js";
import { memory, percent, segmentWord } from "./words.js";

const PADDING = 5;
const LEAST_LABEL = 24;
const DIMMED = 0.2;
const MOST_TEXTS = 20000;
const MOST_HIGH = 32000;
const MOST_PIXELS = 100e6;

// Pixels to each CSS pixel of a canvas, as many as wanted or as it can have.
export const scaleFor = (width, height, wanted) =>
  Math.min(wanted, MOST_HIGH / height, Math.sqrt(MOST_PIXELS / height / width));

// Texts cut to a width, each measured once a font.
class Fitter {
  #fonts = new Map();

  clear() {
    this.#fonts.clear();
  }

  #of(font) {
    let found = this.#fonts.get(font);
    if (!found) {
      found = { widths: new Map(), cut: new Map() };
      this.#fonts.set(font, found);
    }
    return found;
  }

  // `context` has that font.
  width(context, font, text) {
    const { widths } = this.#of(font);
    let found = widths.get(text);
    if (found === undefined) {
      if (widths.size > MOST_TEXTS) widths.clear();
      found = context.measureText(text).width;
      widths.set(text, found);
    }
    return found;
  }

  // The text, or as much of it as fits with an ellipsis; "" where nothing of use does.
  fit(context, font, text, room) {
    if (this.width(context, font, text) <= room) return text;
    const { cut } = this.#of(font);
    const key = `${room}|${text}`;
    let found = cut.get(key);
    if (found === undefined) {
      if (cut.size > MOST_TEXTS) cut.clear();
      let low = 0;
      let high = text.length - 1;
      while (low < high) {
        const middle = (low + high + 1) >> 1;
        if (context.measureText(`${text.slice(0, middle).trimEnd()}…`).width <= room) low = middle;
        else high = middle - 1;
      }
      found = low < 2 ? "" : `${text.slice(0, low).trimEnd()}…`;
      cut.set(key, found);
    }
    return found;
  }
}

const fitter = new Fitter();

// The text as it fits, for those who draw labels elsewhere.
export function elided(context, font, text, room) {
  context.font = font;
  return fitter.fit(context, font, text, Math.floor(room));
}

let fontsLoaded = 0;
document.fonts?.addEventListener?.("loadingdone", () => {
  fontsLoaded += 1;
  fitter.clear();
});

export class Painter {
  // `context` is in CSS pixels; `scale` is how many of its own it has to each.
  constructor(context, palette, scale) {
    this.context = context;
    this.palette = palette;
    this.fills = palette.styles.map(({ base, line }) => {
      if (!line) return base;
      if (context.hatch) return context.hatch(base, line);
      const pattern = context.createPattern(hatch(base, line, scale), "repeat");
      pattern.setTransform(new DOMMatrix().scale(1 / scale));
      return pattern;
    });
    this.font = "";
    this.fonts = new Map();
    this.labels = []; // by place: what was written last, and for which room and size
    this.fontsLoaded = fontsLoaded;
    this.runs = Array.from({ length: 6 }, () => ({ from: 0, to: -1, widest: 0, fill: null, alpha: 1 }));
  }

  // Another tree: what was written in a place says nothing of who has it now.
  forget() {
    this.labels = [];
  }

  // `scene`: {plan, styles, width, from, to (MiB at the edges), dimmed (Uint8Array or null)}.
  band(scene, band) {
    const { plan, styles, dimmed } = scene;
    const { tree } = plan;
    const { context, fills, runs } = this;
    const { sum, end, kind, seg } = tree;
    const k = scene.width / (scene.to - scene.from);
    const start = scene.from;
    const { top } = band;
    const bottom = top + plan.bandHeight;
    context.clearRect(0, top, scene.width, plan.bandHeight);
    context.textBaseline = "middle";
    if (this.fontsLoaded !== fontsLoaded) {
      this.forget();
      this.fontsLoaded = fontsLoaded;
    }
    for (const run of runs) run.to = -1;
    for (const place of plan.crown) {
      this.#box(scene, place, 0, scene.width, top + plan.rowTop(place), top + plan.rowBottom(place), 1);
    }
    const last = end[band.root];
    let place = plan.banded ? band.root + 1 : band.root;
    while (place < last) {
      const left = (plan.x[place] - start) * k;
      const width = sum[place] * k;
      if (left > scene.width || left + width < 0) {
        place = end[place];
        continue;
      }
      const level = kind[place];
      const rowTop = top + plan.rowTop(place);
      const rowBottom = level === SEGMENT ? bottom : top + plan.rowBottom(place);
      const alpha = dimmed !== null && dimmed[place] ? DIMMED : 1;
      if (width >= 1) {
        if (level === GPU) this.#rest(scene, place, k, top);
        this.#box(scene, place, left, width, rowTop, rowBottom, alpha);
      } else if (width > 0) {
        // Thinner than a pixel: neighbours are merged, in the colour of the widest.
        const run = runs[level];
        if (run.to < 0 || left - run.to > 0.5 || run.top !== rowTop) {
          this.#flush(run);
          run.from = left;
          run.widest = 0;
        }
        if (width > run.widest) {
          run.widest = width;
          run.fill = fills[styles[place]];
          run.alpha = alpha;
        }
        run.to = left + width;
        run.top = rowTop;
        run.bottom = rowBottom;
        if (run.to - run.from >= 1) this.#flush(run);
      }
      place += 1;
    }
    for (const run of runs) this.#flush(run);
    context.globalAlpha = 1;
  }

  #flush(run) {
    if (run.to < 0) return;
    const { context } = this;
    context.globalAlpha = run.alpha;
    context.fillStyle = run.fill;
    context.fillRect(run.from, run.top, Math.max(0.6, run.to - run.from), run.bottom - run.top - 0.5);
    run.to = -1;
  }

  // What of a GPU no segment tells of.
  #rest(scene, place, k, top) {
    const { plan } = scene;
    const { tree } = plan;
    let told = 0;
    for (let child = place + 1; child < tree.end[place]; child = tree.end[child]) told += tree.sum[child];
    if (tree.sum[place] - told < 1) return;
    const left = (plan.x[place] + told - scene.from) * k;
    const from = top + plan.rowBottom(place);
    this.context.globalAlpha = 1;
    this.context.fillStyle = this.fills[this.palette.segment[SEGMENTS.indexOf("unknown")]];
    this.context.fillRect(left, from, (tree.sum[place] - told) * k, top + plan.bandHeight - from);
  }

  #box(scene, place, left, width, top, bottom, alpha) {
    const { context } = this;
    const from = Math.max(0, left);
    const to = Math.min(scene.width, left + width);
    const gap = to - from >= 4 ? 1 : to - from >= 2 ? 0.5 : 0;
    context.globalAlpha = alpha;
    context.fillStyle = this.fills[scene.styles[place]];
    context.fillRect(from, top, to - from - gap, bottom - top - (bottom - top > 4 ? 1 : 0.5));
    const height = bottom - top;
    if (to - from >= LEAST_LABEL && height >= 10) this.#label(scene, place, from, to - from - gap, top, height);
  }

  // The same text object each time, which is quick to compare.
  #font(weight, size) {
    const key = weight + size;
    let font = this.fonts.get(key);
    if (!font) this.fonts.set(key, (font = `${weight} ${size}px ${this.palette.font}`));
    return font;
  }

  #label(scene, place, left, width, top, height) {
    const { context, palette } = this;
    const { tree } = scene.plan;
    const size = height < 13 ? 9.5 : height < 24 ? 11 : 12;
    const font = this.#font(tree.kind[place] <= TENANT ? 600 : 500, size);
    if (font !== this.font) {
      context.font = font;
      this.font = font;
    }
    const room = Math.floor(width) - 2 * PADDING + 2;
    let label = this.labels[place];
    if (!label || label.room !== room || label.size !== tree.sum[place] || label.used !== tree.inUse(place) || label.font !== font) {
      label = this.#write(tree, place, room, font);
      this.labels[place] = label;
    }
    if (label.text === "") return;
    context.fillStyle = palette.styles[scene.styles[place]].text;
    const middle = top + height / 2 + 0.5;
    context.fillText(label.text, left + PADDING - 1, middle);
    if (label.more) context.fillText(label.more, left + PADDING - 1 + label.at, middle);
  }

  // What is written in a rectangle: its name, and where there is room its size.
  #write(tree, place, room, font) {
    const { context } = this;
    const kind = tree.kind[place];
    let name = tree.short[place];
    if (kind === SEGMENT) name = segmentWord(tree.segmentOf(place));
    else if (kind === INSTANCE) name = tree.extra[place].model ?? name;
    const label = { room, font, size: tree.sum[place], used: tree.inUse(place), text: "", more: "", at: 0 };
    label.text = fitter.fit(context, font, name, room);
    if (label.text !== name) {
      const number = kind === GPU ? /[\d.:]+$/.exec(name)?.[0] : undefined; // "GP…" names none of eight
      if (number && fitter.width(context, font, number) <= room) label.text = number;
      return label;
    }
    let more = memory(tree.sum[place]);
    if (kind === GPU && tree.useOf(place) !== null) more = percent(tree.useOf(place), 0);
    label.at = fitter.width(context, font, name) + 7;
    if (more && room - label.at >= fitter.width(context, font, more)) label.more = more;
    return label;
  }
}
