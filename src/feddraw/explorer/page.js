/* The page: controls change the state, the state draws everything. */

const DATA = JSON.parse(document.getElementById("data").textContent);
const byId = (id) => document.getElementById(id);
const SETTINGS = ["rounds", "eta", "lam", "beta_max"];

function make(tag, attributes, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children); // text nodes: a name is never read as markup
  return element;
}

/** Where the page begins: one large and three small hospitals, the large one a little apart from the rest. */
function beginning() {
  const first = DATA.presets[0] ?? { name: "", sizes: [20000, 5000, 5000, 5000] };
  const example = [0.91, 0.99, 0.99, 0.98];
  const clients = numbered(first.sizes).map((client, i) => ({ ...client, similarity: example[i] ?? 1 }));
  return { ...DATA.settings, clients, preset: first.name, round: 3, table: null, source: "" };
}

let state = beginning();
let rows = [];

/** Change the state; what is only for some clients of it (controls of clients) is rebuilt when asked. */
function change(changes, { rebuild = false } = {}) {
  state = { ...state, ...changes };
  state.round = Math.min(state.round, state.rounds - 1);
  if (rebuild) buildClients();
  show();
}

/* ---- drawing ---- */

function show() {
  rows = schedule(settingsOf(state));
  const groups = groupsOf(rows);
  showControls(groups);
  showCharts(groups);
  showRound(groups);
  showLegend(groups);
  for (const name of Object.keys(TABLES)) showTable(name);
  later(showLink);
  later(announce);
}

/** Links and announcements wait for the hand to rest. */
const waiting = new Map();
function later(task) {
  clearTimeout(waiting.get(task));
  waiting.set(task, setTimeout(task, 350));
}

const seriesOf = (groups, part) => groups.map(([first]) => ({ index: first, values: rows.map((row) => row.clients[first][part]) }));
const every = (part) => rows.flatMap((row) => row.clients.map((client) => client[part]));
const wide = () => window.innerWidth >= 900;

function showCharts(groups) {
  const { rounds, round } = state;
  const common = { rounds, round, low: 0, format: String };
  const choose = (t) => change({ round: t });
  const fill = (id, spec) => drawChart(byId(id), { ...common, ...spec }, choose);
  const priors = groups.map(([first]) => rows[0].clients[first].prior);
  const equal = groups.map(() => 1 / state.clients.length);
  fill("chart-weights", {
    series: seriesOf(groups, "weight"), high: Math.min(1, 1.05 * Math.max(...every("weight"), ...priors)),
    heading: "FedDRAW", columns: [{ title: "FedAvg", values: priors }, { title: "uniform", values: equal }],
    format: (value) => `${Number((100 * value).toPrecision(6))}%`, height: wide() ? 360 : 220,
    description: `${weightsInWords(rows, groups)} Beside it FedAvg's weights, which are the shares of the images, and uniform weights.`,
  });
  fill("chart-reputation", {
    series: seriesOf(groups, "reputation"), low: Math.min(0, ...every("reputation")), high: 1,
    description: `Reputation of each client by round, from the share of the images to the similarity.`,
  });
  fill("chart-gamma", {
    series: [{ index: 0, values: rows.map((row) => row.gamma) }], high: 1, filled: true,
    description: `Gamma falls from ${decimal(rows[0].gamma)} in round 0 to ${decimal(rows.at(-1).gamma)} in round ${rounds - 1}.`,
  });
  const betas = rows.map((row) => row.beta);
  fill("chart-beta", {
    series: [{ index: 1, values: betas }], high: 1.05 * Math.max(1e-6, ...betas), description: betaInWords(betas),
  });
}

function betaInWords(betas) {
  const known = betas.filter((beta) => beta !== null);
  if (!known.length) return "No round uses beta: the only round takes the shares of the images.";
  return `Beta falls from ${decimal(known[0])} in round ${betas.indexOf(known[0])} to ${decimal(known.at(-1))} in round ${betas.length - 1}.`;
}

function showLegend(groups) {
  const entry = (members) => make("li", {}, swatch(members[0]), namesOf(members, rows[0].clients));
  for (const list of document.querySelectorAll(".legend")) list.replaceChildren(...groups.map(entry));
  byId("settings-line").textContent =
    `T = ${state.rounds}, η = ${state.eta}, λ = ${state.lam}, β_max = ${state.beta_max}, reading “${state.reading}”` +
    (state.table ? `, similarities of every round from ${state.source}` : "");
}

