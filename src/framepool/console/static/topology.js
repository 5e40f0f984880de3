// Who is connected to whom: producers on the left, streams in the middle, readers on the right, hosts around them.

import { el, svg } from "./dom.js";
import { bytes, mode, rate } from "./format.js";
import { title } from "./streams.js";

const WIDTH = 232;
const GAP = 120;
const HEIGHT = 46;
const STEP = 60;
const TOP = 34;

export class Topology {
  #store;
  #drawn = "";

  constructor(store) {
    this.#store = store;
    this.map = el("div", { class: "map scroll" });
    this.empty = el("p", { class: "empty" }, "Nobody is connected yet.");
    this.element = el("section", { class: "view", id: "topology", "aria-label": "Topology" }, this.map, this.empty);
  }

  update() {
    const { streams } = this.#store;
    const graph = layout(streams, this.#store.state?.services ?? [], this.#store.state?.host ?? "this host");
    const drawn = JSON.stringify(graph);
    if (drawn === this.#drawn) return; // nothing moves unless something changed
    this.#drawn = drawn;
    this.empty.hidden = streams.length > 0;
    this.map.replaceChildren(draw(graph));
  }
}

/** Nodes in columns and the lines between them. */
function layout(streams, services, host) {
  const columns = [[], [], []];
  const links = [];
  const put = (column, node) => {
    const known = columns[column].find((each) => each.key === node.key);
    if (!known) columns[column].push(node);
    return node.key;
  };
  for (const stream of streams) {
    const centre = put(1, {
      key: `s${stream.id}`,
      name: title(stream),
      note: `${stream.id} · ${rate(stream.frames_per_s)}/s`,
      state: stream.state,
      href: `#/stream/${stream.id}`,
    });
    if (stream.producer || stream.bridged) {
      const source = stream.bridged
        ? { key: `b${stream.origin?.host ?? "remote"}`, name: stream.origin?.host ?? "another host", note: "over a bridge", kind: "bridge" }
        : { key: `p${stream.producer}`, name: `producer ${stream.producer}`, note: host };
      links.push({ from: put(0, { state: stream.state, ...source }), to: centre, weight: stream.bytes_per_s ?? 0, state: stream.state });
    }
    for (const consumer of stream.consumers) {
      const node = { key: `c${stream.id}/${consumer.id}`, name: consumer.own ? "this console" : `consumer ${consumer.id}`, note: note(consumer), state: consumer.state };
      links.push({ from: centre, to: put(2, node), weight: stream.bytes_per_s ?? 0, state: consumer.state });
    }
  }
  for (const service of services.filter((each) => /^service:(bridge|recorder|limiter)/.test(each.tag))) {
    put(service.tag.startsWith("service:bridge") ? 0 : 2, {
      key: service.tag, name: service.tag.replace("service:", ""), note: `${service.state} on ${service.host || host}`, state: service.state === "running" ? "live" : "idle", kind: "service",
    });
  }
  return { columns, links };
}

const drops = (consumer) => (consumer.gaps_per_s ?? 0) + (consumer.late_per_s ?? 0);

const note = (consumer) => [mode(consumer), drops(consumer) > 0 && `${rate(drops(consumer))} drops/s`].filter(Boolean).join(" · ");

function draw({ columns, links }) {
  const rows = Math.max(1, ...columns.map((column) => column.length));
  const height = TOP + rows * STEP;
  const places = new Map();
  columns.forEach((column, index) => {
    const offset = ((rows - column.length) * STEP) / 2;
    column.forEach((node, at) => places.set(node.key, { x: index * (WIDTH + GAP), y: TOP + offset + at * STEP, node }));
  });
  const width = 3 * WIDTH + 2 * GAP;
  const names = ["producers", "streams", "readers"];
  return svg(
    "svg",
    { viewBox: `-1 0 ${width + 2} ${height}`, width, role: "img", "aria-label": "Producers, streams and readers" },
    ...names.map((name, index) => svg("text", { class: "column", x: index * (WIDTH + GAP), y: 14 }, name)),
    ...links.map((link) => line(places.get(link.from), places.get(link.to), link)),
    ...[...places.values()].map(box),
  );
}

function line(from, to, { weight, state }) {
  const [x1, y1, x2, y2] = [from.x + WIDTH, from.y + HEIGHT / 2, to.x, to.y + HEIGHT / 2];
  const bend = (x2 - x1) / 2;
  const path = `M${x1} ${y1} C${x1 + bend} ${y1} ${x2 - bend} ${y2} ${x2} ${y2}`;
  const thick = 1.2 + Math.min(4, Math.log10(1 + weight / 1e6) * 1.3);
  return svg("path", { class: "link", "data-state": state, d: path, "stroke-width": thick.toFixed(2) }, svg("title", {}, `${bytes(weight)}/s`));
}

function box({ x, y, node }) {
  const inside = [
    svg("rect", { x, y, width: WIDTH, height: HEIGHT, rx: 9 }),
    svg("circle", { class: "dot", cx: x + 15, cy: y + HEIGHT / 2, r: 4 }),
    svg("text", { class: "name", x: x + 29, y: y + 20 }, short(node.name, 26)),
    svg("text", { class: "note", x: x + 29, y: y + 36 }, short(node.note, 34)),
  ];
  const group = svg("g", { class: `node ${node.kind ?? ""}`, "data-state": node.state }, ...inside);
  return node.href ? svg("a", { href: node.href }, group) : group;
}

const short = (words, longest) => (words.length > longest ? `${words.slice(0, longest - 1)}…` : words);
