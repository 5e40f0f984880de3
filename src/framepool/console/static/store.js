// What the page knows: the last state, and a short memory for the small lines and the charts.

export const MANY = 48;
/** Streams that are watched at a time. */
const MEMORY = 60;
const EVENTS = 2000;

export class Store {
  constructor() {
    this.state = null;
    this.events = [];
    this.totals = { time: [], frames_per_s: [], bytes_per_s: [], drops_per_s: [], latency_p99_ns: [] };
    this.memory = new Map();
  }

  get streams() {
    return this.state?.streams ?? [];
  }

  stream(id) {
    return this.streams.find((stream) => stream.id === id);
  }

  recent(id) {
    return this.memory.get(id) ?? [];
  }

  /** The past, as the server has it: for a page that was opened just now. */
  recall(past) {
    for (const name of Object.keys(this.totals)) this.totals[name] = [...(past.totals[name] ?? [])];
    this.memory = new Map(Object.entries(past.recent ?? {}).map(([id, values]) => [Number(id), [...values]]));
  }

  /** Takes in a new state. */
  take(state) {
    this.state = state;
    const fresh = state.events ?? [];
    if (fresh.length) {
      const known = new Set(this.events.slice(-fresh.length * 2).map((event) => event.number));
      this.events.push(...fresh.filter((event) => !known.has(event.number)));
      if (this.events.length > EVENTS) this.events.splice(0, this.events.length - EVENTS);
    }
    for (const stream of state.streams) {
      const memory = this.memory.get(stream.id) ?? [];
      memory.push(stream.frames_per_s ?? 0);
      this.memory.set(stream.id, memory.slice(-MEMORY));
    }
    for (const id of this.memory.keys()) if (!state.streams.some((stream) => stream.id === id)) this.memory.delete(id);
    this.#remember({ time: state.time, ...state.totals });
  }

  #remember(totals) {
    for (const [name, column] of Object.entries(this.totals)) {
      column.push(totals[name] ?? null);
      if (column.length > 10 * MEMORY) column.shift();
    }
  }
}
