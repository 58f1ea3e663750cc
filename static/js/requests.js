// The live tail of the request log: newer requests come in above those that the server rendered, by the same filters.
import { denied } from "./denied.js";
import { live, showState } from "./live.js";
import { Tail, gapRow } from "./tail.js";
import { words } from "./words.js";

const wanted = JSON.parse(document.getElementById("tail-wanted").textContent);
const button = document.getElementById("tail-switch");
const pill = document.getElementById("live");
const template = document.getElementById("request-row");
const MOST_ROWS = 200;
const WIDTH = 1000;
const THINNEST = 3;
const FAILURES = ["failed", "truncated", "lost"];
const OUTCOMES = {
  unwell: (row) => row.outcome !== "success",
  failures: (row) => FAILURES.includes(row.outcome),
  faults: (row) => FAILURES.includes(row.outcome) && (row.outcome !== "failed" || row.status >= 500),
};

let body = document.getElementById("request-rows");
let off = null;
const tail = new Tail();

const number = new Intl.NumberFormat("en");
const moment = new Intl.DateTimeFormat("en-GB", {
  month: "2-digit",
  day: "2-digit",
  hour: "2-digit",
  minute: "2-digit",
  second: "2-digit",
  fractionalSecondDigits: 3,
  hourCycle: "h23",
  timeZone: words.zone,
});

function precise(ms) {
  if (ms === null) return "–";
  const show = (value, digits) =>
    value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
  if (ms >= 1000) return `${show(ms / 1000, 2)} s`;
  return `${show(ms, ms < 10 ? 2 : ms < 100 ? 1 : 0)} ms`;
}

function arrived(seconds) {
  const parts = Object.fromEntries(moment.formatToParts(seconds * 1000).map(({ type, value }) => [type, value]));
  return `${parts.month}-${parts.day} ${parts.hour}:${parts.minute}:${parts.second}.${parts.fractionalSecond}`;
}

function isWanted(row) {
  for (const name of ["key", "model", "version", "instance", "code", "door", "api"]) {
    if (wanted[name] && row[name] !== wanted[name]) return false;
  }
  if (wanted.outcome && !(OUTCOMES[wanted.outcome] ?? ((one) => one.outcome === wanted.outcome))(row)) return false;
  if (wanted.status && row.status !== wanted.status) return false;
  if (wanted.class && Math.floor(row.status / 100) !== wanted.class) return false;
  if (wanted.slow && !(row.ttft > wanted.slow[0] || row.duration > wanted.slow[1])) return false;
  return Object.entries(wanted.min).every(([name, least]) => least === null || row[name] > least);
}

function drawStages(svg, row) {
  const whole = Math.max(row.duration ?? 0, 1);
  svg.setAttribute(
    "aria-label",
    row.stages.map(([name, , ms]) => `${words.words.stage[name] ?? name} ${precise(ms)}`).join(", ") || words.unknown,
  );
  for (const [name, start, ms] of row.stages) {
    const rect = document.createElementNS("http://www.w3.org/2000/svg", "rect");
    const width = Math.max(THINNEST, (ms / whole) * WIDTH);
    rect.setAttribute("class", `stage-${name}`);
    rect.setAttribute("x", Math.min((start / whole) * WIDTH, WIDTH - width));
    rect.setAttribute("width", width);
    rect.setAttribute("height", 10);
    svg.append(rect);
  }
}

function build(row) {
  const made = template.content.firstElementChild.cloneNode(true);
  const slot = (name) => made.querySelector(`[data-f="${name}"]`);
  const put = (name, text) => {
    const found = slot(name);
    if (found) found.textContent = text;
  };
  put("at", arrived(row.at));
  slot("at").href = wanted.address.replace("00000000-0000-0000-0000-000000000000", row.id);
  put("id", `${row.id.slice(0, 13)}…`);
  put("tenant", row.tenant_name || "–");
  put("model", row.model);
  put("api", row.streamed ? `${row.api} · ${wanted.streamed}` : row.api);
  put("key", row.key_name || "–");
  put("outcome", words.words.outcome[row.outcome] ?? row.outcome);
  slot("outcome").className = `pill ${words.tones[row.outcome] ?? "idle"}`;
  put("error", row.outcome === "success" && row.status === 200 ? "" : `${row.status} ${row.code}`);
  put("input", row.input === null ? "–" : number.format(row.input));
  put("output", row.output === null ? "–" : number.format(row.output));
  for (const name of ["ttft", "tpot", "duration"]) put(name, precise(row[name]));
  put("cost", row.cost_text);
  drawStages(made.querySelector("svg"), row);
  return made;
}

function onFrame(frame) {
  if (!tail.began) {
    // Those of the first frame that the server has rendered are there already.
    const shown = new Set([...body.querySelectorAll("a.main")].map((link) => link.getAttribute("href")));
    const addressOf = (row) => wanted.address.replace(/0{8}-0{4}-0{4}-0{4}-0{12}/, row.id);
    tail.skip(frame.rows.filter((row) => shown.has(addressOf(row))).map((row) => row.id));
  }
  const { fresh, gap } = tail.take(frame);
  if (gap) body.prepend(gapRow(template.content.firstElementChild.children.length));
  for (const row of fresh) if (isWanted(row)) body.prepend(build(row));
  while (body.children.length > MOST_ROWS) body.lastElementChild.remove();
}

function onState(state, at, why) {
  showState(pill, state, at, why);
  denied(state, why);
}

function turn(on) {
  button.setAttribute("aria-pressed", String(on));
  pill.hidden = !on;
  off?.();
  off = on ? live("reqlog", wanted.scope, { onFrame, onState }) : null;
}

if (body) button.addEventListener("click", () => turn(off === null));
else button.hidden = true;
