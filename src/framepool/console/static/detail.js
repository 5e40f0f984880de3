// One stream: its picture, its charts, who reads it, and what it says of itself.

import { Chart } from "./charts.js";
import { el, keyed, text } from "./dom.js";
import { age, bytes, count, duration, known, mode, rate } from "./format.js";
import { title } from "./streams.js";
import { Viewer } from "./viewer.js";

const CONSUMER_COLUMNS = ["consumer", "state", "mode", "frames/s", "gaps", "late", "p50", "p99"];

export class Detail {
  #store;
  #connection;
  #drawn = 0;

  constructor(id, { store, connection, onwatch, look }) {
    this.id = id;
    this.#store = store;
    this.#connection = connection;
    this.viewer = new Viewer(id, { onwatch, look });
    this.heading = el("h2", {});
    this.badge = el("span", { class: "badge" });
    this.facts = el("p", { class: "facts" });
    this.why = el("p", { class: "why", role: "status" });
    this.charts = {
      frames: new Chart({ title: "Frames/s", format: rate, series: [{ name: "", colour: "accent", fill: true }] }),
      bytes: new Chart({ title: "Throughput", format: (value) => `${bytes(value)}/s`, tick: bytes, series: [{ name: "", colour: "violet", fill: true }] }),
      drops: new Chart({ title: "Dropped/s", format: count, series: [{ name: "gap", colour: "warn" }, { name: "late", colour: "bad" }] }),
      latency: new Chart({ title: "Latency", format: duration, least: 1000, series: [
        { name: "p50", colour: "ok" }, { name: "p90", colour: "warn" }, { name: "p99", colour: "bad" },
      ] }),
      epochs: new Chart({ title: "Epoch", format: whole, tick: tail, zero: false, series: [{ name: "", colour: "accent", step: true }] }),
      leases: new Chart({ title: "Leases", format: whole, tick: (value) => (Number.isInteger(value) ? String(value) : ""), series: [{ name: "", colour: "ok", step: true, fill: true }] }),
    };
    this.rows = el("tbody", {});
    this.metadata = el("dl", { class: "metadata" });
    this.element = el(
      "section",
      { class: "view detail", "aria-label": "Stream" },
      el("div", { class: "headline" },
        el("a", { href: "#/streams", class: "back", "aria-label": "Back to all streams", title: "Escape" }, "‹"),
        this.heading, this.badge, this.facts),
      this.why,
      el("div", { class: "halves" },
        el("div", { class: "panel" }, this.viewer.element),
        el("div", { class: "panel charts" }, ...Object.values(this.charts).map((chart) => chart.element))),
      el("div", { class: "panel" },
        el("h3", {}, "Consumers"),
        el("div", { class: "scroll" }, el("table", {},
          el("thead", {}, el("tr", {}, ...CONSUMER_COLUMNS.map((name) => el("th", { scope: "col" }, name)))), this.rows))),
      el("div", { class: "panel" }, el("h3", {}, "What the source says"), this.metadata),
    );
    this.#recall();
  }

  wishes() {
    return this.viewer.wish();
  }

  draw(picture) {
    this.viewer.take(picture);
  }

  update() {
    const stream = this.#store.stream(this.id);
    this.element.dataset.state = stream?.state ?? "gone";
    if (!stream) {
      text(this.heading, `stream ${this.id}`);
      text(this.badge, "gone");
      text(this.why, "Nobody speaks of this stream.");
      return;
    }
    text(this.heading, title(stream));
    text(this.badge, stream.state);
    text(this.why, stream.state === "live" ? (stream.preview ?? "") : (stream.why ?? ""));
    const facts = [
      `stream ${stream.id}`,
      stream.producer ? `producer ${stream.producer}` : "no producer",
      stream.nslots && `${stream.nslots} slots`,
      stream.bytes && `${bytes(stream.bytes)} shared`,
      stream.activity_s !== null && `active ${age(stream.activity_s)} ago`,
      stream.bridged && "over a bridge",
      stream.summary,
    ];
    text(this.facts, facts.filter(Boolean).join(" · "));
    this.#push(stream);
    keyed(this.rows, stream.consumers, (consumer) => consumer.id, () => row(CONSUMER_COLUMNS.length), fillConsumer);
    const said = Object.entries(stream.metadata);
    keyed(this.metadata, said, ([name]) => name, () => el("div", {}, el("dt", {}), el("dd", {})), (pair, [name, value]) => {
      text(pair.firstChild, name);
      text(pair.lastChild, typeof value === "string" ? value : JSON.stringify(value));
    });
    if (!said.length) text(this.metadata, "nothing");
  }

  key(event) {
    return this.viewer.key(event);
  }

  restyle() {
    for (const chart of Object.values(this.charts)) chart.restyle();
    this.viewer.show();
  }

  destroy() {
    this.viewer.destroy();
    for (const chart of Object.values(this.charts)) chart.destroy();
  }

  async #recall() {
    try {
      const past = await this.#connection.ask(`api/history?stream=${this.id}`);
      const since = this.#drawn;
      this.charts.frames.set([past.time, past.frames_per_s]);
      this.charts.bytes.set([past.time, past.bytes_per_s]);
      this.charts.drops.set([past.time, past.gaps_per_s, past.late_per_s]);
      this.charts.latency.set([past.time, past.latency_p50_ns, past.latency_p90_ns, past.latency_p99_ns]);
      this.charts.epochs.set([past.time, past.epoch]);
      this.charts.leases.set([past.time, past.leases]);
      this.#drawn = Math.max(since, past.time.at(-1) ?? 0);
    } catch {
      // the charts begin now
    }
  }

  #push(stream) {
    const { time } = this.#store.state;
    if (time <= this.#drawn) return;
    this.#drawn = time;
    this.charts.frames.push(time, stream.frames_per_s);
    this.charts.bytes.push(time, stream.bytes_per_s);
    this.charts.drops.push(time, stream.gaps_per_s, stream.late_per_s);
    this.charts.latency.push(time, stream.latency?.p50_ns, stream.latency?.p90_ns, stream.latency?.p99_ns);
    this.charts.epochs.push(time, stream.epoch);
    this.charts.leases.push(time, stream.leases);
  }
}

const whole = (value) => (known(value) ? String(value) : "–");

/** The end of a long number: of epochs, that is what changes. */
const tail = (value) => (Number.isInteger(value) ? (value > 99999 ? `…${String(value).slice(-4)}` : String(value)) : "");

const row = (columns) => el("tr", {}, ...Array.from({ length: columns }, () => el("td", {})));

function fillConsumer(tr, consumer) {
  const values = [
    consumer.own ? `${consumer.id} (this console)` : String(consumer.id),
    consumer.state,
    `${mode(consumer)}${consumer.max_rate_hz ? `, ${consumer.max_rate_hz} Hz` : ""}`,
    rate(consumer.frames_per_s),
    count(consumer.drops_gap),
    count(consumer.drops_late),
    duration(consumer.latency?.p50_ns),
    duration(consumer.latency?.p99_ns),
  ];
  tr.dataset.state = consumer.state;
  values.forEach((value, index) => text(tr.children[index], value));
}
