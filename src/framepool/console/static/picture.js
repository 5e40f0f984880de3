// Pictures: values out of a binary message, and values onto a canvas.

import { STEPS, table } from "./colours.js";

const TYPES = { uint8: Uint8Array, uint16: Uint16Array, float32: Float32Array };
const ALIGNMENT = 8;
const LARGEST = { uint8: 255, uint16: 65535 };
export const BINS = 128;

const scratch = document.createElement("canvas");

/** The pictures of a message: `{stream, seq, region, step, rows, columns, colours, type, …, values}` each. */
export function decode(buffer) {
  const pictures = [];
  let at = 0;
  while (at < buffer.byteLength) {
    const length = new DataView(buffer).getUint32(at, true);
    const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, at + 4, length)));
    const { type, rows, columns, colours } = header;
    const values = new TYPES[type](buffer, at + 4 + length, rows * columns * colours);
    pictures.push({ ...header, values });
    at += 4 + length + Math.ceil(values.byteLength / ALIGNMENT) * ALIGNMENT;
  }
  return pictures;
}

/** The least and the greatest value and how often values fall between them; nothing of what is not a number. */
export function measure(picture) {
  const { values } = picture;
  let least = Infinity;
  let most = -Infinity;
  for (const value of values) {
    if (value < least) least = value;
    if (value > most) most = value;
  }
  if (!(least <= most)) return { least: 0, most: 1, bins: new Float64Array(BINS), total: 0 };
  const bins = new Float64Array(BINS);
  const scale = most > least ? (BINS - 1e-9) / (most - least) : 0;
  let total = 0;
  for (const value of values) {
    const bin = Math.floor((value - least) * scale);
    if (bin >= 0 && bin < BINS) {
      bins[bin] += 1;
      total += 1;
    }
  }
  return { least, most, bins, total };
}

/** The value below which a share of all values lies, as the histogram tells. */
function quantile({ least, most, bins, total }, share) {
  let below = 0;
  for (let bin = 0; bin < bins.length; bin += 1) {
    below += bins[bin];
    if (below >= share * total) return least + ((bin + (share > 0.5 ? 1 : 0)) / bins.length) * (most - least);
  }
  return most;
}

/** The limits between which values are spread over the colours. */
export function limits(picture, measured, stretch, manual) {
  if (stretch === "manual" && manual) return manual;
  if (stretch === "full" && LARGEST[picture.type]) return [0, LARGEST[picture.type]];
  if (stretch === "minmax" || stretch === "full") return [measured.least, measured.most];
  const low = quantile(measured, 0.005);
  const high = quantile(measured, 0.9985);
  return high > low ? [low, high] : [measured.least, measured.most];
}

/** Moves limits a part of the way, so that a steady picture does not flicker. */
export function eased(before, now, part = 0.25) {
  if (!before) return now;
  const span = Math.abs(now[1] - now[0]) || 1;
  const far = Math.abs(now[0] - before[0]) + Math.abs(now[1] - before[1]) > 2 * span;
  return far ? now : before.map((value, index) => value + (now[index] - value) * part);
}

/** A canvas of the picture's own size with the values in colours. It is the same one each time. */
export function paint(picture, [low, high], map, scale) {
  const { rows, columns, colours, values } = picture;
  scratch.width = Math.max(1, columns);
  scratch.height = Math.max(1, rows);
  const context = scratch.getContext("2d");
  const image = context.createImageData(scratch.width, scratch.height);
  const pixels = new Uint32Array(image.data.buffer);
  if (colours >= 3) {
    for (let at = 0, from = 0; at < pixels.length; at += 1, from += colours) {
      image.data.set([values[from], values[from + 1], values[from + 2], 255], 4 * at);
    }
  } else {
    const shades = table(map, scale);
    const factor = high > low ? STEPS / (high - low) : 0;
    for (let at = 0; at < values.length; at += 1) {
      const shade = ((values[at] - low) * factor) | 0; // not a number is 0: the darkest
      pixels[at] = shades[shade < 0 ? 0 : shade >= STEPS ? STEPS - 1 : shade];
    }
  }
  context.putImageData(image, 0, 0);
  return scratch;
}

/** Fits a canvas' pixels to its place on the screen; says whether they changed. */
export function fit(canvas) {
  const ratio = Math.min(devicePixelRatio || 1, 2);
  const width = Math.max(1, Math.round(canvas.clientWidth * ratio));
  const height = Math.max(1, Math.round(canvas.clientHeight * ratio));
  if (canvas.width === width && canvas.height === height) return false;
  canvas.width = width;
  canvas.height = height;
  return true;
}

/** Draws a painted picture into a canvas, whole and centred, with the pixels of a small one as squares. */
export function place(canvas, painted) {
  fit(canvas);
  const context = canvas.getContext("2d");
  const scale = Math.min(canvas.width / painted.width, canvas.height / painted.height);
  const width = painted.width * scale;
  const height = Math.max(painted.height * scale, painted.height === 1 ? canvas.height * 0.25 : 0);
  context.clearRect(0, 0, canvas.width, canvas.height);
  context.imageSmoothingEnabled = scale < 3;
  context.drawImage(painted, (canvas.width - width) / 2, (canvas.height - height) / 2, width, height);
}
