// The memory tree in typed arrays, a place each in preorder: sums are one pass backwards, positions one pass forwards.
import { kindWord } from "./words.js";

export const CLUSTER = 0;
export const NODE = 1;
export const GPU = 2;
export const TENANT = 3;
export const INSTANCE = 4;
export const SEGMENT = 5;
export const KINDS = ["cluster", "node", "gpu", "tenant", "instance", "segment"];

export const SEGMENTS = [
  "weights",
  "kv_used",
  "kv_free",
  "activations",
  "lora",
  "unused",
  "other",
  "reserved",
  "free",
  "unknown",
];
export const [WEIGHTS, KV_USED, KV_FREE, ACTIVATIONS, LORA, UNUSED, OTHER, RESERVED, FREE, UNKNOWN] = SEGMENTS.keys();
// All else counts as in use: a KV cache that an engine holds is taken, however little of it is filled (docs/wire.md).
const NOT_IN_USE = new Set([UNUSED, RESERVED, FREE]);

export class Tree {
  constructor(frame) {
    const count = frame.nodes.length;
    this.count = count;
    this.scope = frame.scope;
    this.simulated = frame.simulated;
    this.epoch = frame.epoch;
    this.seq = frame.seq;
    this.at = frame.at;
    this.parent = new Int32Array(count);
    this.kind = new Uint8Array(count);
    this.end = new Int32Array(count); // one past the last of the subtree
    this.seg = new Int8Array(count).fill(-1);
    this.sum = new Float64Array(count); // MiB, all that lies below, or a GPU's size where that is more
    this.used = new Float64Array(count); // MiB in use below; `inUse` says where that is known
    this.untold = new Uint8Array(count); // 1: nobody tells how much is in use there
    this.live = new Float64Array(count); // MiB that a GPU's segments in use came to at the keyframe
    this.size = new Float64Array(count); // MiB that a GPU has, 0: nobody tells
    this.ids = new Array(count);
    this.labels = new Array(count);
    this.extra = new Array(count);
    const segments = [];
    frame.nodes.forEach(([parent, kind, id, label, extra], place) => {
      this.parent[place] = frame.up ? place - parent : parent; // what comes packed counts back from the node itself
      this.kind[place] = KINDS.indexOf(kind);
      this.ids[place] = id;
      this.extra[place] = extra ?? {};
      this.labels[place] = label;
      this.end[place] = place + 1;
      if (kind === "segment") {
        const found = SEGMENTS.indexOf(extra.seg);
        this.seg[place] = found < 0 ? UNKNOWN : found;
        segments.push(place);
      } else if (kind === "gpu") {
        this.size[place] = extra.size ?? 0;
      }
    });
    for (let place = count - 1; place > 0; place--) {
      const above = this.parent[place];
      if (this.end[place] > this.end[above]) this.end[above] = this.end[place];
    }
    this.segments = Int32Array.from(segments);
    this.values = Float64Array.from(frame.values);
    this.firstSegment = this.#firstSegments();
    this.short = this.labels.map((_, place) => this.#shortLabel(place));
    this.keys = this.labels.map((_, place) => this.#key(place));
    this.#byKey = null;
    this.#devices = null;
    this.#keyframe();
  }

  #byKey;
  #devices;
  #hole;

  // Who tells of its use, and what a GPU's segments come to: deltas count on from there.
  #keyframe() {
    this.#hole = null;
    this.#findUntold();
    this.live.fill(NaN);
    this.settle();
  }

  // An instance with something unknown and nothing unused; a GPU whose driver does not say; what lies above either.
  #findUntold() {
    const { untold, kind, seg, parent, extra } = this;
    const measured = new Uint8Array(this.count);
    untold.fill(0);
    for (let place = this.count - 1; place > 0; place--) {
      const above = parent[place];
      if (kind[place] === SEGMENT) {
        if (seg[place] === UNUSED) measured[above] = 1;
        else if (seg[place] === UNKNOWN && kind[above] === INSTANCE) untold[above] = 1;
        continue;
      }
      if (kind[place] === INSTANCE && measured[place]) untold[place] = 0;
      if (kind[place] === GPU && extra[place].used !== undefined) untold[place] = extra[place].used === null ? 1 : 0;
      if (untold[place]) untold[above] = 1;
    }
  }

