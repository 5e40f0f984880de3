// The page: what is shown where, which keys do what, and the thread from the connection to the views.

import { sparkline } from "./charts.js";
import { Detail } from "./detail.js";
import { text } from "./dom.js";
import { Events } from "./events.js";
import { bytes, count, duration, rate } from "./format.js";
import { decode } from "./picture.js";
import { Recordings } from "./recordings.js";
import { Services } from "./services.js";
import { Connection } from "./socket.js";
import { Store } from "./store.js";
import { Streams } from "./streams.js";
import { begin as beginTheme } from "./theme.js";
import { Topology } from "./topology.js";

const LOOK = "framepool.look";
const TOKEN = "framepool.token";
const TABS = ["streams", "topology", "services", "recordings", "events"];

const $ = (id) => document.getElementById(id);

/** The token out of the address, once; after that it is in no history and in no address. */
function token() {
  const given = new URLSearchParams(location.hash.slice(1)).get("token");
  if (given) {
    sessionStorage.setItem(TOKEN, given);
    history.replaceState(null, "", location.pathname + location.search + "#/streams");
  }
  return sessionStorage.getItem(TOKEN) ?? "";
}

/** How pictures are drawn: the same for all, and remembered. */
function beginLook() {
  let look = { map: "grey", scale: "linear", stretch: "auto" };
  try {
    look = { ...look, ...JSON.parse(localStorage.getItem(LOOK) ?? "{}") };
  } catch {
    // what was stored is of no use
  }
  return (changes) => {
    if (changes) {
      look = { ...look, ...changes };
      localStorage.setItem(LOOK, JSON.stringify(look));
    }
    return look;
  };
}

/** Pictures that came and are not drawn yet, by stream: those of all streams come at a time and are drawn at once. */
const waiting = new Map();

function drawWaiting() {
  const pictures = [...waiting.values()];
  waiting.clear();
  for (const picture of pictures) view.draw?.(picture);
  connection.drawn(pictures.map((picture) => picture.stream));
}

const store = new Store();
const look = beginLook();
const connection = new Connection(token());
const onwatch = () => connection.watch(view.wishes?.() ?? {});
const views = {
  streams: new Streams(store, { onwatch, look }),
  topology: new Topology(store),
  services: new Services(store, connection),
  recordings: new Recordings(store),
  events: new Events(store),
};
let view = views.streams;

function route() {
  const [, name, id] = location.hash.split("/");
  const detail = name === "stream" && /^\d+$/.test(id) ? Number(id) : null;
  const next = detail !== null ? new Detail(detail, { store, connection, onwatch, look }) : (views[name] ?? views.streams);
  if (view !== next) view.destroy?.();
  view = next;
  $("main").replaceChildren(view.element);
  for (const tab of TABS) {
    const here = views[tab] === view || (tab === "streams" && detail !== null);
    $(`tab-${tab}`).toggleAttribute("aria-current", here);
    if (here) $(`tab-${tab}`).setAttribute("aria-current", "page");
  }
  view.update();
  onwatch();
  scrollTo(0, 0);
}

function update() {
  const { totals } = store.state;
  const live = store.streams.filter((stream) => stream.state === "live").length;
  text($("streams-figure"), `${live} / ${store.streams.length}`);
  text($("frames-figure"), rate(totals.frames_per_s));
  text($("bytes-figure"), `${bytes(totals.bytes_per_s)}/s`);
  text($("drops-figure"), count(totals.drops_per_s));
  text($("latency-figure"), duration(totals.latency_p99_ns));
  $("drops-figure").classList.toggle("bad", totals.drops_per_s > 0);
  lines();
  const alerts = store.events.filter((event) => event.level !== "info" && event.time > store.state.time - 60).length;
  text($("tab-events-count"), alerts ? String(alerts) : "");
  view.update();
}

function lines() {
  sparkline($("frames-line"), store.totals.frames_per_s);
  sparkline($("bytes-line"), store.totals.bytes_per_s, "--violet");
  sparkline($("drops-line"), store.totals.drops_per_s, "--warn");
  sparkline($("latency-line"), store.totals.latency_p99_ns, "--ok");
}

function shown(status, words) {
  $("status").dataset.state = status;
  text($("status-text"), words);
}

connection.addEventListener("open", async () => {
  shown("live", connection.hello.read_only || !connection.trusted ? "live · looking only" : "live");
  text($("where"), `${connection.hello.host} · ${connection.hello.namespace}`);
  document.title = `framepool · ${connection.hello.host}`;
  try {
    store.recall(await connection.ask("api/history"));
  } catch {
    // the lines begin now
  }
  onwatch();
});
connection.addEventListener("lost", () => shown("lost", "connecting…"));
connection.addEventListener("untrusted", () => sessionStorage.removeItem(TOKEN));
connection.addEventListener("state", ({ detail }) => {
  store.take(detail);
  update();
});
connection.addEventListener("pictures", ({ detail }) => {
  if (!waiting.size) requestAnimationFrame(drawWaiting);
  for (const picture of decode(detail)) waiting.set(picture.stream, picture);
});

const nextTheme = beginTheme($("theme"), () => {
  view.restyle?.();
  if (store.state) lines();
});
const help = $("help");
$("help-button").addEventListener("click", () => help.showModal());

addEventListener("hashchange", route);
addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || help.open) return;
  const typing = event.target.matches?.("input, select, textarea");
  if (event.key === "Escape") {
    if (typing) event.target.blur();
    else if (view instanceof Detail) location.hash = "#/streams";
    return;
  }
  if (typing) return;
  const tab = TABS[Number(event.key) - 1];
  if (view.key?.(event)) event.preventDefault();
  else if (tab) location.hash = `#/${tab}`;
  else if (event.key === "/" && view.search) {
    event.preventDefault();
    view.search.focus();
  } else if (event.key === "t") nextTheme();
  else if (event.key === "?") help.showModal();
});

route();
connection.open();
