"use strict";
// The live page: asks for the switch's state once a second and draws it. Texts from the switch are
// only ever set as text.

const SECONDS_SHOWN = 60, ROWS_MAX = 200;
const history = { received: [], dropped: [] };
const byId = (id) => document.getElementById(id);

function make(tag, className, text) {
  const e = document.createElement(tag);
  if (className) e.className = className;
  if (text !== undefined) e.textContent = text;
  return e;
}

// Thousands as k, millions as M.
function si(n) {
  for (const [unit, size] of [["T", 1e12], ["G", 1e9], ["M", 1e6], ["k", 1e3]]) {
    if (n >= 0.9995 * size) return (n / size).toPrecision(3) + unit;
  }
  return n > 0 && n < 9.95 ? n.toFixed(1) : n.toFixed(0);
}

// A number of things: whole as long as it is short.
const count = (n) => n < 1000 ? n.toFixed(0) : si(n);

// May be broken behind commas (a space of no width).
const breakable = (text) => text.replaceAll(",", ",\u200b");

// A table; a column is [head, class, cell of a row]; a cell is a text or an element.
function table(into, columns, rows, none) {
  into.replaceChildren();
  if (rows.length === 0) return into.append(make("p", "none", none));
  const t = make("table"), head = make("tr"), box = make("div", "scroll");
  for (const [name, kind] of columns) head.append(make("th", kind, name));
  t.append(head);
  for (const row of rows.slice(0, ROWS_MAX)) {
    const line = make("tr");
    for (const [name, kind, cell] of columns) {
      const value = cell(row), td = make("td", kind);
      td.dataset.head = name;
      td.append(value instanceof Node ? value : document.createTextNode(value));
      line.append(td);
    }
    t.append(line);
  }
  box.append(t);
  into.append(box);
  if (rows.length > ROWS_MAX) into.append(make("p", "soft", `and ${rows.length - ROWS_MAX} more`));
}

function line(values) {
  const ns = "http://www.w3.org/2000/svg", svg = document.createElementNS(ns, "svg");
  const top = Math.max(1, ...values), p = document.createElementNS(ns, "polyline");
  svg.setAttribute("viewBox", `0 0 ${SECONDS_SHOWN - 1} 20`);
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("aria-hidden", "true");
  const from = SECONDS_SHOWN - values.length;
  p.setAttribute("points", values.map((v, i) => `${from + i},${19 - 18 * v / top}`).join(" "));
  svg.append(p);
  return svg;
}

function tiles(v) {
  for (const name of Object.keys(history)) {
    history[name].push(v[name]);
    if (history[name].length > SECONDS_SHOWN) history[name].shift();
  }
  const busiest = Math.max(0, ...v.cores.filter((c) => c.polls).map((c) => c.busy));
  const all = [
    [si(v.received), "packets/s received", history.received],
    [si(v.sent), "packets/s sent"],
    [si(v.dropped), "packets/s dropped", history.dropped],
    [busiest.toFixed(0) + " %", "busiest PMD thread"],
    [count(v.megaflows), "megaflows"],
    [count(v.openflow_flows), "OpenFlow flows"],
    [`${count(v.buffers[0])} of ${si(v.buffers[1])}`, "packet buffers in use"],
  ];
  byId("tiles").replaceChildren(...all.map(([value, what, values]) => {
    const tile = make("div", "tile");
    tile.append(make("b", "", value), make("span", "", what));
    if (values) tile.append(line(values));
    return tile;
  }));
}

const STAGES = [["rx", "rx"], ["parse", "parse"], ["lookup", "lookup, misses"], ["act_tx", "act, tx"]];

// How a core's time divides: the stages' parts of what it is busy, then asleep; the rest is idle.
function bar(c) {
  const b = make("div", "bar"), sum = STAGES.reduce((n, [s]) => n + (c.stages[s] || 0), 0);
  const part = (name, percent) => {
    const i = make("i", name);
    i.style.setProperty("width", percent.toFixed(2) + "%");
    i.title = `${name}: ${percent.toFixed(1)} %`;
    b.append(i);
  };
  for (const [s] of STAGES) if (sum > 0) part(s, c.busy * c.stages[s] / sum);
  part("sleep", c.asleep);
  return b;
}

function cores(v) {
  const stage = (s) => (c) => si(c.stages[s] || 0);
  table(byId("cores"), [
    ["core", "", (c) => c.name],
    ["busy", "n", (c) => c.busy.toFixed(0) + " %"],
    ["its time", "", bar],
    ["packets/s", "n", (c) => si(c.packets)],
    ["cycles/packet", "n", (c) => si(c.cycles_per_packet)],
    ...STAGES.map(([s, name]) => [name, "n", stage(s)]),
    ["from pipeline", "n", (c) => c.answered[2].toFixed(1) + " %"],
    ["megaflows", "n", (c) => count(c.megaflows[0])],
    ["core taken", "n", (c) => c.waiting === null ? "" : c.waiting.toFixed(0) + " %"],
  ], v.cores, "There are no threads.");
  const key = make("p", "key");
  key.append("rx to act, tx: cycles per packet received, by stage; core taken: by other threads. The bar:");
  for (const [s, name] of [...STAGES, ["sleep", "asleep"]]) {
    const e = make("span");
    e.append(make("i", s), name);
    key.append(e);
  }
  byId("cores").append(key);
}

