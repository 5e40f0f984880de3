// The large picture of a stream: contrast, colours, histogram, zoom, pan, and the value under the pointer.

import { NAMES, SCALES } from "./colours.js";
import { colour, el, text } from "./dom.js";
import { value as readable } from "./format.js";
import { BINS, eased, fit, limits, measure, paint } from "./picture.js";

const LARGEST = 1024;
const SMALLEST_SPAN = 8;
const STRETCHES = { auto: "auto", minmax: "min to max", full: "full range", manual: "manual" };

const option = (value, label) => el("option", { value }, label ?? value);

export class Viewer {
  #id;
  #onwatch;
  #look;
  #picture = null;
  #measured = null;
  #limits = null;
  #painted = document.createElement("canvas");
  #region = null; // of the frame, in its pixels; none is all of it
  #point = null;
  #drag = null;
  #later = null;
  paused = false;

  /** `look` reads and writes what all pictures are drawn with. */
  constructor(id, { onwatch, look }) {
    this.#id = id;
    this.#onwatch = onwatch;
    this.#look = look;
    this.canvas = el("canvas", { class: "picture", tabindex: "0", role: "img", "aria-label": "Live picture; arrows move the cross, plus and minus zoom" });
    this.histogram = el("canvas", { class: "histogram", "aria-label": "Histogram; drag to set the limits" });
    this.reading = el("output", { class: "pixel" }, "point at a pixel");
    this.frame = el("output", { class: "frame" });
    this.map = el("select", { "aria-label": "Colours" }, ...NAMES.map((name) => option(name)));
    this.scale = el("select", { "aria-label": "Scale" }, ...SCALES.map((name) => option(name)));
    this.stretch = el("select", { "aria-label": "Contrast" }, ...Object.entries(STRETCHES).map(([name, label]) => option(name, label)));
    this.low = el("input", { type: "number", step: "any", class: "limit", "aria-label": "Lowest value" });
    this.high = el("input", { type: "number", step: "any", class: "limit", "aria-label": "Highest value" });
    this.pause = el("button", { type: "button", "aria-pressed": "false", title: "Space", onclick: () => this.toggle() }, "Pause");
    const zoomed = (factor) => () => this.zoom(factor);
    this.element = el(
      "div",
      { class: "viewer" },
      el("div", { class: "stage" }, this.canvas, el("div", { class: "readings" }, this.reading, this.frame)),
      el(
        "div",
        { class: "tools", role: "toolbar", "aria-label": "Picture" },
        this.pause,
        el("span", { class: "group" },
          el("button", { type: "button", "aria-label": "Zoom in", title: "+", onclick: zoomed(0.5) }, "+"),
          el("button", { type: "button", "aria-label": "Zoom out", title: "−", onclick: zoomed(2) }, "−"),
          el("button", { type: "button", title: "0", onclick: () => this.reset() }, "Fit"),
        ),
        el("label", {}, "colours ", this.map),
        el("label", {}, "scale ", this.scale),
        el("label", {}, "contrast ", this.stretch),
      ),
      el("div", { class: "levels" }, this.low, this.histogram, this.high),
    );
    this.#wire();
  }

