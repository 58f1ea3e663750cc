// What every chart over time takes from the page: colours of the theme, and ticks in the reader's language.
export const config = { displayModeBar: false, responsive: true, showSendToCloud: false, displaylogo: false };

// `place`: where a page has colours of its own.
export function token(name, place = document.documentElement) {
  return getComputedStyle(place).getPropertyValue(name).trim();
}

const chineseTicks = [
  { dtickrange: [null, 86400000], value: "%H:%M\n%m-%d" },
  { dtickrange: [86400000, null], value: "%m-%d" },
];

function chinese() {
  return document.documentElement.lang.startsWith("zh");
}

export function layoutOf(extra) {
  const text = token("--gh-text-3");
  const line = token("--gh-line");
  const axis = { color: text, gridcolor: line, zeroline: false, linecolor: line, tickfont: { size: 11.5 }, fixedrange: true };
  const time = { ...axis, type: "date", showgrid: false, ...(chinese() && { tickformatstops: chineseTicks, hoverformat: "%m-%d %H:%M" }) };
  return {
    autosize: true,
    margin: { l: 52, r: 14, t: 12, b: 40 },
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: token("--gh-font"), size: 12, color: text },
    separators: ".,",
    showlegend: false,
    hoverlabel: { bgcolor: token("--gh-surface"), bordercolor: line, font: { color: token("--gh-text"), size: 12 } },
    ...extra,
    xaxis: { ...time, ...extra.xaxis },
    yaxis: { ...axis, ...extra.yaxis },
  };
}
