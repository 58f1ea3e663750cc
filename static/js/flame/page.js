// The page of GPU memory: what comes in, what is chosen, and what is drawn of it.
import { isLost } from "../denied.js";
import { showState } from "../live.js";
import { words } from "../words.js";
import { Palette, tenantSlots } from "./colours.js";
import { Crumbs, deviceOf } from "./crumbs.js";
import { asCsv, asPng, asSvg, fileName, save } from "./export.js";
import { Feed, Stats } from "./feed.js";
import { Figures, Legend, legendOf, summarise, Tightest, where } from "./figures.js";
import { History } from "./history.js";
import { found, hold, listen } from "./keys.js";
import { Plan } from "./layout.js";
import { Pointing } from "./pointing.js";
import { Processes } from "./processes.js";
import { Scrub } from "./scrub.js";
import { matching, ofLegend } from "./search.js";
import { onWalk, readState, writeState } from "./state.js";
import { TreeTable } from "./table.js";
import { nameOf, sentence, Tooltip } from "./tooltip.js";
import { CLUSTER, GPU, KINDS, NODE, SEGMENT, TENANT } from "./tree.js";
import { clock, kindWord, memory, say } from "./words.js";
import { Wall } from "./wall.js";

const page = document.getElementById("flame");
const part = (name) => page.querySelector(`[data-part="${name}"]`);
const stage = part("stage");
const pill = document.getElementById("live");

const state = readState();
const stats = new Stats();
const now = { tree: null, scope: 0, path: [], plan: null, styles: null, palette: null, slots: new Map(), channel: "connecting", lost: false };
let paused = false;

const wall = new Wall(stage, {
  enter: (place) => enter(place),
  point: (place, event) => pointing.on(now.tree, place, event),
  zoomed: (zoomed) => (part("unzoom").hidden = !zoomed),
});
const tooltip = new Tooltip(part("tooltip"));
const pointing = new Pointing(stage, tooltip, (dimmed) => setDims(dimmed));
const figures = new Figures(page, (key) => goTo(key));
const legend = new Legend(part("legend"), (key) => setDims(key === null ? null : ofLegend(now.tree, key, state.by === "tenant")));
const tightest = new Tightest(part("tightest"), (key) => goTo(key));
const crumbs = new Crumbs(part("crumbs"), (key) => goTo(key, { preventScroll: true }));
const table = new TreeTable(part("table"));
const onDenied = () => deny();
const history = new History(part("history"), page.dataset.history, { onDenied });
const processes = new Processes(part("processes"), page.dataset.processes ?? "", { onDenied });
const scrub = new Scrub(part("scrub"), page.dataset.frame, {
  onFrame: (tree) => showTree(tree),
  onLive: () => backToLive(),
  onTrouble: (text) => trouble(text),
  onMove: (at, { settled = false } = {}) => goBack(at, { load: settled }),
  onDenied,
});
const feed = new Feed(page.dataset.scope, {
  stats,
  onTree: (tree) => (scrub.setClock(tree.at), showTree(tree)),
  onValues: (tree) => (scrub.setClock(tree.at), showValues(tree)),
  onState: (value, at, why) => showChannel(value, why),
});

// ---- what comes in

function showTree(tree) {
  const before = now.tree;
  now.tree = tree;
  part("loading").hidden = true;
  const any = tree.kind.includes(GPU);
  part("empty").hidden = any;
  part("filled").hidden = !any;
  part("simulated").hidden = !tree.simulated;
  part("simulated").textContent = tree.simulated === "all" ? say("simulated_all") : say("simulated_some");
  const held = wall.focused < 0 ? null : hold(before, wall.focused);
  wall.forget();
  pointing.forget();
  settleScope();
  dress();
  if (held) wall.focused = found(tree, held);
  arrange({ keepZoom: true });
  wall.repoint();
  showAmounts();
  redescribe();
  showMoment();
}

function showValues(tree) {
  now.plan.place();
  wall.follow();
  wall.repoint();
  showAmounts();
  redescribe();
  showMoment();
}

function redescribe() {
  if (wall.focused >= 0 && document.activeElement === stage) describe(wall.focused, { quiet: true });
}

function showAmounts() {
  const { tree, scope } = now;
  const found = summarise(tree);
  figures.show(tree, found);
  tightest.show(tree, found.tightest);
  legend.show(legendOf(tree, scope, now.palette, state.by === "tenant", now.slots));
  part("size").textContent = memory(tree.sum[scope]);
  table.show(tree, scope, wall.searched ?? null, state.q);
}

function showMoment() {
  const at = now.tree.at;
  const old = state.at !== "" || paused || now.channel !== "live";
  const note = document.getElementById("as-of");
  note.hidden = !old;
  if (old) note.textContent = say("as_of", { time: clock(at) });
  history.mark(state.at ? at : 0);
}

