// Figures as text, the way dashboard/templatetags/gatehouse.py writes them.
import { fill, words } from "./words.js";

const language = document.documentElement.lang;
const BINARY = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

export function number(value, decimals) {
  return new Intl.NumberFormat(language, {
    minimumFractionDigits: decimals,
    maximumFractionDigits: decimals,
  }).format(value);
}

export function age(seconds) {
  const whole = Math.max(0, Math.floor(seconds));
  if (whole < 60) return fill(words.seconds, { n: whole });
  if (whole < 3600) return fill(words.minutes, { n: Math.floor(whole / 60) });
  if (whole < 86400) return fill(words.hours, { n: Math.floor(whole / 3600) });
  return fill(words.days, { n: Math.floor(whole / 86400) });
}

export const formats = {
  bytes(value) {
    if (value === null) return words.unknown;
    const power = value < 1024 ? 0 : Math.min(BINARY.length - 1, Math.floor(Math.log(value) / Math.log(1024)));
    const scaled = value / 1024 ** power;
    return `${number(scaled, power === 0 || scaled >= 100 ? 0 : 1)} ${BINARY[power]}`;
  },
  count: (value) => (value === null ? words.unknown : number(value, 0)),
  count_or_dash: (value) => (value === null ? "–" : number(value, 0)),
  rate: (value) => (value === null ? words.unknown : number(value, value < 10 ? 2 : value < 100 ? 1 : 0)),
  percent: (value) => (value === null ? "–" : `${number(value * 100, 1)} %`),
  dash: (value) => value || "–",
  blank: (value) => (value === null ? "" : String(value)),
  upper: (value) => String(value).toUpperCase(),
  text: (value) => String(value),
};
