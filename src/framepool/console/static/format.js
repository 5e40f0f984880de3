// Numbers as people read them. An unknown one is a dash, never a zero.

const UNKNOWN = "–";
const SIZES = ["B", "kB", "MB", "GB", "TB"];

const digits = (value) => (value >= 100 ? 0 : value >= 10 ? 1 : 2);

export const known = (value) => value !== null && value !== undefined && Number.isFinite(value);

export function count(value) {
  if (!known(value)) return UNKNOWN;
  if (Math.abs(value) >= 1e6) return `${(value / 1e6).toFixed(digits(value / 1e6))} M`;
  if (Math.abs(value) >= 1e4) return `${(value / 1e3).toFixed(digits(value / 1e3))} k`;
  return Number.isInteger(value) ? String(value) : value.toFixed(value >= 100 ? 0 : 1);
}

export function rate(value) {
  if (!known(value)) return UNKNOWN;
  return value >= 1e4 ? count(value) : value >= 100 ? value.toFixed(0) : value.toFixed(1);
}

export function bytes(value) {
  if (!known(value)) return UNKNOWN;
  let power = 0;
  let size = value;
  while (size >= 1000 && power < SIZES.length - 1) {
    size /= 1000;
    power += 1;
  }
  return `${power === 0 ? size.toFixed(0) : size.toFixed(digits(size))} ${SIZES[power]}`;
}

export function duration(nanos) {
  if (!known(nanos)) return UNKNOWN;
  if (nanos < 1e3) return `${nanos.toFixed(0)} ns`;
  if (nanos < 1e6) return `${(nanos / 1e3).toFixed(digits(nanos / 1e3))} µs`;
  if (nanos < 1e9) return `${(nanos / 1e6).toFixed(digits(nanos / 1e6))} ms`;
  return `${(nanos / 1e9).toFixed(digits(nanos / 1e9))} s`;
}

export function age(seconds) {
  if (!known(seconds)) return UNKNOWN;
  if (seconds < 90) return `${seconds.toFixed(seconds < 10 ? 1 : 0)} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  if (seconds < 129600) return `${Math.round(seconds / 3600)} h`;
  return `${Math.round(seconds / 86400)} d`;
}

/** What a consumer takes, in words. */
export const mode = ({ mode }) => ({ STREAM: "every frame", RATE_LIMITED: "fewer" })[mode] ?? "–";

export const clock = (seconds) => new Date(seconds * 1000).toLocaleTimeString([], { hour12: false });

export const value = (number) =>
  !known(number) ? UNKNOWN : Number.isInteger(number) ? String(number) : number.toPrecision(5).replace(/\.?0+$/, "");
