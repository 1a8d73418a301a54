/* What the page shows, as one object; its checks, its link, and a run's weights.csv read into it. */

const MOST_CLIENTS = 20;
const MOST_ROUNDS = 1000;
const LONGEST_NAME = 40;
// What a box accepts; the sliders beside the boxes cover the usual part of it.
const LIMITS = {
  rounds: { name: "T", low: 1, high: MOST_ROUNDS, whole: true },
  eta: { name: "eta", low: 1e-6, high: 100 },
  lam: { name: "lambda", low: 1e-6, high: 100 },
  beta_max: { name: "beta_max", low: 1e-6, high: 1000 },
  size: { name: "a size", low: 1, high: 1e9 },
  similarity: { name: "a similarity", low: -1, high: 1 },
};

/** A mistake that the reader can mend: its message is shown on the page. */
class Mistake extends Error {}

function checked(kind, text) {
  const { name, low, high, whole } = LIMITS[kind];
  const value = typeof text === "string" && text.trim() === "" ? NaN : Number(text);
  if (!(value >= low && value <= high) || (whole && !Number.isInteger(value))) {
    throw new Mistake(`${name} must be a ${whole ? "whole " : ""}number from ${low} to ${high}, not “${text}”.`);
  }
  return value;
}

const numbered = (sizes) => sizes.map((size, i) => ({ name: `C${i + 1}`, size, similarity: 1 }));

/** The arguments of `schedule`. A file's last round goes on where T is longer than the file. */
function settingsOf(state) {
  const { rounds, eta, lam, beta_max, reading, table } = state;
  const row = (t) => table[Math.min(t, table.length - 1)];
  return {
    rounds, eta, lam, beta_max, reading,
    clients: state.clients.map((client) => client.name),
    sizes: state.clients.map((client) => client.size),
    similarities: table ? Array.from({ length: rounds }, (_, t) => row(t)) : state.clients.map((c) => c.similarity),
  };
}

/* ---- the link ---- */

function toLink(state) {
  const client = ({ name, size, similarity }) => [encodeURIComponent(name), size, similarity].join(":");
  const parts = {
    T: state.rounds, eta: state.eta, lambda: state.lam, beta_max: state.beta_max, reading: state.reading,
    t: state.round, preset: state.preset, clients: state.clients.map(client).join(","),
  };
  if (state.table) parts.s = state.table.map((row) => row.join(":")).join(",");
  return Object.entries(parts).filter(([, value]) => value !== "").map((pair) => pair.join("=")).join("&");
}

/** The state that a link carries, on top of the defaults; throws a Mistake if the link is damaged. */
function fromLink(text, defaults) {
  const given = Object.fromEntries(text.split("&").map((part) => part.split("=")));
  const number = (key, kind) => (key in given ? checked(kind, given[key]) : defaults[kind]);
  const clients = "clients" in given ? given.clients.split(",").map(clientOfLink) : defaults.clients;
  const rounds = number("T", "rounds");
  const state = {
    rounds, clients,
    eta: number("eta", "eta"),
    lam: number("lambda", "lam"),
    beta_max: number("beta_max", "beta_max"),
    reading: given.reading ?? defaults.reading,
    round: Math.max(0, Math.min(Number.parseInt(given.t ?? "0", 10) || 0, rounds - 1)),
    preset: given.preset ?? "",
    table: given.s ? tableOfLink(given.s, clients.length) : null,
    source: given.s ? "this link" : "",
  };
  if (!READINGS.includes(state.reading)) throw new Mistake(`There is no reading “${state.reading}”.`);
  if (clients.length > MOST_CLIENTS) throw new Mistake(`The link has ${clients.length} clients; the page shows ${MOST_CLIENTS}.`);
  return state;
}

function clientOfLink(text, i) {
  const [name, size, similarity] = text.split(":");
  return { name: nameOf(name, i), size: checked("size", size), similarity: checked("similarity", similarity ?? "1") };
}

function nameOf(encoded, i) {
  try {
    return decodeURIComponent(encoded).slice(0, LONGEST_NAME) || `C${i + 1}`;
  } catch {
    throw new Mistake("A client's name in the link is damaged.");
  }
}

function tableOfLink(text, width) {
  const rows = text.split(",").map((row) => row.split(":").map((cell) => checked("similarity", cell)));
  if (rows.length > MOST_ROUNDS || rows.some((row) => row.length !== width)) {
    throw new Mistake("The similarities in the link do not fit its clients.");
  }
  return rows;
}

