// What a rectangle is, in words: beside the pointer, and for assistive technology as one sentence.
import { GPU, INSTANCE, KINDS, NODE, SEGMENT, TENANT } from "./tree.js";
import { kindWord, memory, percent, said, say, segmentWord } from "./words.js";

// [word, value] pairs of a place.
export function facts(tree, place) {
  const kind = tree.kind[place];
  const found = [[said.memory ?? "memory", memory(tree.sum[place])], ...own(tree, place)];
  const above = (level, word) => {
    const at = tree.ancestor(place, level);
    if (at >= 0 && at !== place) found.push([said[word] ?? word, tree.short[at]]);
  };
  if (kind > INSTANCE) above(INSTANCE, "instance");
  if (kind > TENANT) above(TENANT, "tenant");
  if (kind > GPU) above(GPU, "gpu");
  if (kind > NODE) above(NODE, "node");
  return found;
}

// Those beside its memory and what it is a part of.
function own(tree, place) {
  const kind = tree.kind[place];
  const extra = tree.extra[place];
  const found = [];
  const add = (word, value) => value !== null && value !== undefined && value !== "" && found.push([said[word] ?? word, value]);
  if (kind === SEGMENT) {
    const parent = tree.parent[place];
    if (tree.sum[parent] > 0) add("share", say("of_parent", { share: percent(tree.sum[place] / tree.sum[parent]), name: tree.short[parent] }));
  } else if (kind > GPU || !tree.scope.startsWith("tenant:")) {
    add("in_use", inUse(tree, place));
  }
  // How full caches are is another thing than what is in use: an engine holds all of its cache.
  const filled = kind < INSTANCE ? tree.kvShare(place) : null;
  if (filled !== null) add("kv", percent(filled));
  if (kind === GPU) {
    add("make", extra.name);
    if (tree.size[place] === 0) add("size", said.unknown);
    add("reserved", amount(extra.reserved));
    const left = amount(extra.schedulable);
    add("schedulable", place === tree.hole() ? say("schedulable_most", { size: left }) : left);
    if (extra.health && extra.health !== "ok") add("health_word", said.health?.[extra.health] ?? extra.health);
    if (extra.stale) add("as_of_word", said.stale_device);
  }
  if (kind === INSTANCE) {
    const share = tree.kvShare(place);
    add("kv", share === null ? said.unknown : percent(share));
    add("version", extra.version);
    add("engine", extra.engine);
    add("state", said.states?.[extra.state] ?? extra.state);
  }
  return found;
}

// The same in a line, for a table that has a segment's share already.
export function details(tree, place) {
  if (tree.kind[place] === SEGMENT) return "";
  return own(tree, place).map(([word, value]) => `${word} ${value}`).join(" · ");
}

// Unknown where nobody tells, and without a share where nobody tells of how much.
function inUse(tree, place) {
  const used = tree.inUse(place);
  if (used === null) return said.unknown;
  const size = memory(used);
  if (tree.sum[place] === 0 || (tree.kind[place] === GPU && tree.size[place] === 0)) return size;
  return say("in_use_of", { size, share: percent(used / tree.sum[place]) });
}

function amount(mib) {
  if (mib === undefined) return undefined;
  return mib === null ? said.unknown : memory(mib);
}

export function nameOf(tree, place) {
  if (tree.kind[place] === SEGMENT) return segmentWord(tree.segmentOf(place));
  if (tree.kind[place] === INSTANCE) return tree.extra[place].model ?? tree.short[place];
  return tree.short[place];
}

export function sentence(tree, place) {
  const kind = kindWord(KINDS[tree.kind[place]]);
  const called = (word, name) => (name.startsWith(word) ? name : `${word} ${name}`); // not "GPU GPU 0"
  const told = facts(tree, place).map(([word, value]) => called(word, value));
  return `${called(kind, nameOf(tree, place))}: ${told.join(", ")}.`;
}

export class Tooltip {
  constructor(box) {
    this.box = box;
    this.shown = -1;
    this.at = 0;
  }

  // `x`, `y` in pixels of the box's container, `room` its width.
  show(tree, place, x, y, room) {
    if (place !== this.shown || tree.at !== this.at) {
      this.shown = place;
      this.at = tree.at;
      const title = document.createElement("strong");
      title.textContent = nameOf(tree, place);
      const list = document.createElement("dl");
      for (const [word, value] of facts(tree, place)) {
        const term = document.createElement("dt");
        term.textContent = word;
        const text = document.createElement("dd");
        text.textContent = value;
        list.append(term, text);
      }
      this.box.replaceChildren(title, list);
    }
    this.box.hidden = false;
    const width = this.box.offsetWidth;
    const left = x + 16 + width > room ? x - width - 12 : x + 16;
    this.box.style.transform = `translate(${Math.max(4, left)}px, ${y + 14}px)`;
  }

  hide() {
    this.shown = -1;
    this.box.hidden = true;
  }
}
