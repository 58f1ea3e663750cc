// Draws the usage figure in the theme's colours, and again when the theme changes.
const chart = document.getElementById("usage-chart");
const running = chart?.hasAttribute("data-running") ?? false;
const figure = chart && JSON.parse(document.getElementById("usage-figure").textContent);

function token(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function draw() {
  const text = token("--gh-text-3");
  const line = token("--gh-line");
  const axis = { color: text, gridcolor: line, zeroline: false, linecolor: line, tickfont: { size: 11.5 }, fixedrange: true };
  const chinese = document.documentElement.lang.startsWith("zh");
  const data = figure.data.map((trace) => ({
    ...trace,
    // The running bucket is not over yet, and looks it.
    marker: {
      color: token(`--gh-series-${trace.meta.slot}`),
      opacity: trace.x.map((_, place) => (running && place === trace.x.length - 1 ? 0.5 : 1)),
    },
  }));
  const layout = {
    ...figure.layout,
    autosize: true,
    margin: { l: 64, r: 20, t: 16, b: 36 },
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: token("--gh-font"), size: 12, color: text },
    separators: ".,",
    xaxis: { ...axis, type: "date", showgrid: false, ...(chinese && { tickformatstops: chineseTicks, hoverformat: "%m-%d %H:%M" }) },
    yaxis: { ...axis, tickformat: "~s", rangemode: "tozero", automargin: true },
    hoverlabel: { bgcolor: token("--gh-surface"), bordercolor: line, font: { color: token("--gh-text"), size: 12 } },
  };
  const config = { displayModeBar: false, responsive: true, showSendToCloud: false, displaylogo: false };
  window.Plotly.react(chart, data, layout, config);
}

const chineseTicks = [
  { dtickrange: [null, 86400000], value: "%H:%M\n%m-%d" },
  { dtickrange: [86400000, null], value: "%m-%d" },
];

if (chart) {
  draw();
  document.addEventListener("gatehouse:theme", draw);
}
