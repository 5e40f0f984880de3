// Live charts on uPlot, and the small lines on cards.

import uPlot from "./vendor/uPlot.js";
import { colour, el } from "./dom.js";
import { fit } from "./picture.js";

const HEIGHT = 132;

/** A chart over the last minutes. `push` adds a point, `set` begins anew. */
export class Chart {
  #plot = null;
  #data;
  #options;
  #place;
  #observer;

  /** `series`: `{name, colour, step?, fill?}`; `format` makes a value readable, `tick` one at an axis that ends at
   *  `least` or above. */
  constructor({ title, series, format, tick = format, seconds = 300, zero = true, least = 1 }) {
    this.#options = { series, format, tick, seconds, zero, least };
    this.#data = [[], ...series.map(() => [])];
    this.readings = series.map((each) => el("output", { class: "reading" }, "–"));
    const legend = series.map((each, index) =>
      el("span", { class: "series" }, el("i", { class: `ink ${each.colour}` }), each.name, " ", this.readings[index]),
    );
    this.#place = el("div", { class: "plot" });
    this.element = el("figure", { class: "chart" }, el("figcaption", {}, el("b", {}, title), ...legend), this.#place);
    this.#observer = new ResizeObserver(() => this.#resize());
    this.#observer.observe(this.#place);
  }

  get points() {
    return this.#data[0].length;
  }

  /** Begins anew with columns: times in seconds, then the values of each series. */
  set(columns) {
    this.#data = columns.map((column) => [...column]);
    this.#show();
  }

  /** Adds the values of a moment. */
  push(time, ...values) {
    const last = this.#data[0].at(-1);
    if (last !== undefined && time <= last) return;
    [time, ...values].forEach((value, index) => this.#data[index].push(value ?? null));
    const oldest = time - this.#options.seconds;
    const gone = this.#data[0].findIndex((each) => each >= oldest);
    if (gone > 0) this.#data.forEach((column) => column.splice(0, gone));
    this.#show();
  }

  /** Draws anew in the colours of the present theme. */
  restyle() {
    this.#plot?.destroy();
    this.#plot = null;
    this.#show();
  }

  destroy() {
    this.#observer.disconnect();
    this.#plot?.destroy();
  }

  #show() {
    this.element.dataset.until = this.#data[0].at(-1) ?? 0;
    this.readings.forEach((reading, index) => {
      reading.textContent = this.#options.format(this.#data[index + 1].at(-1));
    });
    if (!this.#place.clientWidth) return;
    this.#plot ??= this.#make();
    this.#plot.setData(this.#data);
  }

  #resize() {
    if (this.#plot) this.#plot.setSize({ width: this.#place.clientWidth, height: HEIGHT });
    else this.#show();
  }

  #make() {
    const { series, tick, seconds, zero, least } = this.#options;
    const axis = { stroke: colour("--muted"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false } };
    const font = `11px ${colour("--font")}`;
    return new uPlot(
      {
        width: this.#place.clientWidth,
        height: HEIGHT,
        legend: { show: false },
        cursor: { y: false, points: { size: 5 }, drag: { x: false, y: false } },
        scales: {
          x: { range: (_, low, high) => [Math.max(low ?? 0, (high ?? 0) - seconds), high ?? 1] },
          y: { range: (_, low, high) => (zero ? [0, Math.max((high ?? 0) * 1.15, least)] : padded(low, high)) },
        },
        axes: [
          { ...axis, font, size: 24, space: 70, values: (_, ticks) => ticks.map(hours) },
          { ...axis, font, size: 56, space: 34, values: (_, ticks) => ticks.map((value) => tick(value)) },
        ],
        series: [
          {},
          ...series.map((each) => ({
            stroke: colour(`--${each.colour}`),
            width: 1.5,
            fill: each.fill ? `${colour(`--${each.colour}`)}22` : undefined,
            paths: each.step ? uPlot.paths.stepped({ align: 1 }) : undefined,
            points: { show: false },
            spanGaps: false,
          })),
        ],
        hooks: { setCursor: [(plot) => this.#read(plot)] },
      },
      this.#data,
      this.#place,
    );
  }

  /** What stands under the pointer; the newest when it is elsewhere. */
  #read(plot) {
    const at = plot.cursor.idx ?? this.#data[0].length - 1;
    this.readings.forEach((reading, index) => {
      reading.textContent = this.#options.format(this.#data[index + 1][at]);
    });
  }
}

const padded = (low, high) => (low === null || low === undefined ? [0, 1] : [Math.max(0, low - 1), high + 1]);

const hours = (seconds) =>
  new Date(seconds * 1000).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });

/** A line without axes over the last values, for cards and tiles. */
export function sparkline(canvas, values, ink = "--accent") {
  fit(canvas);
  const context = canvas.getContext("2d");
  const { width, height } = canvas;
  context.clearRect(0, 0, width, height);
  const shown = values.slice(-60);
  const top = Math.max(...shown.filter(Number.isFinite), 1e-9) * 1.1;
  if (shown.length < 2) return;
  const x = (index) => (index / (shown.length - 1)) * width;
  const y = (value) => height - 2 - ((value ?? 0) / top) * (height - 4);
  context.beginPath();
  shown.forEach((value, index) => context.lineTo(x(index), y(value)));
  context.lineWidth = 1.5 * Math.min(devicePixelRatio || 1, 2);
  context.lineJoin = "round";
  context.strokeStyle = colour(ink);
  context.stroke();
  context.lineTo(width, height);
  context.lineTo(0, height);
  context.fillStyle = `${colour(ink)}1c`;
  context.fill();
}