function showChannel(value, why = "") {
  now.channel = value;
  now.lost = isLost(value, why);
  const shown = value !== "denied" && (paused || state.at) ? "paused" : value;
  showState(pill, shown, null, shown === "paused" ? "" : why);
  if (shown === "live") pill.textContent = `${words.live} · ${say("every_second")}`;
  part("denied").hidden = !now.lost;
  part("allowed").hidden = now.lost;
  page.classList.toggle("stale", shown === "stale" || shown === "reconnecting");
  // Nothing comes of itself, in a suspended tenant for one, but may be looked at: as it is now, once.
  if (value === "denied" && !now.lost && !state.at) scrub.load();
  if (now.tree) showMoment();
}

// What is on the screen may no longer be seen, though the channel, which would say so, is not listened to.
function deny() {
  if (now.lost) return;
  feed.stop();
  showChannel("denied");
}

function trouble(text) {
  part("trouble").hidden = !text;
  part("loading").hidden = Boolean(now.tree || text); // nothing is on its way after that
  part("trouble").querySelector("p").textContent = text;
}

// ---- what is chosen

// The scope of the address in this tree; the nearest that is still there where it has gone.
function settleScope() {
  const { tree } = now;
  let found = state.scope ? tree.find(state.scope) : 0;
  if (found < 0) {
    for (const key of [...now.path].reverse()) {
      found = tree.find(key);
      if (found >= 0) break;
    }
  }
  now.scope = Math.max(0, found);
  now.path = tree.path(now.scope).map((place) => tree.keys[place]);
}

function setScope(place, { step = true } = {}) {
  state.scope = now.tree.keys[place];
  settleScope();
  writeState(state, { step });
  wall.forget();
  pointing.forget();
  wall.dimmed = wall.searched ?? null;
  tooltip.hide();
  arrange({ keepZoom: false });
  showAmounts();
  sayScope();
}

function sayScope() {
  const { tree, scope } = now;
  const told = { kind: kindWord(KINDS[tree.kind[scope]]), name: nameOf(tree, scope), size: memory(tree.sum[scope]) };
  const text = say("scope_now", told);
  stage.setAttribute("aria-description", text); // nothing in it has the focus yet
  part("live-text").textContent = text;
}

let enteredAt = 0;

// A click: cluster > node > GPU > tenant > instance; the scope itself goes up again. A second click comes too soon.
function enter(place) {
  const { tree, scope } = now;
  if (performance.now() - enteredAt < 350) return;
  enteredAt = performance.now();
  let target = tree.kind[place] === SEGMENT ? tree.parent[place] : place;
  if (target === scope) return;
  if (target < scope || target >= tree.end[scope]) {
    setScope(target); // an ancestor, drawn above the scope
    return;
  }
  // One level at a time: what was clicked says which way.
  const path = tree.path(target);
  const next = path[path.indexOf(scope) + 1];
  if (tree.kind[scope] === CLUSTER && tree.kind[target] >= GPU) target = wall.plan.banded ? next : target;
  else target = next;
  setScope(target);
}

function up() {
  if (now.tree && now.scope > 0) setScope(now.tree.parent[now.scope]);
}

function goTo(key, { preventScroll = false } = {}) {
  const place = now.tree.find(key);
  if (place < 0) return;
  setScope(place);
  stage.focus({ preventScroll });
}

function setPaused(value) {
  if (now.lost) return; // what was shown before is not shown again
  if (state.at) {
    backToLive();
    return;
  }
  paused = value;
  if (paused) feed.stop();
  else feed.start();
  showPause();
  showChannel(paused ? "paused" : "connecting");
}

function goBack(at, { load = true } = {}) {
  if (now.lost) return;
  feed.stop();
  paused = false;
  state.at = String(at);
  scrub.put(at);
  showPause();
  showChannel("paused");
  if (!load) return; // the slider still moves: its last place is the one that the address says
  writeState(state);
  scrub.load(at);
}

function backToLive() {
  if (now.lost) return;
  state.at = "";
  paused = false;
  scrub.forget();
  scrub.put(0);
  trouble("");
  writeState(state);
  showPause();
  showChannel("connecting");
  feed.start();
}

function showPause() {
  const away = paused || state.at !== "";
  const button = part("pause");
  button.querySelector("span").textContent = say(state.at ? "back_to_live" : paused ? "go_on" : "pause");
  for (const icon of button.querySelectorAll("[data-when]")) icon.classList.toggle("off", (icon.dataset.when === "away") !== away);
}

// ---- what is drawn

function dress() {
  const { tree } = now;
  now.palette ??= new Palette();
  now.slots = tenantSlots(tree.ids.filter((_, place) => tree.kind[place] === TENANT));
  now.styles = now.palette.stylesOf(tree, state.by === "tenant");
  wall.setLook(now.palette, now.styles);
  history.setPalette(now.palette);
  search();
}