function showRound(groups) {
  const row = rows[state.round];
  byId("round-name").textContent = state.rounds > 1 ? `Round ${state.round} (first 0, last ${state.rounds - 1})` : "Round 0, the only one";
  byId("round-words").textContent = roundWords(row);
  byId("client-words").replaceChildren(...groups.map((members) => clientCard(members, row)));
}

/** Each client's share of weight times images: its influence if updates grow in proportion to images. */
function influences(row) {
  const products = row.clients.map(({ weight, size }) => weight * size);
  const total = products.reduce((sum, product) => sum + product, 0);
  return products.map((product) => product / total);
}

function clientCard(members, row) {
  const { prior, weight } = row.clients[members[0]];
  const influence = influences(row);
  const top = Math.max(...influence, ...row.clients.flatMap((client) => [client.prior, client.weight]));
  const words = make("p", {}, make("strong", {}, namesOf(members, row.clients)), clientWords(members, row));
  const bars = make("div", { class: "bars", "aria-hidden": "true" });
  bars.append(...bar("images", prior, top, "share"), ...bar("weight", weight, top, colourClass(members[0])), ...bar("influence", influence[members[0]], top, "share"));
  return make("li", {}, swatch(members[0]), make("div", {}, words, bars));
}

function bar(label, share, top, kind) {
  const filled = make("i", { class: kind });
  filled.style.width = `${(100 * share) / top}%`;
  return [make("span", {}, label), make("div", { class: "track" }, filled), make("span", {}, `${(100 * share).toFixed(1)}${SPACE}%`)];
}

function announce() {
  const row = rows[state.round];
  const counts = row.clients.map(({ client, weight }) => `${client} ${percent(weight)}`);
  byId("summary").textContent = `Round ${state.round}: ${counts.join(", ")}.`;
}

/* ---- tables and CSV ---- */

const perClient = (part) => () => ({
  header: ["round", ...rows[0].clients.map(({ client }) => client)],
  lines: rows.map((row) => [row.round, ...row.clients.map((client) => client[part])]),
});
const perRound = (part) => () => ({ header: ["round", part], lines: rows.map((row) => [row.round, row[part]]) });
const TABLES = { weights: weightTable, reputation: perClient("reputation"), gamma: perRound("gamma"), beta: perRound("beta"), everything };

function weightTable() {
  const { header, lines } = perClient("weight")();
  const fedavg = ["FedAvg", ...rows[0].clients.map(({ prior }) => prior)];
  const uniform = ["uniform", ...rows[0].clients.map(() => 1 / state.clients.length)];
  return { header, lines: [...lines, fedavg, uniform] };
}

/** One row per round and client, with the columns of a run's weights.csv: the page reads it back. */
function everything() {
  const header = ["round", "client", "size", "prior", "similarity", "gamma", "beta", "reputation", "weight"];
  const lines = rows.flatMap(({ round, gamma, beta, clients }) =>
    clients.map((c) => [round, c.client, c.size, c.prior, c.similarity, gamma, beta, c.reputation, c.weight]));
  return { header, lines };
}

/** Numbers are only written out where someone has opened the table. */
function showTable(name) {
  const place = byId(`table-${name}`);
  if (!place?.closest("details").open) return;
  const { header, lines } = TABLES[name]();
  const text = (value) => (value === null ? "shares" : typeof value === "number" && !Number.isInteger(value) ? value.toFixed(6) : String(value));
  const head = make("tr", {}, ...header.map((cell) => make("th", { scope: "col" }, cell)));
  const body = lines.map(([first, ...rest]) => {
    const line = make("tr", {}, make("th", { scope: "row" }, String(first)), ...rest.map((value) => make("td", {}, text(value))));
    if (first === state.round) line.className = "chosen";
    return line;
  });
  place.replaceChildren(make("table", {}, make("thead", {}, head), make("tbody", {}, ...body)));
}

