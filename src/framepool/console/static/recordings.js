// Recordings: what each holds, what it lost, how far it is durable, and the report that Spark made of it.

import { el, keyed, text } from "./dom.js";
import { bytes, count } from "./format.js";

const COLUMNS = ["recording", "state", "streams", "frames", "size", "lost", "removed", "durable to", "report"];

export class Recordings {
  #store;

  constructor(store) {
    this.#store = store;
    this.rows = el("tbody", {});
    this.empty = el("p", { class: "empty" });
    this.element = el("section", { class: "view", id: "recordings", "aria-label": "Recordings" },
      el("div", { class: "panel scroll" }, el("table", {},
        el("thead", {}, el("tr", {}, ...COLUMNS.map((name) => el("th", { scope: "col" }, name)))), this.rows)),
      this.empty);
  }

  update() {
    const recordings = this.#store.state?.recordings ?? [];
    keyed(this.rows, recordings, (each) => each.name, make, fill);
    text(this.empty, recordings.length ? "" : "No recordings. `framepool record PATH STREAM` makes one; `console.recordings` in the configuration says where they are.");
  }
}

function make(recording) {
  return el("tr", {}, el("th", { scope: "row", title: recording.path }, recording.name), ...COLUMNS.slice(1).map(() => el("td", {})));
}

function fill(row, recording) {
  row.dataset.state = recording.state === "stalled" ? "dead" : recording.state;
  const [, state, streams, frames, size, lost, removed, durable, report] = row.children;
  text(state, recording.state);
  text(streams, Object.entries(recording.streams).map(([id, some]) => `${id}: ${count(some)}`).join(", ") || "–");
  text(frames, count(recording.frames));
  text(size, bytes(recording.bytes));
  text(lost, count(recording.lost));
  lost.classList.toggle("bad", recording.lost > 0);
  text(removed, count(recording.removed));
  text(durable, count(recording.watermark));
  if (recording.report && !report.querySelector("a")) {
    const href = `report?recording=${encodeURIComponent(recording.name)}`;
    report.replaceChildren(el("a", { href, target: "_blank", rel: "noopener" }, "open"));
  } else if (!recording.report) {
    report.replaceChildren(el("code", {}, `framepool spark report ${recording.path}`));
  }
}