/* ---- a run's weights.csv ---- */

/** Rows of cells; quotes as in RFC 4180. */
function parseCsv(text) {
  const rows = [[]];
  const cell = /("(?:[^"]|"")*"|[^",\r\n][^,\r\n]*|)(,|\r?\n|\r|$)/y;
  while (cell.lastIndex < text.length) {
    const [, raw, end] = cell.exec(text) ?? [];
    if (raw === undefined) throw new Mistake("A quotation mark in the file is never closed.");
    rows.at(-1).push(raw.startsWith('"') ? raw.slice(1, -1).replaceAll('""', '"') : raw);
    if (end !== "," && end !== "") rows.push([]);
  }
  return rows.filter((row) => row.some((value) => value.trim() !== ""));
}

const COLUMNS = ["round", "client", "size", "similarity"];

/** The lines of a ledger as objects with the four columns that matter here, and the status if there is one. */
function ledgerLines(text) {
  const [header = [], ...rows] = parseCsv(text.replace(/^\uFEFF/, ""));
  const names = header.map((name) => name.trim());
  const absent = COLUMNS.filter((name) => !names.includes(name));
  if (absent.length) throw new Mistake(`The file has no column ${absent.join(", ")}: a run's weights.csv has ${COLUMNS.join(", ")}.`);
  if (!rows.length) throw new Mistake("The file has a header and no rounds.");
  return rows.map((row, i) => ledgerLine(names, row, i + 2));
}

function ledgerLine(names, row, line) {
  const cell = Object.fromEntries(names.map((name, i) => [name, (row[i] ?? "").trim()]));
  const inLine = (kind, text, otherwise) => {
    try {
      return text === "" ? otherwise : checked(kind, text);
    } catch (mistake) {
      throw new Mistake(`Line ${line}: ${mistake.message}`);
    }
  };
  const round = Number(cell.round);
  if (cell.round === "" || !Number.isInteger(round) || round < 0 || round >= MOST_ROUNDS) {
    throw new Mistake(`Line ${line}: round must be a whole number from 0 to ${MOST_ROUNDS - 1}, not “${cell.round}”.`);
  }
  if (!cell.client) throw new Mistake(`Line ${line} names no client.`);
  const absent = cell.size === "0" || cell.size === ""; // how a ledger writes a client that sent nothing
  return {
    round,
    client: cell.client.slice(0, LONGEST_NAME),
    size: absent ? null : inLine("size", cell.size),
    similarity: inLine("similarity", cell.similarity, null),
    weighted: !cell.status || cell.status.startsWith("weighted"), // "weighted: …" has a note behind it
  };
}

/** Clients, rounds and similarities of a run, and notes on what the page had to assume. */
function readLedger(text) {
  const lines = ledgerLines(text);
  const names = [...new Set(lines.map((line) => line.client))];
  if (names.length > MOST_CLIENTS) throw new Mistake(`The file has ${names.length} clients; the page shows up to ${MOST_CLIENTS}.`);
  const rounds = Math.max(...lines.map((line) => line.round)) + 1;
  const table = Array.from({ length: rounds }, () => names.map(() => 1)); // a missing similarity is 1
  const seen = new Set();
  for (const line of lines) {
    const place = `${line.round} ${line.client}`;
    if (seen.has(place)) throw new Mistake(`Round ${line.round} has ${line.client} twice.`);
    seen.add(place);
    if (line.similarity !== null) table[line.round][names.indexOf(line.client)] = line.similarity;
  }
  return { clients: clientsOfLedger(lines, names), rounds, table, notes: notesOf(lines) };
}

function clientsOfLedger(lines, names) {
  return names.map((name) => {
    const size = lines.find((line) => line.client === name && line.size !== null)?.size;
    if (size === undefined) throw new Mistake(`The file gives no size for ${name}.`);
    return { name, size, similarity: 1 };
  });
}

function notesOf(lines) {
  const notes = [];
  const without = lines.filter((line) => line.similarity === null).length;
  const unweighted = lines.filter((line) => !line.weighted).length;
  if (without === lines.length) notes.push("It holds no similarities (only FedDRAW measures them): all are taken as 1.");
  else if (without) notes.push(`${without} missing similarities are taken as 1.`);
  if (unweighted) notes.push(`${unweighted} updates were missing or refused in the run; here every client counts in every round.`);
  return notes;
}
