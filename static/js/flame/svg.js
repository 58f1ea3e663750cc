// As much of a canvas's context as draw.js uses, writing SVG.
// What XML cannot say at all is left out: one such character in a name, and no program opens the drawing.
const UNSPEAKABLE = /[^\t\n\r\u0020-\uD7FF\uE000-\uFFFD\u{10000}-\u{10FFFF}]/gu;
const escape = (text) =>
  String(text).replace(UNSPEAKABLE, "").replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;").replace(/"/g, "&quot;");
const short = (value) => String(Math.round(value * 100) / 100);

export class SvgContext {
  constructor(width, height) {
    this.width = width;
    this.height = height;
    this.fillStyle = "#000";
    this.strokeStyle = "#000";
    this.globalAlpha = 1;
    this.font = "12px sans-serif";
    this.textBaseline = "alphabetic";
    this.textAlign = "left";
    this.parts = [];
    this.hatches = new Map();
    this.moved = [0, 0];
    this.ruler = new OffscreenCanvas(1, 1).getContext("2d");
  }

  hatch(base, line) {
    const key = `${base}|${line}`;
    if (!this.hatches.has(key)) this.hatches.set(key, { id: `hatch-${this.hatches.size + 1}`, base, line });
    return `url(#${this.hatches.get(key).id})`;
  }

  translate(x, y) {
    this.moved = [this.moved[0] + x, this.moved[1] + y];
  }

  clearRect() {}

  #alpha() {
    return this.globalAlpha < 1 ? ` opacity="${short(this.globalAlpha)}"` : "";
  }

  fillRect(x, y, width, height) {
    if (width <= 0 || height <= 0) return;
    const [dx, dy] = this.moved;
    this.parts.push(
      `<rect x="${short(x + dx)}" y="${short(y + dy)}" width="${short(width)}" height="${short(height)}" fill="${escape(this.fillStyle)}"${this.#alpha()}/>`,
    );
  }

  measureText(text) {
    this.ruler.font = this.font;
    return this.ruler.measureText(text);
  }

  fillText(text, x, y) {
    const [dx, dy] = this.moved;
    const [, weight, size, family] = /^(\d+) ([\d.]+)px (.*)$/.exec(this.font) ?? [null, 400, 12, "sans-serif"];
    const anchor = { left: "start", right: "end", center: "middle" }[this.textAlign];
    const lowered = this.textBaseline === "middle" ? Number(size) * 0.35 : 0;
    this.parts.push(
      `<text x="${short(x + dx)}" y="${short(y + dy + lowered)}" font-size="${size}" font-weight="${weight}" font-family="${escape(family)}" text-anchor="${anchor}" fill="${escape(this.fillStyle)}"${this.#alpha()}>${escape(text)}</text>`,
    );
  }

  toString() {
    const patterns = [...this.hatches.values()].map(
      ({ id, base, line }) =>
        `<pattern id="${id}" width="6" height="6" patternUnits="userSpaceOnUse"><rect width="6" height="6" fill="${base}"/><path d="M-1 7L7 -1M-1 1L1 -1M5 7L7 5" stroke="${line}" stroke-width="1.1"/></pattern>`,
    );
    return (
      `<svg xmlns="http://www.w3.org/2000/svg" width="${this.width}" height="${this.height}" viewBox="0 0 ${this.width} ${this.height}">` +
      `<defs>${patterns.join("")}</defs>${this.parts.join("")}</svg>`
    );
  }
}
