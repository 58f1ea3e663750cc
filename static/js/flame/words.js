// The wall's words in the reader's language (dashboard/charts/flame.py), and figures as text.
import { fill } from "../words.js";

const node = document.getElementById("flame-strings");
export const said = node ? JSON.parse(node.textContent) : { kinds: {}, segments: {} };

export const say = (name, values = {}) => fill(said[name] ?? name, values);
export const kindWord = (kind) => said.kinds[kind] ?? kind;
export const segmentWord = (segment) => said.segments[segment] ?? segment;

const formats = new Map();

// Making a format takes longer than drawing a band does.
function number(value, decimals) {
  let format = formats.get(decimals);
  if (!format) {
    const options = { minimumFractionDigits: decimals, maximumFractionDigits: decimals };
    format = new Intl.NumberFormat(document.documentElement.lang, options);
    formats.set(decimals, format);
  }
  return format.format(value);
}

const UNITS = ["MiB", "GiB", "TiB", "PiB"];

function power(mib) {
  if (mib < 1024) return 0;
  return Math.min(UNITS.length - 1, Math.floor(Math.log2(mib) / 10));
}

function scaled(mib, to) {
  const value = mib / 1024 ** to;
  return number(value, to === 0 || value >= 100 ? 0 : value >= 10 && to < 2 ? 0 : to < 2 ? 1 : 2);
}

// 16,400 -> "16 GiB": as short as a label can be.
export function memory(mib) {
  const to = power(mib);
  return `${scaled(mib, to)} ${UNITS[to]}`;
}

// [value, unit], the value in the unit that `whole` takes.
export function memoryParts(mib, whole = mib) {
  const to = power(whole);
  const value = mib / 1024 ** to;
  return [number(value, to === 0 ? 0 : value >= 100 ? 0 : to < 2 ? 1 : 2), UNITS[to]];
}

export const percent = (share, decimals = 1) => `${number(share * 100, decimals)} %`;

const zone = () => said.zone || "UTC";
let clockFormat = null;

// The time of day in the page's zone; `at` in milliseconds.
export function clock(at) {
  clockFormat ??= new Intl.DateTimeFormat(document.documentElement.lang, {
    hour: "2-digit",
    minute: "2-digit",
    second: "2-digit",
    hourCycle: "h23",
    timeZone: zone(),
  });
  return clockFormat.format(at);
}

let localFormat = null;

// "2026-01-05 09:00:00" in the page's zone: plotly shows such times as they are.
export function localTime(at) {
  localFormat ??= new Intl.DateTimeFormat("en-CA", {
    timeZone: zone(),
    year: "numeric",
    month: "2-digit",
    day: "2-digit",
    hour: "2-digit",
    minute: "2-digit",
    second: "2-digit",
    hourCycle: "h23",
  });
  const parts = Object.fromEntries(localFormat.formatToParts(at).map((part) => [part.type, part.value]));
  return `${parts.year}-${parts.month}-${parts.day} ${parts.hour}:${parts.minute}:${parts.second}`;
}
