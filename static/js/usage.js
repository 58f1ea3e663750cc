// Draws the usage figure in the theme's colours, and again when the theme changes.
import { config, layoutOf, token } from "./plots.js";

const chart = document.getElementById("usage-chart");
const running = chart?.hasAttribute("data-running") ?? false;
const figure = chart && JSON.parse(document.getElementById("usage-figure").textContent);

function draw() {
  const data = figure.data.map((trace) => ({
    ...trace,
    // The running bucket is not over yet, and looks it.
    marker: {
      color: token(`--gh-series-${trace.meta.slot}`),
      opacity: trace.x.map((_, place) => (running && place === trace.x.length - 1 ? 0.5 : 1)),
    },
  }));
  const layout = layoutOf({
    ...figure.layout,
    margin: { l: 64, r: 20, t: 16, b: 36 },
    yaxis: { tickformat: "~s", rangemode: "tozero", automargin: true },
  });
  window.Plotly.react(chart, data, layout, config);
}

if (chart) {
  draw();
  document.addEventListener("gatehouse:theme", draw);
}
