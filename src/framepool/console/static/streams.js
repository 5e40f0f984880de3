// The wall of streams: a card each, with a live thumbnail.

import { sparkline } from "./charts.js";
import { el, keyed, text } from "./dom.js";
import { bytes, count, duration, rate } from "./format.js";
import { eased, limits, measure, paint, place } from "./picture.js";
import { MANY } from "./store.js";

const THUMBNAIL = 256;

const SORTS = {
  id: (stream) => stream.id,
  name: (stream) => (stream.name || `~${stream.id}`).toLowerCase(),
  "frames/s": (stream) => -(stream.frames_per_s ?? -1),
  "bytes/s": (stream) => -(stream.bytes_per_s ?? -1),
  drops: (stream) => -(stream.drops_per_s ?? -1),
};

export const title = (stream) => stream.name || `stream ${stream.id}`;

export class Streams {
  #store;
  #cards = new Map();
  #visible = new Set();
  #observer;
  #limits = new Map();
  #onwatch;
  #look;

  /** `look` has the colour map and scale that thumbnails are drawn with. */
  constructor(store, { onwatch, look }) {
    this.#store = store;
    this.#onwatch = onwatch;
    this.#look = look;
    this.search = el("input", { type: "search", placeholder: "Search streams", "aria-label": "Search streams" });
    this.sort = el("select", { "aria-label": "Order" }, ...Object.keys(SORTS).map((name) => el("option", {}, name)));
    this.grid = el("div", { class: "wall", role: "list" });
    this.empty = el("p", { class: "empty" });
    this.element = el(
      "section",
      { class: "view", id: "streams", "aria-label": "Streams" },
      el("div", { class: "bar" }, this.search, el("label", { class: "order" }, "by ", this.sort)),
      this.grid,
      this.empty,
    );
    this.search.addEventListener("input", () => this.update());
    this.sort.addEventListener("change", () => this.update());
    this.grid.addEventListener("keydown", (event) => this.#walk(event));
    this.#observer = new IntersectionObserver((entries) => this.#seen(entries), { rootMargin: "120px" });
  }

  /** The streams whose thumbnails are on the screen now. */
  wishes() {
    return Object.fromEntries([...this.#visible].slice(0, MANY).map((id) => [id, { size: THUMBNAIL }]));
  }

  update() {
    const wanted = this.search.value.trim().toLowerCase();
    const key = SORTS[this.sort.value];
    const shown = this.#store.streams
      .filter((stream) => `${stream.id} ${stream.name} ${stream.summary}`.toLowerCase().includes(wanted))
      .sort((one, other) => (key(one) < key(other) ? -1 : key(one) > key(other) ? 1 : one.id - other.id));
    keyed(this.grid, shown, (stream) => stream.id, (stream) => this.#make(stream), (card, stream) => this.#fill(card, stream));
    const nothing = this.#store.streams.length ? "No stream matches." : "No stream yet. Publish one: framepool publish 10000";
    text(this.empty, shown.length ? "" : nothing);
  }

  /** Draws a picture onto its card. */
  draw(picture) {
    const card = this.#cards.get(picture.stream);
    if (!card) return;
    const { map, scale, stretch } = this.#look();
    const now = limits(picture, measure(picture), stretch === "manual" ? "auto" : stretch, null);
    const smooth = stretch === "full" ? now : eased(this.#limits.get(picture.stream), now);
    this.#limits.set(picture.stream, smooth);
    place(card.canvas, paint(picture, smooth, map, scale));
    card.canvas.dataset.seq = picture.seq;
    card.element.classList.add("pictured");
  }

  #make(stream) {
    const canvas = el("canvas", { class: "thumbnail", width: 4, height: 3, "aria-hidden": "true" });
    const parts = {
      badge: el("span", { class: "badge" }),
      name: el("h3", {}),
      id: el("span", { class: "id" }),
      kind: el("p", { class: "kind" }),
      fps: el("dd", {}),
      throughput: el("dd", {}),
      drops: el("dd", {}),
      latency: el("dd", {}),
      line: el("canvas", { class: "line", width: 4, height: 1, "aria-hidden": "true" }),
      note: el("p", { class: "note" }),
    };
    const figures = el(
      "dl",
      { class: "figures" },
      ...[["frames/s", parts.fps], ["rate", parts.throughput], ["drops/s", parts.drops], ["p99", parts.latency]].map(
        ([name, value]) => el("div", {}, el("dt", {}, name), value),
      ),
    );
    const element = el(
      "a",
      { class: "card", role: "listitem", href: `#/stream/${stream.id}`, onremoved: () => this.#drop(stream.id) },
      el("div", { class: "screen" }, canvas, parts.note, parts.badge),
      el("div", { class: "about" }, el("div", { class: "heading" }, parts.name, parts.id), parts.kind, figures, parts.line),
    );
    this.#cards.set(stream.id, { element, canvas, ...parts });
    this.#observer.observe(element);
    return element;
  }

  #fill(element, stream) {
    const card = this.#cards.get(stream.id);
    element.dataset.state = stream.state;
    element.setAttribute("aria-label", `${title(stream)}, ${stream.state}, ${rate(stream.frames_per_s)} frames a second`);
    text(card.badge, stream.state);
    text(card.name, title(stream));
    text(card.id, String(stream.id));
    text(card.kind, stream.shape?.length ? `${stream.shape.join(" × ")} ${stream.dtype}` : bytes(stream.frame_bytes));
    text(card.fps, rate(stream.frames_per_s));
    text(card.throughput, `${bytes(stream.bytes_per_s)}/s`);
    text(card.drops, count(stream.drops_per_s));
    card.drops.classList.toggle("bad", stream.drops_per_s > 0);
    text(card.latency, duration(stream.latency?.p99_ns));
    text(card.note, stream.state === "live" ? (stream.preview ?? "") : (stream.why ?? ""));
    sparkline(card.line, this.#store.recent(stream.id));
  }

  #drop(id) {
    const card = this.#cards.get(id);
    if (!card) return;
    this.#observer.unobserve(card.element);
    this.#cards.delete(id);
    this.#limits.delete(id);
    if (this.#visible.delete(id)) this.#onwatch();
  }

  #seen(entries) {
    for (const entry of entries) {
      const id = Number(entry.target.dataset.key);
      if (entry.isIntersecting) this.#visible.add(id);
      else this.#visible.delete(id);
    }
    this.#onwatch();
  }

  /** Arrow keys go from card to card, by rows and columns as they stand. */
  #walk(event) {
    const steps = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: this.#columns(), ArrowUp: -this.#columns() };
    if (!(event.key in steps)) return;
    const cards = [...this.grid.children];
    const next = cards[cards.indexOf(document.activeElement) + steps[event.key]];
    if (next) {
      event.preventDefault();
      next.focus();
    }
  }

  #columns() {
    return getComputedStyle(this.grid).gridTemplateColumns.split(" ").length;
  }
}
