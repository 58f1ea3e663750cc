// The three charts of an objective, drawn from figures that the server made.
import * as plots from "../plots.js";

const { config, layoutOf } = plots;
const token = (name) => plots.token(name, document.getElementById("slo"));

function draw(id, data, layout) {
  const place = document.getElementById(id);
  if (place) window.Plotly.react(place, data, layout, config);
}

export function drawBudget(figure, tone) {
  const colour = token(tone);
  const low = Math.min(0, ...figure.y);
  const data = [
    {
      type: "scatter", mode: "lines", x: figure.x, y: figure.y,
      line: { color: colour, width: 2 },
      fill: "tozeroy", fillcolor: faded(colour, 0.14),
      hovertemplate: "%{y:.1f} %<extra></extra>",
    },
  ];
  if (figure.pace) {
    data.push({
      type: "scatter", mode: "lines", x: figure.pace.x, y: figure.pace.y, hoverinfo: "skip",
      line: { color: token("--gh-text-3"), width: 1.2, dash: "dot" },
    });
  }
  const layout = layoutOf({
    xaxis: { range: [figure.from, figure.to] },
    yaxis: { range: [low < 0 ? low * 1.08 : 0, 104], ticksuffix: " %", nticks: 5, zeroline: low < 0, zerolinecolor: token("--gh-bad") },
    hovermode: "x",
  });
  draw("slo-budget-chart", data, layout);
}

export function drawBurn(figure) {
  const colours = ["--slo-line-1", "--slo-line-2", "--slo-line-3"].map(token);
  const known = figure.lines.flatMap((line) => line.y).filter((value) => value !== null);
  const top = Math.max(30, ...known) * 1.6;
  const data = figure.lines.map((line, place) => ({
    type: "scatter", mode: "lines", name: line.name, x: figure.x,
    // A logarithmic scale has no zero: what burns less than a tenth is drawn at a tenth, and told as it is.
    y: line.y.map((value) => (value === null ? null : Math.max(0.1, value))),
    customdata: line.y,
    connectgaps: false,
    line: { color: colours[place], width: place === 1 ? 2 : 1.4 },
    hovertemplate: `${line.name} · %{customdata:.2f}×<extra></extra>`,
  }));
  const shapes = figure.thresholds.map((one) => ({
    type: "line", xref: "paper", x0: 0, x1: 1, y0: one.burn, y1: one.burn, layer: "below",
    line: { color: one.burn > 10 ? token("--gh-bad") : one.burn > 1 ? token("--gh-warn") : token("--gh-idle"), width: 1, dash: "dash" },
  }));
  const annotations = figure.thresholds.filter((one) => one.burn > 1).map((one) => ({
    xref: "paper", x: 0.01, xanchor: "left", y: Math.log10(one.burn), yanchor: "bottom", showarrow: false,
    text: `${one.burn}×`, font: { size: 11, color: one.burn > 10 ? token("--gh-bad-text") : token("--gh-warn-text") },
  }));
  const ticks = [0.1, 1, 10, 100, 1000].filter((value) => value <= Math.max(100, top));
  const layout = layoutOf({
    yaxis: { type: "log", range: [-1, Math.log10(Math.max(100, top))], tickvals: ticks, ticktext: ticks.map((value) => `${value}×`) },
    hovermode: "x unified", shapes, annotations,
  });
  draw("slo-burn-chart", data, layout);
}

export function drawHeat(figure) {
  if (!figure) return;
  const rows = figure.z.length;
  const scale = [1, 2, 3, 4].map((step) => token(`--slo-heat-${step}`));
  const data = [
    {
      type: "heatmap", x: figure.x, y: figure.buckets.map((_, place) => place + 0.5), z: figure.z.map((row) => row.map((value) => (value === null ? null : Math.log1p(value)))),
      customdata: figure.z.map((row, place) => row.map((value) => [value, figure.buckets[place]])),
      colorscale: scale.map((colour, place) => [place / 3, colour]),
      showscale: false, hoverongaps: false, xgap: 0, ygap: 0.5,
      hovertemplate: `%{x|${figure.days ? "%Y-%m-%d " : ""}%H:%M} · %{customdata[1]}<br>%{customdata[0]:,}<extra></extra>`,
    },
    curve(figure, "p50", token("--slo-median"), 1.4),
    curve(figure, "p99", token("--gh-bad"), 2),
  ];
  const shapes = figure.threshold === null ? [] : [{
    type: "line", xref: "paper", x0: 0, x1: 1, y0: figure.threshold, y1: figure.threshold,
    line: { color: token("--gh-text"), width: 1.6, dash: "dash" },
  }];
  const every = Math.max(1, Math.ceil(figure.ticks.length / 8));
  const marked = figure.ticks.filter((tick, place) => tick.at === figure.threshold || (place % every === 0 && Math.abs(tick.at - (figure.threshold ?? -9)) >= every / 2));
  const layout = layoutOf({
    margin: { l: 62, r: 14, t: 8, b: 42 },
    xaxis: { range: [figure.from, figure.to] },
    yaxis: { range: [0, rows], showgrid: false, tickvals: marked.map((tick) => tick.at), ticktext: marked.map((tick) => tick.text) },
    shapes,
  });
  draw("slo-heat-chart", data, layout);
}

function curve(figure, name, colour, width) {
  return {
    type: "scatter", mode: "lines", x: figure.x, y: figure[name], text: figure[`${name}_text`], connectgaps: false,
    line: { color: colour, width, shape: "spline", smoothing: 0.5 }, hovertemplate: `${name} · %{text}<extra></extra>`,
  };
}

// plotly reads colours itself and knows no color-mix.
function faded(colour, share) {
  const hex = colour.replace("#", "");
  const full = hex.length === 3 ? [...hex].map((one) => one + one).join("") : hex;
  const [red, green, blue] = [0, 2, 4].map((at) => parseInt(full.slice(at, at + 2), 16));
  return `rgba(${red}, ${green}, ${blue}, ${share})`;
}