function arrange({ keepZoom }) {
  const { tree, scope } = now;
  now.plan = new Plan(tree, scope, state.view);
  wall.show(now.plan, { keepZoom });
  crumbs.show(tree, scope);
  const gpu = deviceOf(tree, scope, history.device, GPU);
  if (gpu >= 0) history.follow(tree.ids[gpu], where(tree, gpu));
  const nodes = tree.children(0);
  const node = nodes.length === 1 ? nodes[0] : tree.ancestor(scope, NODE);
  processes.follow(node < 0 ? "" : tree.ids[node]);
}

function search() {
  const found = matching(now.tree, state.q);
  wall.searched = found.dimmed;
  wall.dimmed = found.dimmed;
  const told = found.dimmed === null ? "" : found.any ? say("matches", { n: found.count }) : say("no_match");
  if (part("matches").textContent !== told) part("matches").textContent = told; // it is read out each time that it is put
}

function setDims(dimmed) {
  const wanted = dimmed ?? wall.searched ?? null;
  if (wanted === wall.dimmed) return;
  wall.dimmed = wanted;
  wall.redraw();
}

function describe(place, { quiet = false } = {}) {
  const text = sentence(now.tree, place);
  stage.setAttribute("aria-description", text);
  if (!quiet) part("live-text").textContent = text;
}

listen(stage, {
  plan: () => now.plan,
  focused: () => wall.focused,
  focus(place) {
    if (place < 0) return;
    wall.focused = place;
    wall.pointer = null; // the tooltip is the focus's
    wall.outline();
    describe(place);
    wall.reveal(place);
    const rect = wall.rectOf(place);
    if (!rect) return;
    const top = stage.getBoundingClientRect().top + wall.margins.top + rect.top;
    if (top < 70) scrollBy({ top: top - 90 });
    else if (top + rect.height > innerHeight) scrollBy({ top: top + rect.height - innerHeight + 30 });
    tooltip.show(now.tree, place, wall.margins.left + rect.left, wall.margins.top + rect.top + rect.height - 10, stage.clientWidth);
  },
  enter: (place) => setScope(place),
  up,
  pause: () => setPaused(!paused),
});
stage.addEventListener("blur", () => {
  tooltip.hide();
  wall.focused = -1;
  wall.outline();
});

for (const group of page.querySelectorAll("[data-choose]")) {
  group.addEventListener("click", (event) => {
    const button = event.target.closest("button[data-value]");
    if (!button) return;
    state[group.dataset.choose] = button.dataset.value;
    writeState(state, { step: true });
    showChoices();
    if (!now.tree) return;
    dress();
    arrange({ keepZoom: true });
    showAmounts();
  });
}

function showChoices() {
  for (const group of page.querySelectorAll("[data-choose]")) {
    for (const button of group.querySelectorAll("button")) {
      button.setAttribute("aria-pressed", String(button.dataset.value === state[group.dataset.choose]));
    }
  }
  if (part("search").value !== state.q) part("search").value = state.q;
}

part("search").addEventListener("input", (event) => {
  state.q = event.target.value;
  writeState(state);
  if (!now.tree) return;
  search();
  wall.redraw();
  table.show(now.tree, now.scope, wall.searched ?? null, state.q);
});
part("pause").addEventListener("click", () => setPaused(!paused));
part("unzoom").addEventListener("click", () => {
  wall.zoomOut(); // which hides the button
  stage.focus({ preventScroll: true });
});
part("export").addEventListener("click", async (event) => {
  const kind = event.target.closest("button[data-export]")?.dataset.export;
  if (!kind || !now.tree) return;
  const menu = part("export").closest("details");
  menu.open = false;
  menu.querySelector("summary").focus();
  const { tree, scope } = now;
  const title = tree.path(scope).map((place) => nameOf(tree, place)).join(" / ");
  const note = `${memory(tree.sum[scope])} · ${say("as_of", { time: clock(tree.at) })}${tree.simulated ? ` · ${part("simulated").textContent}` : ""}`;
  const picture = { title, note, legend: legend.entries };
  const blob = kind === "csv" ? asCsv(tree, scope) : await (kind === "svg" ? asSvg : asPng)(wall, picture);
  save(blob, fileName(tree, scope, kind));
});

onWalk((walked) => {
  if (now.lost) return; // nor is what an older entry of the history showed
  const { at } = state;
  Object.assign(state, walked);
  showChoices();
  if (walked.at !== at) {
    if (walked.at) goBack(Number(walked.at));
    else backToLive();
  }
  if (!now.tree) return;
  settleScope();
  wall.forget();
  dress();
  arrange({ keepZoom: false });
  showAmounts();
});

document.addEventListener("gatehouse:theme", () => {
  if (!now.tree) return;
  now.palette = new Palette();
  dress();
  arrange({ keepZoom: true });
  showAmounts();
});

// For tests and for people who wonder: what updates take, and what is shown.
window.gatehouseFlame = { stats, now, wall, state };

showChoices();
showPause();
if (state.at) goBack(Number(state.at));
else feed.start();
