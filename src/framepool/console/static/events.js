// What happened, newest first, with a search over it.

import { el, keyed, text } from "./dom.js";
import { clock } from "./format.js";

const SHOWN = 300;

export class Events {
  #store;
  #frozen = null;

  constructor(store) {
    this.#store = store;
    this.search = el("input", { type: "search", placeholder: "Search events", "aria-label": "Search events" });
    this.level = el("select", { "aria-label": "Level" }, ...["all", "warnings", "alerts"].map((name) => el("option", {}, name)));
    this.hold = el("button", { type: "button", "aria-pressed": "false", onclick: () => this.#toggle() }, "Hold");
    this.rows = el("tbody", {});
    this.empty = el("p", { class: "empty" });
    this.element = el("section", { class: "view", id: "events", "aria-label": "Events" },
      el("div", { class: "bar" }, this.search, this.level, this.hold),
      el("div", { class: "panel scroll" }, el("table", { class: "log" },
        el("thead", {}, el("tr", {}, ...["time", "level", "about", "what"].map((name) => el("th", { scope: "col" }, name)))), this.rows)),
      this.empty);
    this.search.addEventListener("input", () => this.update());
    this.level.addEventListener("change", () => this.update());
  }

  update() {
    const words = this.search.value.trim().toLowerCase().split(/\s+/).filter(Boolean);
    const levels = { all: null, warnings: ["warning", "alert"], alerts: ["alert"] }[this.level.value];
    const events = this.#frozen ?? this.#store.events;
    const shown = [];
    for (let at = events.length - 1; at >= 0 && shown.length < SHOWN; at -= 1) {
      const event = events[at];
      if (levels && !levels.includes(event.level)) continue;
      const said = `${event.about} ${event.text} ${event.kind}`.toLowerCase();
      if (words.every((word) => said.includes(word))) shown.push(event);
    }
    keyed(this.rows, shown, (event) => event.number, make, () => {});
    text(this.empty, shown.length ? "" : events.length ? "No event matches." : "Nothing has happened yet.");
  }

  #toggle() {
    this.#frozen = this.#frozen ? null : [...this.#store.events];
    this.hold.setAttribute("aria-pressed", String(Boolean(this.#frozen)));
    text(this.hold, this.#frozen ? "Go on" : "Hold");
    this.update();
  }
}

function make(event) {
  return el("tr", { "data-level": event.level },
    el("td", {}, clock(event.time)), el("td", {}, el("span", { class: "level" }, event.level)), el("td", {}, event.about), el("td", {}, event.text));
}
