// What each rectangle is filled with: segments by use, or everything by tenant. Colours come from static/css/flame.css.
import { FREE, GPU, INSTANCE, KV_FREE, NODE, OTHER, RESERVED, SEGMENT, SEGMENTS, TENANT, UNKNOWN, UNUSED } from "./tree.js";

const TENANT_COLOURS = 14;
const HATCHED = new Set([KV_FREE, UNUSED, FREE, UNKNOWN, RESERVED]);

function channels(colour) {
  const text = colour.replace("#", "");
  const whole = text.length === 3 ? [...text].map((digit) => digit + digit).join("") : text;
  return [0, 2, 4].map((at) => parseInt(whole.slice(at, at + 2), 16));
}

function luminance(colour) {
  const [red, green, blue] = channels(colour).map((value) => {
    const share = value / 255;
    return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
}

export function contrast(one, other) {
  const [light, dark] = [luminance(one), luminance(other)].sort((a, b) => b - a);
  return (light + 0.05) / (dark + 0.05);
}

// Black or white, whichever reads better: one of them always passes WCAG AA.
const textOn = (colour) => (contrast(colour, "#000000") >= contrast(colour, "#ffffff") ? "#000000" : "#ffffff");

export function mix(one, other, share) {
  const [from, to] = [channels(one), channels(other)];
  return `#${from.map((value, at) => Math.round(value + (to[at] - value) * share).toString(16).padStart(2, "0")).join("")}`;
}

function hash(text) {
  let found = 2166136261;
  for (let at = 0; at < text.length; at++) found = Math.imul(found ^ text.charCodeAt(at), 16777619);
  return found >>> 0;
}

// A colour for each tenant, by its id, that stays when others come and go, and no two alike while there are colours left.
export function tenantSlots(ids) {
  const slots = new Map();
  const taken = new Set();
  for (const id of [...new Set(ids)].sort()) {
    let slot = hash(id) % TENANT_COLOURS;
    if (taken.size < TENANT_COLOURS) while (taken.has(slot)) slot = (slot + 1) % TENANT_COLOURS;
    taken.add(slot);
    slots.set(id, slot);
  }
  return slots;
}

export function hatch(base, line, scale) {
  const side = Math.round(6 * scale);
  const tile = new OffscreenCanvas(side, side);
  const context = tile.getContext("2d");
  context.fillStyle = base;
  context.fillRect(0, 0, side, side);
  context.strokeStyle = line;
  context.lineWidth = 1.1 * scale;
  context.beginPath();
  for (const from of [-side, 0, side]) {
    context.moveTo(from - 1, side + 1);
    context.lineTo(from + side + 1, -1);
  }
  context.stroke();
  return tile;
}

// The fills of one theme: `styles[n]` is {fill, text, base, line?}; hatched ones have a line.
export class Palette {
  constructor(root = document.documentElement) {
    const read = getComputedStyle(root);
    const token = (name) => read.getPropertyValue(`--gh-${name}`).trim();
    this.surface = token("surface");
    this.page = token("page");
    this.text = token("text");
    this.dim = token("text-3");
    this.soft = token("text-2");
    this.line = token("line");
    this.accent = token("accent");
    this.focus = token("flame-focus");
    this.font = token("font");
    this.tenants = Array.from({ length: TENANT_COLOURS }, (_, at) => token(`flame-tenant-${at + 1}`));
    this.styles = [];
    this.segment = SEGMENTS.map((name, at) => this.#add(token(`flame-${name}`), HATCHED.has(at) && token(`flame-${name}-line`)));
    this.row = { [NODE]: "node", [GPU]: "gpu", [TENANT]: "tenant", [INSTANCE]: "instance" };
    for (const kind of Object.keys(this.row)) this.row[kind] = this.#add(token(`flame-row-${this.row[kind]}`));
    this.failed = this.#add(token("flame-failed"));
    // By tenant: [its row, its instances' row, then its segments].
    this.own = this.tenants.map((colour) => {
      const shade = mix(colour, "#000000", 0.22);
      return {
        row: this.#add(colour),
        instance: this.#add(shade),
        solid: this.#add(colour),
        other: this.#add(mix(colour, "#000000", 0.1)),
        slack: this.#add(mix(this.surface, colour, 0.16), mix(this.surface, colour, 0.4), this.text),
      };
    });
  }

  #add(base, line, text = this.soft) {
    this.styles.push({ base, line: line || "", text: line ? text : textOn(base) });
    return this.styles.length - 1;
  }

  // Number of the style of each place of the tree.
  stylesOf(tree, byTenant) {
    const found = new Uint16Array(tree.count);
    const slots = tenantSlots(tree.ids.filter((_, place) => tree.kind[place] === TENANT));
    let own = null;
    let until = 0;
    for (let place = 0; place < tree.count; place++) {
      if (place >= until) own = null;
      const kind = tree.kind[place];
      if (kind === TENANT && byTenant) {
        own = this.own[slots.get(tree.ids[place])];
        until = tree.end[place];
      }
      if (kind === SEGMENT) {
        const seg = tree.seg[place];
        if (own === null || seg === OTHER) found[place] = this.segment[seg];
        else found[place] = HATCHED.has(seg) ? own.slack : seg % 2 ? own.other : own.solid;
      } else if (own !== null) {
        found[place] = kind === TENANT ? own.row : own.instance;
      } else if (kind === GPU && tree.extra[place].health === "failed") {
        found[place] = this.failed;
      } else {
        found[place] = this.row[kind] ?? this.row[NODE];
      }
    }
    return found;
  }

  tenantColour(slot) {
    return this.tenants[slot];
  }
}
