// The connection to the console: comes back by itself, and takes in no more than it can show.
//
// Before each socket comes a question over HTTP, because a page cannot see why a socket was refused: a token that is
// not the right one any more, as after a restart, is dropped, and the page goes on without it.

const PROTOCOL = "framepool";
const FIRST_RETRY = 300;
const LONGEST_RETRY = 5000;
const SILENCE = 8000;

export class Connection extends EventTarget {
  #token;
  #socket = null;
  #wishes = {};
  #retry = FIRST_RETRY;
  #heard = 0;
  #timer = null;
  #watchdog = null;

  constructor(token) {
    super();
    this.#token = token;
    this.hello = null;
    this.connected = false;
  }

  get trusted() {
    return Boolean(this.hello?.trusted);
  }

  /** Connects, and again whenever the connection is lost. */
  async open() {
    try {
      this.hello = await this.#greet();
    } catch (error) {
      this.#later(String(error.message ?? error));
      return;
    }
    const protocols = this.#token ? [PROTOCOL, `token.${this.#token}`] : [PROTOCOL];
    const socket = new WebSocket(new URL("socket", location.href.replace(/^http/, "ws").replace(/#.*/, "")), protocols);
    socket.binaryType = "arraybuffer";
    socket.onopen = () => this.#opened(socket);
    socket.onmessage = (message) => this.#take(message.data);
    socket.onclose = () => this.#closed(socket);
    this.#socket = socket;
  }

  /** Wants these streams from now on: `{id: {size, region}}`. */
  watch(wishes) {
    this.#wishes = wishes;
    this.#send({ type: "watch", streams: wishes });
  }

  /** The pictures of these streams are on the screen. */
  drawn(streams) {
    this.#send({ type: "drawn", streams });
  }

  /** Asks over HTTP; the answer as JSON, or an error with what was said. */
  async ask(path, options = {}) {
    const headers = { ...options.headers };
    if (this.#token) headers.Authorization = `Bearer ${this.#token}`;
    const answer = await fetch(path, { ...options, headers, cache: "no-store" });
    const isJson = answer.headers.get("content-type")?.startsWith("application/json");
    const body = isJson ? await answer.json() : await answer.text();
    if (!answer.ok) {
      const error = new Error((isJson ? body.error : body) || answer.statusText);
      error.status = answer.status;
      throw error;
    }
    return body;
  }

  /** Sends a command to a service: its echo, or an error. */
  command(tag, key, value = null) {
    const body = JSON.stringify({ tag, key, value });
    return this.ask("api/command", { method: "POST", headers: { "Content-Type": "application/json" }, body });
  }

  async #greet() {
    try {
      return await this.ask("api/hello");
    } catch (error) {
      if (error.status !== 401 || !this.#token) throw error;
      this.#token = "";
      this.dispatchEvent(new Event("untrusted"));
      return this.ask("api/hello");
    }
  }

  #opened(socket) {
    this.connected = true;
    this.#retry = FIRST_RETRY;
    this.#heard = performance.now();
    this.#watchdog = setInterval(() => {
      if (performance.now() - this.#heard > SILENCE) socket.close();
    }, 1000);
    this.watch(this.#wishes);
    this.dispatchEvent(new Event("open"));
  }

  #take(data) {
    this.#heard = performance.now();
    if (typeof data !== "string") {
      this.dispatchEvent(new CustomEvent("pictures", { detail: data }));
      return;
    }
    const state = JSON.parse(data);
    this.#send({ type: "seen" });
    this.dispatchEvent(new CustomEvent("state", { detail: state }));
  }

  #closed(socket) {
    if (this.#socket !== socket) return;
    this.#socket = null;
    clearInterval(this.#watchdog);
    this.#later("the connection ended");
  }

  #later(why) {
    this.connected = false;
    this.dispatchEvent(new CustomEvent("lost", { detail: why }));
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.open(), this.#retry * (0.75 + Math.random() / 2));
    this.#retry = Math.min(this.#retry * 1.6, LONGEST_RETRY);
  }

  #send(message) {
    if (this.#socket?.readyState === WebSocket.OPEN) this.#socket.send(JSON.stringify(message));
  }
}