/** A name that a spreadsheet would run as a formula gets an apostrophe. */
function csvCell(value) {
  if (typeof value === "number") return String(value);
  const text = /^[=+\-@\t]/.test(value ?? "") ? `'${value}` : (value ?? "");
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

function toCsv(name) {
  const { header, lines } = TABLES[name]();
  return [header, ...lines].map((line) => line.map(csvCell).join(",")).join("\n") + "\n";
}

function saveCsv(name) {
  const address = URL.createObjectURL(new Blob([toCsv(name)], { type: "text/csv" }));
  make("a", { href: address, download: `feddraw-${name}.csv` }).click();
  setTimeout(() => URL.revokeObjectURL(address), 10000);
}

/* ---- controls ---- */

/** Set a control unless someone is typing in it. */
function put(element, value) {
  if (document.activeElement !== element || element.type === "range") element.value = value;
}

function showControls(groups) {
  for (const key of SETTINGS) {
    put(byId(key), state[key]);
    put(byId(`${key}-range`), state[key]);
  }
  for (const radio of document.querySelectorAll("[name=reading]")) radio.checked = radio.value === state.reading;
  byId("preset").value = state.preset;
  byId("round").max = state.rounds - 1;
  byId("round").value = state.round;
  byId("round").setAttribute("aria-valuetext", `round ${state.round}`);
  byId("add-client").disabled = state.clients.length >= MOST_CLIENTS;
  byId("from-file").hidden = !state.table;
  byId("from-file-name").textContent = state.table ? `Similarities of ${state.table.length} rounds from ${state.source}` : "";
  state.clients.forEach((client, i) => showClient(client, i, groups));
}

function showClient(client, i, groups) {
  const row = byId("clients").children[i];
  const control = (name) => row.querySelector(`[data-part=${name}]`);
  const similarity = rows[state.round].clients[i].similarity;
  const shared = groups.find((members) => members.includes(i))[0];
  row.querySelector(".swatch").replaceWith(swatch(shared));
  put(control("name"), client.name);
  put(control("size"), client.size);
  control("size-range").value = Math.log10(client.size);
  control("size-range").setAttribute("aria-valuetext", `${client.size} images`);
  put(control("similarity"), state.table ? Number(similarity.toFixed(4)) : similarity);
  control("similarity-range").value = similarity;
  for (const name of ["similarity", "similarity-range"]) control(name).disabled = Boolean(state.table);
  control("remove").disabled = state.clients.length === 1;
  for (const labelled of row.querySelectorAll("[data-label]")) labelled.setAttribute("aria-label", `${labelled.dataset.label} ${client.name}`);
}

function buildClients() {
  const template = byId("client-template").content.firstElementChild;
  byId("clients").replaceChildren(...state.clients.map((_, i) => {
    const row = template.cloneNode(true);
    for (const control of row.querySelectorAll("input")) control.addEventListener("input", () => readClient(control, i));
    row.querySelector("[data-part=remove]").addEventListener("click", () => removeClient(i));
    return row;
  }));
}

function readClient(control, i) {
  attempt(control, () => {
    const part = control.dataset.part.replace("-range", "");
    const value = part === "name" ? control.value.slice(0, LONGEST_NAME) || `C${i + 1}`
      : control.dataset.part === "size-range" ? niceSize(10 ** control.value) : checked(part, control.value);
    const clients = state.clients.map((client, k) => (k === i ? { ...client, [part]: value } : client));
    change({ clients, preset: part === "size" ? "" : state.preset });
  });
}

/** Two digits are enough for a slider. */
const niceSize = (size) => Number(size.toPrecision(2));

function addClient() {
  const taken = new Set(state.clients.map((client) => client.name));
  let number = state.clients.length + 1;
  while (taken.has(`C${number}`)) number += 1;
  const clients = [...state.clients, { name: `C${number}`, size: 5000, similarity: 1 }];
  change({ clients, preset: "", table: state.table?.map((row) => [...row, 1]) ?? null }, { rebuild: true });
  byId("clients").lastElementChild.querySelector("[data-part=size]").focus();
}

function removeClient(i) {
  const others = (list) => list.filter((_, k) => k !== i);
  change({ clients: others(state.clients), preset: "", table: state.table?.map(others) ?? null }, { rebuild: true });
  byId("add-client").focus(); // the button that was pressed is gone
}

function choosePreset(name) {
  const preset = DATA.presets.find((candidate) => candidate.name === name);
  if (!preset) return change({ preset: "" });
  say("");
  change({ clients: numbered(preset.sizes), preset: name, table: null, source: "" }, { rebuild: true });
}

/** Do it, or mark the control and say on the page what is wrong with it. */
function attempt(control, task) {
  try {
    task();
    control.removeAttribute("aria-invalid");
    say("");
  } catch (mistake) {
    if (!(mistake instanceof Mistake)) throw mistake;
    control.setAttribute("aria-invalid", "true");
    say(mistake.message, true);
  }
}

function say(text, wrong = false) {
  byId("message").hidden = !text;
  byId("message").classList.toggle("wrong", wrong);
  byId("message-text").textContent = text;
}

/* ---- files, links, playing ---- */

async function load(file) {
  try {
    if (file.size > 16e6) throw new Mistake("The file is larger than 16 MB.");
    const { notes, ...ledger } = readLedger(await file.text());
    change({ ...ledger, round: 0, preset: "", source: file.name }, { rebuild: true });
    say(`${file.name}: ${ledger.clients.length} clients, ${ledger.rounds} rounds. ${notes.join(" ")}`);
  } catch (mistake) {
    if (!(mistake instanceof Mistake)) throw mistake;
    say(`${file.name} cannot be shown. ${mistake.message}`, true);
  }
}

function showLink() {
  history.replaceState(null, "", `#${toLink(state)}`);
  byId("link").value = location.href;
  byId("link-length").hidden = location.href.length < 4000;
}

function followLink() {
  const text = location.hash.slice(1);
  if (!text || text === toLink(state) || byId(text)) return; // nothing, ours already, or a place on the page
  try {
    change(fromLink(text, beginning()), { rebuild: true });
  } catch (mistake) {
    if (!(mistake instanceof Mistake)) throw mistake;
    say(`This link cannot be shown. ${mistake.message}`, true);
  }
}

async function copyLink() {
  showLink();
  byId("link").select();
  try {
    await navigator.clipboard.writeText(location.href);
    byId("copied").textContent = "Copied.";
  } catch {
    byId("copied").textContent = "Selected: copy it with your keyboard."; // a browser that keeps the clipboard to itself
  }
}

let playing = null;
function play() {
  if (playing) return stop();
  byId("play").textContent = "Stop";
  if (state.round === state.rounds - 1) change({ round: 0 });
  playing = setInterval(() => (state.round < state.rounds - 1 ? change({ round: state.round + 1 }) : stop()), 800);
}

function stop() {
  clearInterval(playing);
  playing = null;
  byId("play").textContent = "Play";
}

/* ---- connections ---- */

function connectSettings() {
  for (const key of SETTINGS) {
    for (const control of [byId(key), byId(`${key}-range`)]) {
      control.addEventListener("input", () => attempt(control, () => change({ [key]: checked(key, control.value) })));
    }
  }
  for (const radio of document.querySelectorAll("[name=reading]")) {
    radio.addEventListener("change", () => change({ reading: radio.value }));
  }
  byId("controls").addEventListener("submit", (event) => event.preventDefault()); // Enter in a box sends nothing
  byId("reset").addEventListener("click", () => change(DATA.settings));
  byId("round").addEventListener("input", () => change({ round: Number(byId("round").value) }));
  byId("play").addEventListener("click", play);
}

function connectClients() {
  byId("preset").addEventListener("change", () => choosePreset(byId("preset").value));
  byId("add-client").addEventListener("click", addClient);
  byId("drop-table").addEventListener("click", () => change({ table: null, source: "" }));
  byId("copy-link").addEventListener("click", copyLink);
  byId("message-close").addEventListener("click", () => say(""));
  byId("file").addEventListener("change", () => {
    if (byId("file").files.length) load(byId("file").files[0]);
    byId("file").value = ""; // the same file may be chosen again
  });
}

/** A file may be dropped anywhere: missing a small target must not make the browser leave the page. */
function connectDrop() {
  document.addEventListener("dragover", (event) => {
    event.preventDefault();
    document.body.classList.add("dropping");
  });
  document.addEventListener("dragleave", (event) => {
    if (!event.relatedTarget) document.body.classList.remove("dropping");
  });
  document.addEventListener("drop", (event) => {
    event.preventDefault();
    document.body.classList.remove("dropping");
    if (event.dataTransfer.files.length) load(event.dataTransfer.files[0]);
  });
}

function connectTables() {
  for (const details of document.querySelectorAll("details[data-table]")) {
    details.addEventListener("toggle", () => showTable(details.dataset.table));
  }
  for (const button of document.querySelectorAll("button[data-csv]")) {
    button.addEventListener("click", () => saveCsv(button.dataset.csv));
  }
}

function fillPresets() {
  for (const dataset of new Set(DATA.presets.map((preset) => preset.dataset))) {
    const options = DATA.presets.filter((preset) => preset.dataset === dataset)
      .map(({ name, composition }) => make("option", { value: name }, `${name} · ${composition}`));
    byId("preset").append(make("optgroup", { label: dataset }, ...options));
  }
}

function begin() {
  fillPresets();
  buildClients();
  connectSettings();
  connectClients();
  connectDrop();
  connectTables();
  byId("link-file").hidden = location.protocol !== "file:";
  show();
  followLink();
  window.addEventListener("hashchange", followLink);
  window.addEventListener("resize", () => showCharts(groupsOf(rows)));
}

begin();
window.feddrawExplorer = { schedule, state: () => structuredClone(state), rows: () => structuredClone(rows), csv: toCsv };
