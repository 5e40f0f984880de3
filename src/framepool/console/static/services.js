// Services and what they can be told: a button sends a command, and what the service echoes stands below it.

import { el, keyed, text } from "./dom.js";
import { age, clock } from "./format.js";

const SHOWN = 6;

export class Services {
  #store;
  #connection;
  #cards = new Map();

  constructor(store, connection) {
    this.#store = store;
    this.#connection = connection;
    this.list = el("div", { class: "services" });
    this.empty = el("p", { class: "empty" });
    this.note = el("p", { class: "why" });
    this.element = el("section", { class: "view", id: "services", "aria-label": "Services" }, this.note, this.list, this.empty);
  }

  update() {
    const services = this.#store.state?.services ?? [];
    const trusted = this.#connection.trusted && !this.#connection.hello?.read_only;
    text(this.note, trusted || !services.length ? "" : "You are looking only. To send commands, open the address that `framepool console` printed, with its token.");
    keyed(this.list, services, (each) => `${each.tag} ${each.host} ${each.pid}`, (each) => this.#make(each), (card, each) => this.#fill(card, each, trusted));
    text(this.empty, services.length ? "" : "No service has been heard.");
  }

  #make(service) {
    const parts = {
      badge: el("span", { class: "badge" }),
      facts: el("p", { class: "facts" }),
      open: el("button", { type: "button", "aria-expanded": "false", onclick: () => this.#unfold(service.tag, card) }, "Commands"),
      commands: el("div", { class: "commands" }),
      log: el("ol", { class: "echoes", "aria-live": "polite" }),
    };
    const element = el("article", { class: "panel service" },
      el("div", { class: "headline" }, el("h3", {}, service.tag), parts.badge, parts.open), parts.facts, parts.commands, parts.log);
    const card = { element, ...parts };
    this.#cards.set(element, card);
    element.addEventListener("removed", () => this.#cards.delete(element));
    return element;
  }

  #fill(element, service, trusted) {
    const card = this.#cards.get(element);
    element.dataset.state = service.state === "running" ? "live" : "idle";
    text(card.badge, service.state);
    text(card.facts, [service.host && `on ${service.host}`, service.pid && `process ${service.pid}`, `up ${age(service.uptime_s)}`, service.version && `version ${service.version}`, `heard ${age(service.age_s)} ago`].filter(Boolean).join(" · "));
    card.open.disabled = !trusted;
    for (const button of card.commands.querySelectorAll("button")) button.disabled = !trusted;
  }

  async #unfold(tag, card) {
    const open = card.open.getAttribute("aria-expanded") === "true";
    card.open.setAttribute("aria-expanded", String(!open));
    card.commands.hidden = open;
    if (open || card.commands.childElementCount) return;
    const answer = await this.#send(tag, "commands", null, card);
    if (!answer) return;
    const described = typeof answer.result === "string" ? JSON.parse(answer.result) : (answer.result ?? []);
    card.commands.replaceChildren(...described.map((each) => this.#form(tag, each, card)));
  }

  /** One command: a button, and a field if it takes a value. */
  #form(tag, described, card) {
    const field = fieldOf(described);
    const send = () => this.#send(tag, described.key, field ? field.read() : null, card);
    return el("form", { class: "command", onsubmit: (event) => { event.preventDefault(); send(); } },
      el("button", { type: "submit" }, described.key),
      field && field.element,
      el("span", { class: "help" }, described.help));
  }

  async #send(tag, key, value, card) {
    const began = performance.now();
    const entry = el("li", { class: "waiting" }, `${clock(Date.now() / 1000)}  ${key}${value === null ? "" : ` = ${value}`}  …`);
    card.log.prepend(entry);
    while (card.log.childElementCount > SHOWN) card.log.lastElementChild.remove();
    try {
      const answer = await this.#connection.command(tag, key, value);
      entry.className = "echo";
      const result = answer.result === null || answer.result === undefined ? "" : `  →  ${typeof answer.result === "string" ? answer.result : JSON.stringify(answer.result)}`;
      text(entry, `${clock(Date.now() / 1000)}  ${answer.echo.key}${answer.echo.value === null ? "" : ` = ${answer.echo.value}`}  echoed after ${(performance.now() - began).toFixed(0)} ms${result}`);
      return answer;
    } catch (error) {
      entry.className = "refused";
      text(entry, `${clock(Date.now() / 1000)}  ${key}  ${error.status === 401 ? "this token is not the right one" : error.message}`);
      return null;
    }
  }
}

/** The field for a value, by its JSON schema; none if there is no value. */
function fieldOf({ key, value: schema, optional }) {
  if (!schema) return null;
  const type = schema.type ?? (schema.enum ? "enum" : "string");
  const name = { "aria-label": `Value of ${key}`, required: !optional };
  if (schema.enum) {
    const select = el("select", name, ...schema.enum.map((each) => el("option", {}, String(each))));
    return { element: select, read: () => schema.enum[select.selectedIndex] };
  }
  if (type === "boolean") {
    const box = el("input", { type: "checkbox", "aria-label": name["aria-label"] });
    return { element: box, read: () => box.checked };
  }
  if (type === "integer" || type === "number") {
    const limits = { min: schema.minimum, max: schema.maximum, step: type === "integer" ? 1 : "any" };
    const number = el("input", { type: "number", ...name, ...Object.fromEntries(Object.entries(limits).map(([each, limit]) => [each, limit === undefined ? null : String(limit)])) });
    return { element: number, read: () => (number.value === "" ? null : Number(number.value)) };
  }
  const words = el("input", { type: "text", ...name });
  return { element: words, read: () => (words.value === "" && optional ? null : words.value) };
}
