// Colour maps, each from a few colours between which it runs evenly.

const STOPS = {
  grey: ["000000", "ffffff"],
  viridis: ["440154", "472d7b", "3b528b", "2c728e", "21918c", "28ae80", "5ec962", "addc30", "fde725"],
  inferno: ["000004", "210c4a", "57106e", "8a226a", "bc3754", "e45a31", "f98c0a", "f9c932", "fcffa4"],
  magma: ["000004", "1d1147", "51127c", "832681", "b73779", "e75263", "fc8961", "fec488", "fcfdbf"],
  turbo: ["30123b", "4662d7", "36aaf9", "1ae4b6", "72fe5e", "c8ef34", "faba39", "f66b19", "ca2a04", "7a0403"],
  ice: ["02040f", "0f1f4b", "17427f", "1f6fa8", "3f9dc4", "7bc4d8", "bfe3ea", "f4fbfd"],
  signed: ["053061", "2166ac", "4393c3", "92c5de", "f7f7f7", "f4a582", "d6604d", "b2182b", "67001f"],
};

export const NAMES = Object.keys(STOPS);
export const STEPS = 1024;

const tables = new Map();
const littleEndian = new Uint8Array(new Uint32Array([1]).buffer)[0] === 1;

const parse = (hex) => [0, 2, 4].map((at) => parseInt(hex.slice(at, at + 2), 16));

function pack(red, green, blue) {
  return littleEndian
    ? ((255 << 24) | (blue << 16) | (green << 8) | red) >>> 0
    : ((red << 24) | (green << 16) | (blue << 8) | 255) >>> 0;
}

/** The colours of a map from dark to bright as pixels, with the brightness bent by a scale. */
export function table(name, scale) {
  const key = `${name} ${scale}`;
  if (tables.has(key)) return tables.get(key);
  const stops = STOPS[name].map(parse);
  const found = new Uint32Array(STEPS);
  for (let index = 0; index < STEPS; index += 1) {
    const at = bend(index / (STEPS - 1), scale) * (stops.length - 1);
    const low = Math.min(Math.floor(at), stops.length - 2);
    const mixed = stops[low].map((from, part) => Math.round(from + (stops[low + 1][part] - from) * (at - low)));
    found[index] = pack(...mixed);
  }
  tables.set(key, found);
  return found;
}

export const SCALES = ["linear", "root", "log"];

function bend(value, scale) {
  if (scale === "root") return Math.sqrt(value);
  if (scale === "log") return Math.log1p(value * 255) / Math.log(256);
  return value;
}
