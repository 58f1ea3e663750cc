// Plotly draws the axes and lets people zoom into bytes; rectangles are the canvas's. Drawn anew only on another scope,
// theme or size: plotly takes longer than a whole wall does.
import { memory } from "./words.js";

const POWERS = 2;

const escapeLabel = (text) => text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");

// "8.0 GiB" -> "8 GiB", "1.50 TiB" -> "1.5 TiB"
const rounded = (text) => text.replace(/(\.\d*?)0+ /, "$1 ").replace(". ", " ");

// Round numbers of MiB between two, about one each `room` pixels.
export function ticks(from, to, width, room = 112) {
  const wanted = ((to - from) / Math.max(1, width)) * room;
  const step = POWERS ** Math.max(0, Math.ceil(Math.log2(Math.max(wanted, 1e-9))));
  const values = [];
  for (let value = Math.ceil(from / step) * step; value <= to + step * 1e-6; value += step) values.push(value);
  return { values, texts: values.map((value) => (value === 0 ? "0" : rounded(memory(value)))) };
}

export class Axes {
  constructor(div, { onZoom }) {
    this.div = div;
    this.onZoom = onZoom;
    this.range = null;
    this.busy = false;
    this.drawn = false;
    this.coarse = matchMedia("(pointer: coarse)").matches;
  }

  // `margins` {left, right, top, bottom}; `bands` [{label, centre}] from the top.
  show({ plan, bands, margins, width, palette, range }) {
    this.range = range;
    this.width = width;
    const [from, to] = range;
    const marks = ticks(from, to, width);
    const axis = { showgrid: false, zeroline: false, showline: false, ticks: "", color: palette.dim };
    const layout = {
      autosize: false,
      width: margins.left + width + margins.right,
      height: margins.top + plan.height + margins.bottom,
      margin: { l: margins.left, r: margins.right, t: margins.top, b: margins.bottom, pad: 0, autoexpand: false },
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: palette.font, size: 12, color: palette.dim },
      showlegend: false,
      dragmode: this.coarse ? false : "zoom",
      hovermode: false,
      xaxis: { ...axis, range: [from, to], tickmode: "array", tickvals: marks.values, ticktext: marks.texts, minallowed: 0 },
      yaxis: {
        ...axis,
        range: [plan.height, 0],
        fixedrange: true,
        ticks: "outside",
        ticklen: 8,
        tickcolor: "rgba(0,0,0,0)",
        tickmode: "array",
        tickvals: bands.map(({ centre }) => centre),
        ticktext: bands.map(({ label }) => `<b>${escapeLabel(label)}</b>`),
        tickfont: { color: palette.text, size: bands.length > 20 ? 10.5 : 12 },
        showticklabels: margins.left > 30,
      },
    };
    const config = {
      displayModeBar: false,
      responsive: false,
      showTips: false,
      doubleClick: false,
      scrollZoom: false,
      staticPlot: this.coarse,
    };
    const nothing = [{ type: "scatter", mode: "markers", x: [0], y: [0], marker: { opacity: 0 }, hoverinfo: "skip" }];
    this.busy = true;
    window.Plotly.react(this.div, nothing, layout, config).finally(() => (this.busy = false));
    if (!this.drawn) {
      this.drawn = true;
      this.div.on("plotly_relayout", (change) => this.#zoomed(change));
      this.div.on("plotly_relayouting", (change) => this.#zoomed(change, true));
    }
  }

  #zoomed(change, moving = false) {
    const from = change["xaxis.range[0]"];
    const to = change["xaxis.range[1]"];
    if (this.busy || moving || from === undefined || to === undefined) return;
    this.onZoom([Math.min(from, to), Math.max(from, to)]);
  }
}
