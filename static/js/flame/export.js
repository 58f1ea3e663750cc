// The wall as it is shown, with title, labels, axis and legend, as PNG or SVG; its figures as CSV.
import { ticks } from "./axes.js";
import { Painter, scaleFor } from "./draw.js";
import { SvgContext } from "./svg.js";
import { GPU, INSTANCE, KINDS, NODE, SEGMENT, SEGMENTS, TENANT } from "./tree.js";
import { nameOf } from "./tooltip.js";
import { localTime, said } from "./words.js";

const HEAD = 58;
const FOOT = 34;
const LINE = 18;
const SIDE = 18;
const PNG_SCALE = 2;

// Where the legend's entries stand, in as many lines as the width asks for.
function placed(legend, width, font) {
  const ruler = new OffscreenCanvas(1, 1).getContext("2d");
  ruler.font = `500 11px ${font}`;
  let x = SIDE;
  let line = 0;
  return legend.map(({ name, amount, style }) => {
    const words = `${name} ${amount}`;
    const wide = 16 + ruler.measureText(words).width;
    if (x > SIDE && x + wide > width) {
      x = SIDE;
      line += 1;
    }
    const place = { words, style, x, line };
    x += wide + 14;
    return place;
  });
}

// The picture's size in CSS pixels, and what draws it on a context of that size.
function picture(wall, { title, note, legend }, makePainter) {
  const scene = wall.scene();
  const { plan } = scene;
  const { left, right } = wall.margins;
  const width = Math.ceil(left + scene.width + right);
  const { palette } = wall;
  const entries = placed(legend, width - SIDE, palette.font);
  const head = HEAD + LINE * (entries.at(-1)?.line ?? 0);
  const height = Math.ceil(head + plan.height + FOOT);
  const draw = (context) => {
    context.fillStyle = palette.surface;
    context.fillRect(0, 0, width, height);
    context.textBaseline = "middle";
    const text = (words, x, y, { size = 12, weight = 500, colour = palette.dim, align = "left" } = {}) => {
      context.font = `${weight} ${size}px ${palette.font}`;
      context.textAlign = align;
      context.fillStyle = colour;
      context.fillText(words, x, y);
      context.textAlign = "left";
      return context.measureText(words).width;
    };
    const titled = text(title, SIDE, 20, { size: 14, weight: 650, colour: palette.text });
    text(note, SIDE + titled + 12, 20);
    for (const { words, style, x, line } of entries) {
      context.fillStyle = style.line && context.hatch ? context.hatch(style.base, style.line) : style.line || style.base;
      context.fillRect(x, 38 + LINE * line, 10, 10);
      text(words, x + 15, 43.5 + LINE * line, { size: 11, colour: palette.text });
    }
    context.translate(left, head);
    const painter = makePainter(context);
    for (const band of plan.bands) painter.band(scene, band);
    // Once all bands are painted: the painter takes the context's font for the one that it set last.
    for (const band of plan.banded ? plan.bands : []) {
      text(plan.tree.short[band.root], -8, band.top + plan.bandHeight / 2, { weight: 600, colour: palette.text, align: "right" });
    }
    const marks = ticks(scene.from, scene.to, scene.width);
    marks.values.forEach((value, at) => {
      text(marks.texts[at], ((value - scene.from) / (scene.to - scene.from)) * scene.width, plan.height + 16, { size: 11, align: "center" });
    });
  };
  return { width, height, draw };
}

export function asSvg(wall, words) {
  const { width, height, draw } = picture(wall, words, (context) => new Painter(context, wall.palette, 1));
  const context = new SvgContext(width, height);
  draw(context);
  return new Blob([context.toString()], { type: "image/svg+xml" });
}

export async function asPng(wall, words) {
  let scale = PNG_SCALE;
  const { width, height, draw } = picture(wall, words, (context) => new NoClear(context, wall.palette, scale));
  scale = scaleFor(width, height, PNG_SCALE); // a canvas that is too large comes to nothing
  const canvas = new OffscreenCanvas(Math.floor(width * scale), Math.floor(height * scale));
  const context = canvas.getContext("2d");
  context.scale(scale, scale);
  draw(context);
  return canvas.convertToBlob({ type: "image/png" });
}

// Bands are drawn over the picture's ground, which clearing would make a hole in.
class NoClear extends Painter {
  band(scene, band) {
    const { context } = this;
    context.clearRect = () => {};
    super.band(scene, band);
    delete context.clearRect;
  }
}

// A cell that a spreadsheet would take for a formula begins with an apostrophe.
function cell(value) {
  const text = String(value ?? "");
  const safe = /^[=+\-@\t\r]/.test(text) && Number.isNaN(Number(text)) ? `'${text}` : text;
  return /[",\n\r]/.test(safe) ? `"${safe.replace(/"/g, '""')}"` : safe;
}

export function asCsv(tree, scope) {
  const head = ["time", "node", "gpu", "tenant", "instance", "model", "version", "segment", "mib"];
  const lines = [head.join(",")];
  const time = `${localTime(tree.at)} ${said.zone}`;
  for (let place = scope; place < tree.end[scope]; place++) {
    if (tree.kind[place] !== SEGMENT) continue;
    const at = (kind) => tree.ancestor(place, kind);
    const name = (kind) => (at(kind) < 0 ? "" : nameOf(tree, at(kind)));
    const instance = at(INSTANCE);
    const extra = instance < 0 ? {} : tree.extra[instance];
    const row = [time, name(NODE), name(GPU), name(TENANT), instance < 0 ? "" : tree.ids[instance], extra.model, extra.version];
    lines.push([...row, SEGMENTS[tree.seg[place]], tree.sum[place]].map(cell).join(","));
  }
  return new Blob([`${lines.join("\r\n")}\r\n`], { type: "text/csv" });
}

export function save(blob, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

// gpu-memory-sim-h100-01-20260105-090000.png
export function fileName(tree, scope, ending) {
  const parts = tree.path(scope).slice(1).map((place) => nameOf(tree, place));
  const place = parts.length ? parts.join("-") : KINDS[tree.kind[scope]];
  const time = localTime(tree.at).replace(/[-:]/g, "").replace(" ", "-");
  return `gpu-memory-${place.replace(/[^\p{L}\p{N}_.-]+/gu, "_")}-${time}.${ending}`;
}