  // Ordinal of the first segment at or after each place; one more entry for the end.
  #firstSegments() {
    const first = new Int32Array(this.count + 1);
    let ordinal = 0;
    for (let place = 0; place < this.count; place++) {
      first[place] = ordinal;
      if (this.kind[place] === SEGMENT) ordinal += 1;
    }
    first[this.count] = ordinal;
    return first;
  }

  #shortLabel(place) {
    const kind = this.kind[place];
    const label = this.labels[place];
    if (kind === CLUSTER) return kindWord("cluster_name");
    if (kind === TENANT && this.ids[place] === "shared") return kindWord("shared");
    if (kind !== GPU) return label || this.ids[place];
    const node = this.labels[this.parent[place]];
    const rest = label.startsWith(`${node}/`) ? label.slice(node.length + 1) : label;
    return /^[\d.:]+$/.test(rest) ? `GPU ${rest}` : rest;
  }

  #key(place) {
    const kind = KINDS[this.kind[place]];
    if (this.kind[place] === TENANT) return `tenant:${this.ids[this.parent[place]]}~${this.ids[place]}`;
    if (this.kind[place] === INSTANCE) return `instance:${this.ids[this.ancestor(place, GPU)]}~${this.ids[place]}`;
    return place === 0 ? "" : `${kind}:${this.ids[place]}`;
  }

  // Place of the key, -1 where there is none. Segments have no key.
  find(key) {
    if (this.#byKey === null) {
      this.#byKey = new Map();
      for (let place = this.count - 1; place >= 0; place--) {
        if (this.kind[place] !== SEGMENT) this.#byKey.set(this.keys[place], place);
      }
    }
    return this.#byKey.get(key) ?? -1;
  }

  // The nearest place at or above `place` of that kind, -1 where there is none.
  ancestor(place, kind) {
    let at = place;
    while (at >= 0 && this.kind[at] !== kind) at = this.parent[at];
    return at;
  }

  // The devices that figures are about: GPUs, and processors only where there is no GPU.
  devices() {
    if (this.#devices === null) {
      const all = [];
      for (let place = 0; place < this.count; place++) if (this.kind[place] === GPU) all.push(place);
      const gpus = all.filter((place) => !this.extra[place].cpu);
      this.#devices = gpus.length > 0 ? gpus : all;
    }
    return this.#devices;
  }

  // The device where the most can still be placed in one piece, the first of equals; -1 where nothing can be.
  hole() {
    if (this.#hole === null) {
      this.#hole = -1;
      let most = 0;
      for (const place of this.devices()) {
        const left = this.extra[place].schedulable ?? 0;
        if (left > most) [most, this.#hole] = [left, place];
      }
    }
    return this.#hole;
  }

  // Places from the root to `place`.
  path(place) {
    const found = [];
    for (let at = place; at >= 0; at = this.parent[at]) found.unshift(at);
    return found;
  }

  // Share of a GPU that is in use; null where nobody tells, and where a tenant sees no more than its own.
  useOf(place) {
    if (this.size[place] === 0 || this.untold[place] || this.scope.startsWith("tenant:")) return null;
    return this.used[place] / this.size[place];
  }

  // MiB in use at or below `place`; null where nobody tells.
  inUse(place) {
    return this.untold[place] ? null : this.used[place];
  }

  // What a segment is called: its kind, or more where more is told.
  segmentOf(place) {
    return this.extra[place].of === "kv" ? "kv_unknown" : SEGMENTS[this.seg[place]];
  }

  children(place) {
    const found = [];
    for (let child = place + 1; child < this.end[place]; child = this.end[child]) found.push(child);
    return found;
  }

  // A later keyframe of the same topology: figures alone are new.
  refresh(frame) {
    frame.nodes.forEach((node, place) => (this.extra[place] = node[4] ?? {}));
    this.values.set(frame.values);
    this.seq = frame.seq;
    this.at = frame.at;
    this.#keyframe();
  }

  // Sums from `values`, after they have changed.
  settle() {
    const { sum, used, live, extra, segments, values, seg, parent, kind, size } = this;
    sum.fill(0);
    used.fill(0);
    for (let ordinal = 0; ordinal < segments.length; ordinal++) {
      const place = segments[ordinal];
      const value = values[ordinal];
      sum[place] = value;
      if (!NOT_IN_USE.has(seg[place]) && (seg[place] !== UNKNOWN || kind[parent[place]] !== GPU)) used[place] = value;
    }
    for (let place = this.count - 1; place > 0; place--) {
      if (kind[place] === GPU) {
        if (size[place] > sum[place]) sum[place] = size[place];
        // What its driver said, and since then what its segments have changed by.
        const told = extra[place].used;
        if (Number.isNaN(live[place])) live[place] = used[place];
        if (typeof told === "number") used[place] = Math.max(0, told + used[place] - live[place]);
      }
      sum[parent[place]] += sum[place];
      used[parent[place]] += used[place];
    }
  }

  // MiB by segment below `place`, added to what was found before.
  totals(place, found = new Float64Array(SEGMENTS.length)) {
    const last = this.firstSegment[this.end[place]];
    for (let ordinal = this.firstSegment[place]; ordinal < last; ordinal++) {
      found[this.seg[this.segments[ordinal]]] += this.values[ordinal];
    }
    return found;
  }

  // Share of an instance's KV cache in use; null where nobody tells.
  kvShare(place) {
    const last = this.firstSegment[this.end[place]];
    let used = 0;
    let free = 0;
    for (let ordinal = this.firstSegment[place]; ordinal < last; ordinal++) {
      const seg = this.seg[this.segments[ordinal]];
      if (seg === KV_USED) used += this.values[ordinal];
      else if (seg === KV_FREE) free += this.values[ordinal];
    }
    return used + free > 0 ? used / (used + free) : (this.extra[place].kv ?? null);
  }
}
