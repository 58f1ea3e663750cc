// Figures above the wall, the legend with amounts, and the instances whose KV cache is fullest.
import {
  ACTIVATIONS,
  FREE,
  GPU,
  INSTANCE,
  KV_FREE,
  KV_USED,
  LORA,
  NODE,
  OTHER,
  RESERVED,
  SEGMENTS,
  TENANT,
  UNKNOWN,
  UNUSED,
  WEIGHTS,
} from "./tree.js";
import { memory, memoryParts, percent, say, segmentWord } from "./words.js";

const PRESSURE = 0.92;
const TIGHTEST = 6;
const LEGEND_TENANTS = 9;
const LEGEND = [WEIGHTS, KV_USED, ACTIVATIONS, LORA, OTHER, RESERVED, KV_FREE, UNUSED, UNKNOWN, FREE];

// What the figures say of a tree; amounts in MiB. `reserved` is what instances claim, whatever they use.
export function summarise(tree) {
  const devices = tree.devices();
  const totals = new Float64Array(SEGMENTS.length);
  let size = 0;
  for (const place of devices) {
    size += tree.sum[place];
    tree.totals(place, totals);
  }
  const found = {
    size,
    reserved: 0,
    kvUsed: totals[KV_USED],
    kv: totals[KV_USED] + totals[KV_FREE],
    weights: totals[WEIGHTS],
    used: null,
    untold: 0,
    schedulable: null,
    instances: 0,
    pressed: 0,
    tightest: [],
  };
  const fullest = new Map(); // by instance: on several GPUs it is still one, as tight as the tightest of them
  for (const gpu of devices) {
    const used = tree.inUse(gpu);
    if (used === null) found.untold += 1;
    else found.used = (found.used ?? 0) + used;
    const { schedulable } = tree.extra[gpu];
    if (schedulable !== null && schedulable !== undefined) {
      found.schedulable = (found.schedulable ?? 0) + schedulable;
    }
    for (let place = gpu + 1; place < tree.end[gpu]; place++) {
      if (tree.kind[place] !== INSTANCE) continue;
      found.reserved += tree.extra[place].claimed ?? tree.sum[place];
      const share = tree.kvShare(place);
      const before = fullest.get(tree.ids[place]);
      if (before === undefined || (share ?? -1) > (before[0] ?? -1)) fullest.set(tree.ids[place], [share, place]);
    }
  }
  found.instances = fullest.size;
  for (const told of fullest.values()) {
    if (told[0] === null) continue;
    if (told[0] >= PRESSURE) found.pressed += 1;
    found.tightest.push(told);
  }
  found.tightest.sort((one, other) => other[0] - one[0]);
  found.tightest.length = Math.min(TIGHTEST, found.tightest.length);
  return found;
}

const written = new WeakMap();

// Reading a text from the document takes longer than knowing what was written.
function setText(node, text) {
  if (!node || written.get(node) === text) return;
  node.textContent = text;
  written.set(node, text);
}

export class Figures {
  // `onChoose(key)`: of the device with the largest hole.
  constructor(page, onChoose) {
    this.parts = new Map();
    this.hole = page.querySelector('[data-part="hole"]');
    this.hole.addEventListener("click", () => onChoose(this.hole.dataset.key));
    for (const figure of page.querySelectorAll("[data-figure]")) {
      const [b, unit, meter] = ["b", ".value span", "progress"].map((part) => figure.querySelector(part));
      const under = figure.querySelector(".under [data-text]") ?? figure.querySelector(".under");
      this.parts.set(figure.dataset.figure, { figure, b, unit, under, meter });
    }
  }

