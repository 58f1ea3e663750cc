// One GPU's memory over time, as stacked areas; the same figures as a table below.
import { ask, Denied } from "./ask.js";
import { SEGMENTS } from "./tree.js";
import { clock, localTime, memory, say, segmentWord } from "./words.js";

const REFRESH_MS = { "15m": 15000, "1h": 30000, "6h": 60000, "24h": 120000 };
const TABLE_ROWS = 60;
// From the bottom up. Where nothing was recorded there is no area at all, not even of what is free.
const STACK = ["weights", "lora", "activations", "kv_used", "other", "reserved", "kv_free", "unused", "unknown", "free"];

export class History {
  constructor(card, address, { onDenied }) {
    this.card = card;
    this.address = address;
    this.onDenied = onDenied;
    this.chart = card.querySelector(".flame-history");
    this.title = card.querySelector("h2");
    this.blank = card.querySelector("[data-no-history]");
    this.body = card.querySelector("tbody");
    this.range = "15m";
    this.device = null;
    this.told = null;
    this.marked = 0;
    this.timer = 0;
    this.asked = 0;
    for (const button of card.querySelectorAll("[data-range]")) {
      button.addEventListener("click", () => this.#choose(button.dataset.range));
    }
    let wide = 0;
    // How many times of day fit below the chart hangs on its width.
    new ResizeObserver(() => {
      if (card.clientWidth === wide) return;
      wide = card.clientWidth;
      if (this.told && !this.chart.hidden) this.#draw();
    }).observe(card);
    card.querySelector("details").addEventListener("toggle", () => this.#fillTable());
    document.addEventListener("visibilitychange", () => (document.hidden ? clearTimeout(this.timer) : this.#load()));
  }

  // Each topology comes by here: the chart is drawn anew for another theme alone.
  setPalette(palette) {
    if (palette === this.palette) return;
    this.palette = palette;
    if (this.told && !this.chart.hidden) this.#draw();
  }

  // `device` is its id, `label` what the heading says.
  follow(device, label) {
    if (device === this.device) return;
    this.device = device;
    this.told = null;
    this.title.textContent = label;
    this.card.querySelector("[data-over-time]").hidden = false; // until now the title itself said so
    this.card.classList.add("loading");
    this.#load();
  }

  // A line at that moment, milliseconds; 0: none.
  mark(at) {
    if (at === this.marked) return;
    this.marked = at;
    if (this.told && !this.chart.hidden) window.Plotly.relayout(this.chart, { shapes: this.#shapes() });
  }

  #choose(range) {
    this.range = range;
    for (const button of this.card.querySelectorAll("[data-range]")) {
      button.setAttribute("aria-pressed", String(button.dataset.range === range));
    }
    this.#load();
  }

  async #load() {
    clearTimeout(this.timer);
    if (!this.device || document.hidden) return;
    const turn = ++this.asked;
    try {
      const asked = new URLSearchParams({ device: this.device, range: this.range });
      const answer = await ask(`${this.address}?${asked}`);
      if (turn !== this.asked) return;
      if (!answer.ok) throw new Error(answer.headers.get("X-Request-ID") ?? String(answer.status));
      const told = await answer.json();
      if (turn !== this.asked) return;
      this.told = told;
      this.#show("");
    } catch (error) {
      if (error instanceof Denied) this.onDenied();
      if (turn !== this.asked || error instanceof Denied) return;
      this.told = null;
      this.#show(say("history_failed", { why: error.message }));
    }
    this.timer = setTimeout(() => this.#load(), REFRESH_MS[this.range]);
  }

  #names() {
    const { series } = this.told;
    return STACK.filter((name) => series[name]?.some((value) => value)); // nothing but zeros would be a line without use
  }

  #show(trouble) {
    this.card.classList.remove("loading");
    const empty = !this.told || !Object.values(this.told.series).some((values) => values.some((value) => value !== null));
    this.blank.hidden = !empty;
    this.chart.hidden = empty;
    this.card.querySelector("details").hidden = empty;
    this.blank.querySelector("p").textContent = trouble || say("no_history");
    if (empty) return;
    this.#draw();
    this.#fillTable();
  }

  #times() {
    const { start, step, series } = this.told;
    const count = Math.max(...Object.values(series).map((values) => values.length), 0);
    return Array.from({ length: count }, (_, at) => localTime((start + at * step) * 1000));
  }

  #draw() {
    const { palette, told } = this;
    if (!palette) return;
    const times = this.#times();
    const data = this.#names().map((name) => {
      const { base, line } = palette.styles[palette.segment[SEGMENTS.indexOf(name)]];
      return {
        type: "scatter",
        mode: "lines",
        name: segmentWord(name),
        x: times,
        y: told.series[name].map((value) => (value === null ? null : value / 1024)),
        stackgroup: "memory",
        stackgaps: "infer zero",
        line: { width: 0 },
        fillcolor: name === "free" ? base : line || base,
        hovertemplate: "%{y:.1f} GiB · %{fullData.name}<extra></extra>",
        connectgaps: false,
      };
    });
    const axis = { color: palette.dim, zeroline: false, showgrid: false, fixedrange: true, tickfont: { size: 11 } };
    const layout = {
      autosize: true,
      margin: { l: 62, r: 18, t: 14, b: 34 },
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: palette.font, size: 12, color: palette.dim },
      showlegend: false,
      hovermode: "x unified",
      separators: ".,",
      hoverlabel: { bgcolor: palette.surface, bordercolor: palette.line, font: { color: palette.text, size: 12 } },
      xaxis: { ...axis, type: "date", ticks: "outside", ticklen: 5, tickcolor: "rgba(0,0,0,0)", tickformat: this.range === "24h" || this.range === "6h" ? "%H:%M" : "%H:%M:%S", hoverformat: "%H:%M:%S", nticks: Math.max(3, Math.floor(this.chart.clientWidth / 90)), tickangle: 0 },
      yaxis: { ...axis, range: told.size ? [0, told.size / 1024] : undefined, rangemode: "tozero", ...this.#memoryTicks() },
      shapes: this.#shapes(),
    };
    window.Plotly.react(this.chart, data, layout, { displayModeBar: false, responsive: true });
  }

  // Quarters of the GPU's size, the unit on the topmost alone.
  #memoryTicks() {
    const { size } = this.told;
    if (!size) return { ticksuffix: " GiB", nticks: 5 };
    const values = [0, 0.25, 0.5, 0.75, 1].map((part) => (part * size) / 1024);
    const texts = values.map((value, at) => `${Math.round(value)}${at === 4 ? " GiB" : ""}`);
    return { tickmode: "array", tickvals: values, ticktext: texts, ticks: "outside", ticklen: 5, tickcolor: "rgba(0,0,0,0)" };
  }

  #shapes() {
    if (!this.marked) return [];
    const at = localTime(this.marked);
    const line = { color: this.palette?.text, width: 1.5, dash: "dot" };
    return [{ type: "line", xref: "x", yref: "paper", x0: at, x1: at, y0: 0, y1: 1, line }];
  }

  #fillTable() {
    const details = this.card.querySelector("details");
    if (!details.open || !this.told) return;
    const { start, step, series } = this.told;
    const names = this.#names();
    const head = this.card.querySelector("thead tr");
    head.replaceChildren(...[say("time"), ...names.map(segmentWord)].map((text, at) => {
      const cell = document.createElement("th");
      cell.scope = "col";
      cell.textContent = text;
      if (at) cell.className = "num";
      return cell;
    }));
    const count = this.#times().length;
    const every = Math.max(1, Math.ceil(count / TABLE_ROWS));
    const rows = [];
    for (let at = count - 1; at >= 0; at -= every) {
      const row = document.createElement("tr");
      const texts = [clock((start + at * step) * 1000), ...names.map((name) => {
        const value = series[name][at];
        return value === null || value === undefined ? say("unknown") : memory(value);
      })];
      texts.forEach((text, column) => {
        const cell = document.createElement("td");
        cell.textContent = text;
        if (column) cell.className = "num";
        row.append(cell);
      });
      rows.push(row);
    }
    this.body.replaceChildren(...rows);
  }
}
