// What stays bright: matches of the search, or what belongs with what the pointer is on. All else is dimmed.
import { GPU, INSTANCE, NODE, SEGMENT, SEGMENTS, TENANT } from "./tree.js";

// Keeps the places that `chosen` names, all below them, and all above them.
function keep(tree, chosen) {
  const dimmed = new Uint8Array(tree.count).fill(1);
  let any = false;
  for (let place = 0; place < tree.count; place++) {
    if (!dimmed[place] || !chosen(place)) continue;
    any = true;
    dimmed.fill(0, place, tree.end[place]);
    for (let above = tree.parent[place]; above >= 0 && dimmed[above]; above = tree.parent[above]) dimmed[above] = 0;
  }
  return { dimmed, any };
}

// By tenant, model or node, as letters of its name.
export function matching(tree, text) {
  const wanted = text.trim().toLowerCase();
  if (!wanted) return { dimmed: null, any: true, count: 0 };
  let count = 0;
  const has = (value) => typeof value === "string" && value.toLowerCase().includes(wanted);
  const found = keep(tree, (place) => {
    const kind = tree.kind[place];
    const hit =
      ((kind === NODE || kind === TENANT) && has(tree.short[place])) ||
      (kind === GPU && has(tree.labels[place])) ||
      (kind === TENANT && has(tree.extra[place].slug)) ||
      (kind === INSTANCE && (has(tree.extra[place].model) || has(tree.short[place])));
    if (hit) count += 1;
    return hit;
  });
  return { ...found, count };
}

// What a place has in common with others: a tenant's memory everywhere, a model's instances everywhere.
export function kinOf(tree, place) {
  const kind = tree.kind[place];
  if (kind === TENANT) return (at) => tree.kind[at] === TENANT && tree.ids[at] === tree.ids[place];
  if (kind === INSTANCE) {
    const { model } = tree.extra[place];
    return (at) => tree.kind[at] === INSTANCE && tree.extra[at].model === model;
  }
  return null;
}

export function kin(tree, place) {
  const belongs = kinOf(tree, place);
  return belongs === null ? null : keep(tree, belongs).dimmed;
}

// Of a legend's entry: one kind of segment, or one tenant.
export function ofLegend(tree, key, byTenant) {
  if (byTenant) return keep(tree, (place) => tree.kind[place] === TENANT && tree.ids[place] === key).dimmed;
  const seg = SEGMENTS.indexOf(key);
  const dimmed = new Uint8Array(tree.count);
  for (let place = 0; place < tree.count; place++) {
    if (tree.kind[place] === SEGMENT && tree.seg[place] !== seg) dimmed[place] = 1;
  }
  return dimmed;
}
