// The wall by keyboard: arrows move a focused rectangle, Enter zooms in, Escape goes up, Space pauses.
import { CLUSTER, SEGMENT } from "./tree.js";

// The place to the right (step 1) or left (-1) in the same row: of the band, or of the next one.
function beside(plan, place, step) {
  const { tree } = plan;
  const level = tree.kind[place];
  const [first, last] = drawn(plan);
  for (let at = place + step; at >= first && at < last; at += step) {
    if (tree.kind[at] === level && tree.sum[at] > 0) return at;
  }
  return place;
}

function drawn(plan) {
  const { tree, bands } = plan;
  if (bands.length === 0) return [0, 0];
  return [bands[0].root, tree.end[bands[bands.length - 1].root]];
}

function below(plan, place) {
  const { tree } = plan;
  const crown = plan.crown.indexOf(place);
  if (crown >= 0) return plan.crown[crown + 1] ?? plan.scope; // of an ancestor's children one alone is drawn
  for (let child = place + 1; child < tree.end[place]; child = tree.end[child]) if (tree.sum[child] > 0) return child;
  return otherBand(plan, place, 1);
}

function above(plan, place) {
  const { tree } = plan;
  const up = tree.parent[place];
  const outside = up < 0 || tree.kind[up] < plan.firstLevel;
  return outside ? otherBand(plan, place, -1) : up;
}

// In the band below or above: what lies at the same byte, in the top row going down, in the segments' going up.
function otherBand(plan, place, step) {
  if (!plan.banded) return place;
  const now = plan.bands.findIndex(({ root }) => place >= root && place < plan.tree.end[root]);
  const band = plan.bands[now + step];
  if (!band) return place;
  const y = band.top + (step > 0 ? 1 : plan.bandHeight - 1);
  const found = plan.at(Math.min(plan.x[place] + 0.5, plan.tree.sum[band.root] - 0.5), y);
  return found < 0 ? place : found;
}

// A place by names, for `found` in the next tree: places are numbers of one tree alone.
export function hold(tree, place) {
  const keys = tree.path(place).filter((at) => tree.kind[at] !== SEGMENT).map((at) => tree.keys[at]);
  return { keys: keys.reverse(), segment: tree.kind[place] === SEGMENT ? tree.segmentOf(place) : "" };
}

// Where that is now, or else the nearest above it that is still there; never the whole.
export function found(tree, { keys, segment }) {
  const at = keys.findIndex((key) => key && tree.find(key) >= 0);
  if (at < 0) return -1;
  const place = tree.find(keys[at]);
  const same = (child) => tree.kind[child] === SEGMENT && tree.segmentOf(child) === segment;
  return (at === 0 && segment && tree.children(place).find(same)) || place;
}

function firstPlace(plan) {
  if (plan.bands.length === 0) return -1;
  const root = plan.bands[0].root;
  if (!plan.banded) return root;
  return root + 1 < plan.tree.end[root] ? root + 1 : -1;
}

const MOVES = {
  ArrowRight: (plan, place) => beside(plan, place, 1),
  ArrowLeft: (plan, place) => beside(plan, place, -1),
  ArrowDown: below,
  ArrowUp: above,
  Home: (plan) => firstPlace(plan),
  End: (plan, place) => {
    let at = place;
    for (let next = beside(plan, at, 1); next !== at; next = beside(plan, at, 1)) at = next;
    return at;
  },
};

// Listens on `stage`. `app`: plan(), focused(), focus(place), enter(place), up(), pause().
export function listen(stage, app) {
  stage.addEventListener("keydown", (event) => {
    if (event.altKey || event.ctrlKey || event.metaKey || event.target !== stage) return;
    const plan = app.plan();
    if (!plan) return;
    const place = app.focused();
    const move = MOVES[event.key];
    if (move) {
      app.focus(place < 0 ? firstPlace(plan) : move(plan, place));
    } else if (event.key === "Enter" && place >= 0) {
      const target = plan.tree.kind[place] === SEGMENT ? plan.tree.parent[place] : place;
      if (plan.tree.kind[target] !== CLUSTER) app.enter(target);
    } else if (event.key === " ") {
      app.pause();
    } else {
      return;
    }
    event.preventDefault();
  });
  // Escape works wherever the focus is, unless something else on the page is open and wants it: seen on the way down,
  // because whoever closes that does so before the event comes up here.
  let taken = false;
  const open = "dialog[open], details.menu[open], .nav-open, :popover-open";
  document.addEventListener("keydown", () => (taken = document.querySelector(open) !== null), true);
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || event.defaultPrevented || event.isComposing || taken) return;
    if (event.target instanceof HTMLInputElement && event.target.type === "search" && event.target.value) return;
    app.up();
  });
}