  #fill(name, mib, whole, under, share) {
    const parts = this.parts.get(name);
    if (!parts) return;
    const [value, unit] = mib === null ? [say("unknown"), ""] : memoryParts(mib, whole ?? mib);
    setText(parts.b, value);
    setText(parts.unit, mib === null ? "" : whole === null || whole === undefined ? unit : `/ ${memoryParts(whole)[0]} ${unit}`);
    setText(parts.under, under);
    const { meter } = parts;
    if (meter && Math.abs(meter.value - share) > 0.0005) meter.value = share;
  }

  show(tree, found) {
    const share = (part, whole) => (whole > 0 ? part / whole : 0);
    const reserved = share(found.reserved, found.size);
    // Reserved, used and schedulable are three numbers: what is claimed may be idle, and what is in use unclaimed.
    const use = found.used === null ? "no_use" : found.untold ? "in_use_at_least" : "in_use_now";
    const besides = say(use, { size: memory(found.used ?? 0) });
    this.#fill("reserved", found.reserved, found.size, `${percent(reserved)} · ${besides}`, reserved);
    const kvShare = share(found.kvUsed, found.kv);
    this.#fill("kv", found.kv > 0 ? found.kvUsed : null, found.kv > 0 ? found.kv : null, found.kv > 0 ? say("of_kv", { share: percent(kvShare) }) : say("no_kv"), kvShare);
    // Instances without any weights: engines and manifests that do not tell.
    const weights = found.weights > 0 || found.instances === 0 ? found.weights : null;
    const weightShare = share(weights ?? 0, found.size);
    this.#fill("weights", weights, null, weights === null ? say("no_weights") : say("of_all", { share: percent(weightShare) }), weightShare);
    const hole = tree.hole();
    const told = hole < 0 ? say("no_hole") : say("hole", { size: memory(tree.extra[hole].schedulable) });
    this.#fill("schedulable", found.schedulable, null, told, share(found.schedulable ?? 0, found.size));
    this.#showHole(tree, hole);
    const pressure = this.parts.get("pressure");
    if (!pressure) return;
    const unknown = found.instances > 0 && found.tightest.length === 0;
    setText(pressure.b, unknown ? say("unknown") : String(found.pressed));
    setText(pressure.unit, say(found.instances === 1 ? "of_one_instance" : "of_instances", { n: found.instances }));
    pressure.figure.classList.toggle("warn", found.pressed > 0);
  }

  // Where the largest hole is: in a tenant's tree there are no devices but those that it is on.
  #showHole(tree, place) {
    this.hole.hidden = place < 0;
    if (place < 0) return;
    this.hole.dataset.key = tree.keys[place];
    const name = where(tree, place);
    setText(this.hole, name);
    this.hole.title = say("zoom_to", { name });
  }
}

// Amounts of the scope by segment, or by tenant.
export function legendOf(tree, scope, palette, byTenant, slots) {
  if (!byTenant) {
    const totals = tree.totals(scope);
    return LEGEND.filter((seg) => totals[seg] > 0).map((seg) => ({
      key: SEGMENTS[seg],
      name: segmentWord(SEGMENTS[seg]),
      amount: memory(totals[seg]),
      style: palette.styles[palette.segment[seg]],
    }));
  }
  const sums = new Map();
  const names = new Map(); // two tenants may have the same
  const add = (place) => {
    const id = tree.ids[place];
    names.set(id, tree.short[place]);
    sums.set(id, (sums.get(id) ?? 0) + tree.sum[place]);
  };
  for (let place = scope; place < tree.end[scope]; place++) if (tree.kind[place] === TENANT) add(place);
  const own = tree.ancestor(scope, TENANT);
  if (sums.size === 0 && own >= 0) add(own);
  return [...sums]
    .sort((one, other) => other[1] - one[1])
    .slice(0, LEGEND_TENANTS)
    .map(([id, mib]) => ({ key: id, name: names.get(id), amount: memory(mib), style: { base: palette.tenantColour(slots.get(id)), line: "" } }));
}