  wish() {
    if (this.paused) return {};
    const ratio = Math.min(devicePixelRatio || 1, 2);
    const size = Math.min(LARGEST, Math.max(64, Math.round(this.canvas.clientWidth * ratio)));
    return { [this.#id]: this.#region ? { size, region: whole(this.#region) } : { size } };
  }

  take(picture) {
    if (picture.stream !== this.#id || this.paused) return;
    this.#picture = picture;
    this.#measured = measure(picture);
    this.show();
  }

  show() {
    const picture = this.#picture;
    if (!picture) return;
    const look = this.#look();
    const manual = look.limits?.[this.#id];
    const now = limits(picture, this.#measured, look.stretch, manual);
    this.#limits = look.stretch === "auto" ? eased(this.#limits, now) : now;
    const painted = paint(picture, this.#limits, look.map, look.scale);
    this.#painted.width = painted.width;
    this.#painted.height = painted.height;
    this.#painted.getContext("2d").drawImage(painted, 0, 0);
    this.canvas.dataset.seq = picture.seq;
    this.#place();
    this.#bars();
    this.#read();
    text(this.frame, `frame ${picture.seq} · epoch ${picture.epoch} · ${picture.shape.join(" × ")} ${picture.dtype}${picture.step > 1 ? ` · 1 : ${picture.step}` : ""}`);
    for (const [input, index] of [[this.low, 0], [this.high, 1]]) {
      if (document.activeElement !== input) input.value = Number(this.#limits[index].toPrecision(6));
    }
  }

  toggle() {
    this.paused = !this.paused;
    this.pause.setAttribute("aria-pressed", String(this.paused));
    text(this.pause, this.paused ? "Go on" : "Pause");
    this.#onwatch();
  }

  cycle(list, select, name) {
    this.#look({ [name]: list[(list.indexOf(this.#look()[name]) + 1) % list.length] });
    this.refresh();
    select.focus();
  }

  refresh() {
    const look = this.#look();
    this.map.value = look.map;
    this.scale.value = look.scale;
    this.stretch.value = look.stretch;
    this.show();
  }

  reset() {
    this.#zoomTo(null);
  }

  /** Less or more of the frame, around a point of it. */
  zoom(factor, at = null) {
    const all = this.#whole();
    if (!all) return;
    const view = this.#region ?? all;
    const centre = at ?? this.#point ?? { x: view.x + view.width / 2, y: view.y + view.height / 2 };
    const span = Math.min(view.width, view.height) * factor;
    if (factor < 1 && span < SMALLEST_SPAN) return;
    const width = view.width * factor;
    const height = view.height * factor;
    if (width >= all.width && height >= all.height) return this.#zoomTo(null);
    const part = { x: (centre.x - view.x) / view.width, y: (centre.y - view.y) / view.height };
    this.#zoomTo({ x: centre.x - part.x * width, y: centre.y - part.y * height, width, height });
  }

  pan(across, down) {
    const view = this.#region;
    if (view) this.#zoomTo({ ...view, x: view.x + across * view.width, y: view.y + down * view.height });
  }

  /** Keys that mean something to the picture; says whether this one did. */
  key(event) {
    const move = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
    if (move && document.activeElement === this.canvas) {
      if (event.shiftKey) this.pan(move[0] * 0.1, move[1] * 0.1);
      else this.#step(...move);
    } else if (event.key === " ") this.toggle();
    else if (event.key === "+" || event.key === "=") this.zoom(0.5);
    else if (event.key === "-") this.zoom(2);
    else if (event.key === "0") this.reset();
    else if (event.key === "c") this.cycle(NAMES, this.map, "map");
    else if (event.key === "l") this.cycle(SCALES, this.scale, "scale");
    else return false;
    return true;
  }

  destroy() {
    clearTimeout(this.#later);
    this.observer.disconnect();
  }

  #wire() {
    for (const [select, name] of [[this.map, "map"], [this.scale, "scale"], [this.stretch, "stretch"]]) {
      select.addEventListener("change", () => {
        this.#look({ [name]: select.value });
        this.show();
      });
    }
    for (const [input, index] of [[this.low, 0], [this.high, 1]]) {
      input.addEventListener("change", () => this.#setLimit(index, Number(input.value)));
    }
    this.canvas.addEventListener("pointermove", (event) => this.#move(event));
    this.canvas.addEventListener("pointerdown", (event) => this.#grab(event));
    this.canvas.addEventListener("pointerup", () => (this.#drag = null));
    this.canvas.addEventListener("pointercancel", () => (this.#drag = null));
    this.canvas.addEventListener("dblclick", () => this.reset());
    this.canvas.addEventListener("wheel", (event) => {
      event.preventDefault();
      this.zoom(event.deltaY > 0 ? 1.25 : 0.8, this.#under(event));
    }, { passive: false });
    this.histogram.addEventListener("pointerdown", (event) => {
      this.histogram.setPointerCapture(event.pointerId);
      this.#drag = "limits";
      this.#level(event);
    });
    this.histogram.addEventListener("pointermove", (event) => this.#drag === "limits" && this.#level(event));
    this.histogram.addEventListener("pointerup", () => (this.#drag = null));
    this.observer = new ResizeObserver(() => {
      this.show();
      this.#watchSoon();
    });
    this.observer.observe(this.canvas);
    this.refresh();
  }

  #whole() {
    const shape = this.#picture?.shape;
    if (!shape) return null;
    const [rows, columns] = sides(this.#picture);
    return { x: 0, y: 0, width: columns, height: rows };
  }

  #zoomTo(region) {
    const all = this.#whole();
    if (!all) return;
    this.#region = region && {
      width: Math.min(region.width, all.width),
      height: Math.min(region.height, all.height),
      x: Math.max(0, Math.min(region.x, all.width - region.width)),
      y: Math.max(0, Math.min(region.y, all.height - region.height)),
    };
    this.#place();
    this.#watchSoon();
  }

  #watchSoon() {
    clearTimeout(this.#later);
    this.#later = setTimeout(() => this.#onwatch(), 60);
  }

  /** Where the view of the frame stands on the canvas. */
  #frameOnCanvas() {
    const view = this.#region ?? this.#whole();
    const scale = Math.min(this.canvas.width / view.width, this.canvas.height / view.height);
    return { view, scale, left: (this.canvas.width - view.width * scale) / 2, top: (this.canvas.height - view.height * scale) / 2 };
  }

  /** Draws the last picture where it belongs, also while a finer one is on its way. */
  #place() {
    if (!this.#picture) return;
    fit(this.canvas);
    const context = this.canvas.getContext("2d");
    const { view, scale, left, top } = this.#frameOnCanvas();
    const { region, step } = this.#picture;
    context.clearRect(0, 0, this.canvas.width, this.canvas.height);
    context.imageSmoothingEnabled = scale * step < 3;
    context.save();
    context.beginPath();
    context.rect(left, top, view.width * scale, view.height * scale);
    context.clip();
    context.drawImage(
      this.#painted,
      left + (region.x - view.x) * scale,
      top + (region.y - view.y) * scale,
      region.width * scale,
      region.height * scale,
    );
    this.#cross(context, left, top, view, scale);
    context.restore();
  }

  #cross(context, left, top, view, scale) {
    if (!this.#point) return;
    const x = left + (this.#point.x + 0.5 - view.x) * scale;
    const y = top + (this.#point.y + 0.5 - view.y) * scale;
    context.strokeStyle = colour("--accent");
    context.lineWidth = 1;
    const arm = Math.max(9, scale);
    context.beginPath();
    for (const [across, down] of [[1, 0], [-1, 0], [0, 1], [0, -1]]) {
      context.moveTo(x + across * 4, y + down * 4);
      context.lineTo(x + across * (arm + 4), y + down * (arm + 4));
    }
    context.stroke();
  }

  /** The pixel of the frame under the pointer. */
  #under(event) {
    if (!this.#picture) return null;
    const box = this.canvas.getBoundingClientRect();
    const { view, scale, left, top } = this.#frameOnCanvas();
    const x = view.x + (((event.clientX - box.left) / box.width) * this.canvas.width - left) / scale;
    const y = view.y + (((event.clientY - box.top) / box.height) * this.canvas.height - top) / scale;
    const inside = x >= view.x && y >= view.y && x < view.x + view.width && y < view.y + view.height;
    return inside ? { x: Math.floor(x), y: Math.floor(y) } : null;
  }

  #move(event) {
    if (this.#drag && this.#drag !== "limits" && this.#region) {
      const { scale } = this.#frameOnCanvas();
      const ratio = this.canvas.width / this.canvas.getBoundingClientRect().width;
      const { x, y, region } = this.#drag;
      this.#zoomTo({ ...region, x: region.x - ((event.clientX - x) * ratio) / scale, y: region.y - ((event.clientY - y) * ratio) / scale });
      return;
    }
    this.#point = this.#under(event) ?? this.#point;
    this.#place();
    this.#read();
  }

  #grab(event) {
    this.canvas.focus({ preventScroll: true });
    if (!this.#region) return;
    this.canvas.setPointerCapture(event.pointerId);
    this.#drag = { x: event.clientX, y: event.clientY, region: this.#region };
  }

  #step(across, down) {
    const view = this.#region ?? this.#whole();
    if (!view) return;
    const from = this.#point ?? { x: Math.floor(view.x + view.width / 2), y: Math.floor(view.y + view.height / 2) };
    const size = this.#picture.step;
    const all = this.#whole();
    this.#point = {
      x: Math.max(0, Math.min(all.width - 1, from.x + across * size)),
      y: Math.max(0, Math.min(all.height - 1, from.y + down * size)),
    };
    this.#place();
    this.#read();
  }

  #read() {
    const picture = this.#picture;
    if (!picture || !this.#point) return;
    const column = Math.floor((this.#point.x - picture.region.x) / picture.step);
    const row = Math.floor((this.#point.y - picture.region.y) / picture.step);
    const inside = column >= 0 && row >= 0 && column < picture.columns && row < picture.rows;
    const at = (row * picture.columns + column) * picture.colours;
    const parts = inside ? [...picture.values.slice(at, at + picture.colours)].map(readable).join(", ") : "–";
    text(this.reading, `x ${this.#point.x}  y ${this.#point.y}  ${picture.step > 1 ? "≈" : "="} ${parts}`);
  }

  #bars() {
    fit(this.histogram);
    const context = this.histogram.getContext("2d");
    const { width, height } = this.histogram;
    const { bins, least, most } = this.#measured;
    const top = Math.log1p(Math.max(...bins, 1));
    context.clearRect(0, 0, width, height);
    context.fillStyle = colour("--muted");
    bins.forEach((number, bin) => {
      const tall = (Math.log1p(number) / top) * (height - 4);
      context.fillRect((bin / BINS) * width, height - tall, Math.max(1, width / BINS - 0.5), tall);
    });
    context.fillStyle = colour("--accent");
    for (const limit of this.#limits) {
      const x = most > least ? ((limit - least) / (most - least)) * width : 0;
      context.fillRect(Math.max(0, Math.min(width - 2, x - 1)), 0, 2, height);
    }
  }

  /** Moves the limit that is nearer to the pointer. */
  #level(event) {
    if (!this.#measured) return;
    const box = this.histogram.getBoundingClientRect();
    const part = Math.max(0, Math.min(1, (event.clientX - box.left) / box.width));
    const value = this.#measured.least + part * (this.#measured.most - this.#measured.least);
    const index = Math.abs(value - this.#limits[0]) <= Math.abs(value - this.#limits[1]) ? 0 : 1;
    this.#setLimit(index, value);
  }

  #setLimit(index, value) {
    if (!Number.isFinite(value) || !this.#limits) return;
    const next = [...this.#limits];
    next[index] = value;
    next.sort((one, other) => one - other);
    this.#look({ stretch: "manual", limits: { ...this.#look().limits, [this.#id]: next } });
    this.refresh();
  }
}

/** Rows and columns of a frame as it is shown. */
export function sides({ shape, colours }) {
  if (shape.length < 2) return [1, shape[0] ?? 1];
  if (shape.length === 3 && (colours === 3 || shape[2] === 1)) return [shape[0], shape[1]];
  return [shape.at(-2), shape.at(-1)];
}

const whole = ({ x, y, width, height }) => ({
  x: Math.floor(x),
  y: Math.floor(y),
  width: Math.max(1, Math.ceil(width)),
  height: Math.max(1, Math.ceil(height)),
});