function rest(v) {
  table(byId("drops"), [
    ["reason", "", (d) => d.reason],
    ["per second", "n", (d) => si(d.rate)],
    ["because", "long", (d) => d.help],
    ["in all", "n", (d) => count(d.total)],
    ["ports", "", (d) => d.ports.slice(0, 4).join(" ")],
  ], v.drops, "No packet was ever dropped.");
  // A port that nobody set up is no fault.
  const classes = { up: "", off: "soft" };
  const state = (p) => {
    const e = make("span", classes[p.state] ?? "bad", p.state);
    // Where there is no room for all of an error.
    e.title = p.state;
    return e;
  };
  table(byId("ports"), [
    ["port", "", (p) => p.name],
    ["state", "state", state],
    ["rx packets/s", "n", (p) => si(p.rx)],
    ["tx packets/s", "n", (p) => si(p.tx)],
    ["drops/s", "n", (p) => si(p.dropped)],
    ["rx bit/s", "n", (p) => si(p.rx_bits)],
    ["tx bit/s", "n", (p) => si(p.tx_bits)],
    ["bridge", "", (p) => p.bridge],
    ["type", "", (p) => p.kind],
  ], [...v.ports].sort((a, b) => b.rx + b.tx - a.rx - a.tx), "There are no ports.");
  byId("guests-part").hidden = v.guests.length === 0;
  const wrong = (g) => Object.entries(g.wrong).filter(([, n]) => n > 0);
  table(byId("guests"), [
    ["port", "", (g) => g.name],
    ["state", "", (g) => g.connected ? "connected" : make("span", "bad", "away")],
    ["from it/s", "n", (g) => si(g.from)],
    ["to it/s", "n", (g) => si(g.to)],
    ["lost, full/s", "n", (g) => si(g.full)],
    ["rings", "", (g) => g.ring_sizes.join(" ")],
    ["did wrong", "", (g) => wrong(g).map(([what, n]) => `${what} ${n}`).join(", ")],
    ["features", "long", (g) => g.features.join(" ")],
  ], v.guests, "");
  table(byId("flows"), [
    ["packets/s", "n", (f) => si(f.rate)],
    ["bit/s", "n", (f) => si(f.bits)],
    ["core", "", (f) => f.core],
    ["match", "long code", (f) => breakable(f.match)],
    ["actions", "long code", (f) => breakable(f.actions)],
  ], v.flows.filter((f) => f.rate > 0).slice(0, 12), v.flows_error || "No megaflow carries packets now.");
  const bridges = [...new Set(v.ports.map((p) => p.bridge))], select = byId("bridge");
  if (bridges.join() !== [...select.options].map((o) => o.value).join()) {
    select.replaceChildren(...bridges.map((b) => new Option(b)));
    const asked = new URLSearchParams(location.hash.slice(1));
    if (bridges.includes(asked.get("bridge")) && asked.get("flow")) {
      select.value = asked.get("bridge");
      byId("flow").value = asked.get("flow");
      byId("trace").requestSubmit();
    }
  }
  byId("footer").textContent = `Weft ${v.version}; rates over the last ${v.seconds.toFixed(1)} s`;
}

async function get(path) {
  const answer = await fetch(path, { cache: "no-store" });
  const value = await answer.json();
  if (!answer.ok) throw new Error(value.error || answer.statusText);
  return value;
}

async function look() {
  const limit = byId("limit"), main = document.querySelector("main");
  try {
    const v = await get("view.json");
    limit.textContent = v.limit;
    limit.className = v.limit.startsWith("Nothing") ? "" : "bad";
    tiles(v);
    cores(v);
    rest(v);
    main.className = "";
  } catch (e) {
    limit.textContent = e.message;
    limit.className = "bad";
    // What is shown is no longer so.
    main.className = "old";
  }
  // Nobody looks at a page that is hidden.
  const wait = () => document.hidden ? document.addEventListener("visibilitychange", look, { once: true }) : look();
  setTimeout(wait, 1000);
}

// The lines of ofproto/trace as boxes: one per bridge, table and end, actions inside.
function way(text) {
  const boxes = [];
  const box = (title, end) => boxes.push({ title, end, lines: [] });
  for (const l of text.split("\n")) {
    const t = l.trim();
    if (!t || /^-+$/.test(t)) continue;
    const table = t.match(/^(\d+)\. (.*)/), end = t.match(/^(Final flow|Megaflow|Datapath actions): ?(.*)/);
    const start = t.match(/^(Flow|bridge\(.*\)):? ?(.*)/);
    if (end) { box(end[1], true); boxes.at(-1).lines.push(end[2]); }
    else if (table) { box("table " + table[1]); boxes.at(-1).lines.push(table[2]); }
    else if (start) { box(start[1]); if (start[2]) boxes.at(-1).lines.push(start[2]); }
    else if (boxes.length) boxes.at(-1).lines.push(t);
    else { box("trace"); boxes.at(-1).lines.push(t); }
  }
  return boxes.flatMap((b, i) => {
    const e = make("div", b.end ? "step end" : "step");
    e.append(make("b", "", b.title), ...b.lines.map((l) => make("code", "", l)));
    return i === 0 ? [e] : [make("div", "arrow", "↓"), e];
  });
}

// The address of the page names what is traced: #bridge=br0&flow=in_port=1
byId("trace").addEventListener("submit", async (event) => {
  event.preventDefault();
  const q = new URLSearchParams({ bridge: byId("bridge").value, flow: byId("flow").value });
  location.hash = q;
  try {
    byId("way").replaceChildren(...way((await get("trace.json?" + q)).trace));
  } catch (e) {
    byId("way").replaceChildren(make("p", "bad", e.message));
  }
});

look();