export class Legend {
  // `onOver(key or null)`: the pointer or the focus is on an entry.
  constructor(list, onOver) {
    this.list = list;
    this.entries = [];
    for (const [event, of] of [["mouseover", (target) => target.closest("button")], ["focusin", (target) => target.closest("button")]]) {
      list.addEventListener(event, (e) => onOver(of(e.target)?.dataset.key ?? null));
    }
    for (const event of ["mouseleave", "focusout"]) list.addEventListener(event, () => onOver(null));
  }

  show(entries) {
    const same = entries.length === this.entries.length && entries.every(({ key }, at) => key === this.entries[at].key);
    if (!same) {
      // Those that stay are not made anew: the focus may be on one.
      const before = new Map(this.entries.map(({ key }, at) => [key, this.list.children[at]]));
      const items = entries.map((entry) => before.get(entry.key) ?? this.#item(entry));
      for (const [at, item] of items.entries()) {
        if (this.list.children[at] !== item) this.list.insertBefore(item, this.list.children[at] ?? null);
      }
      while (this.list.children.length > items.length) this.list.lastElementChild.remove();
    }
    entries.forEach((entry, at) => {
      const button = this.list.children[at].firstElementChild;
      setText(button.childNodes[1], ` ${entry.name} `);
      setText(button.querySelector("b"), entry.amount);
      const swatch = button.firstElementChild;
      const { base, line } = entry.style;
      const background = line ? `repeating-linear-gradient(135deg, ${line} 0 1.5px, ${base} 1.5px 4px)` : base;
      if (swatch.dataset.fill !== background) {
        swatch.dataset.fill = background;
        swatch.style.background = background;
      }
    });
    this.entries = entries;
  }

  #item({ key, name }) {
    const item = document.createElement("li");
    const button = document.createElement("button");
    button.type = "button";
    button.dataset.key = key;
    const swatch = document.createElement("i");
    swatch.className = "swatch";
    swatch.setAttribute("aria-hidden", "true");
    const amount = document.createElement("b");
    button.append(swatch, ` ${name} `, amount);
    item.append(button);
    return item;
  }
}

// "sim-h100-01 · GPU 3"
export function where(tree, place) {
  const gpu = tree.ancestor(place, GPU);
  const node = tree.ancestor(place, NODE);
  return [node, gpu].filter((at) => at >= 0).map((at) => tree.short[at]).join(" · ");
}

export class Tightest {
  constructor(table, onChoose) {
    this.table = table;
    this.body = table.querySelector("tbody");
    this.body.addEventListener("click", (event) => {
      const button = event.target.closest("button[data-key]");
      if (button) onChoose(button.dataset.key);
    });
  }

  show(tree, rows) {
    while (this.body.children.length > rows.length) this.body.lastElementChild.remove();
    rows.forEach(([share, place], at) => {
      let row = this.body.children[at];
      if (!row) {
        row = this.table.querySelector("template").content.firstElementChild.cloneNode(true);
        this.body.append(row);
      }
      const button = row.querySelector("button");
      if (button.dataset.key !== tree.keys[place]) {
        button.dataset.key = tree.keys[place];
        setText(button, tree.extra[place].model ?? tree.short[place]);
        button.title = button.textContent;
      }
      setText(row.querySelector(".sub"), tree.short[tree.ancestor(place, TENANT)] ?? "");
      setText(row.querySelector("[data-gpu]"), tree.short[tree.ancestor(place, GPU)] ?? "");
      setText(row.querySelector("[data-node]"), tree.short[tree.ancestor(place, NODE)] ?? "");
      setText(row.querySelector("[data-share]"), percent(share));
      const meter = row.querySelector("progress");
      if (Math.abs(meter.value - share) > 0.0005) meter.value = share;
      const tone = `meter ${share >= PRESSURE ? "bad" : share >= 0.8 ? "used" : ""}`;
      if (meter.className !== tone) meter.className = tone;
    });
    const empty = rows.length === 0;
    this.table.hidden = empty;
    this.table.closest(".card").querySelector("[data-empty]").hidden = !empty;
  }
}
