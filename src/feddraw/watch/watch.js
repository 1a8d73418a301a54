/* Asks the server what has changed, draws it, and keeps trying when one of the two was restarted. */
"use strict";
(() => {
  const byId = (id) => document.getElementById(id);
  const key = new URLSearchParams(location.hash.slice(1)).get("key") ?? "";
  const WORDS = { running: "running", waiting: "waiting", finished: "finished", stopped: "stopped", failed: "failed", broken: "unreadable" };
  const ORDER = ["running", "failed", "broken", "stopped", "waiting", "finished"];
  const FILTERS = { all: "all", running: "running", finished: "finished", wanting: "with problems" };
  const known = { instance: "", version: -1, page: "", runs: new Map(), order: [], left: {}, waiting: [], failed: {}, counts: {} };
  const detail = { id: null, chosen: false, tag: "", data: null };
  let heard = 0; // when the server last answered, in milliseconds of this page
  let failures = 0;
  let timer = 0;

  // ---------------------------------------------------------------------------------------- words

  const plural = (count, word) => `${count} ${word}${count === 1 ? "" : "s"}`;
  const shown = (value, digits = 3) => (value === null || value === undefined ? "–" : value.toFixed(digits));
  const lastOf = (row) => row.filter((value) => value !== null).at(-1);

  function duration(seconds) {
    const s = Math.max(0, Math.round(seconds));
    if (s < 90) return `${s} s`;
    if (s < 5400) return `${Math.round(s / 60)} min`;
    const minutes = Math.round(s / 60);
    return `${Math.floor(minutes / 60)} h ${String(minutes % 60).padStart(2, "0")} min`;
  }

  /** Remaining seconds, counted down since the server said them. */
  function remaining(seconds) {
    return seconds === null || seconds === undefined ? null : Math.max(0, seconds - (performance.now() - heard) / 1000);
  }

  const leftWords = (seconds) => (seconds === null ? "time left: estimating" : seconds < 1 ? "any moment" : `about ${duration(seconds)} left`);
  const ago = (time) => `${duration(known.now + (performance.now() - heard) / 1000 - time)} ago`;

  function element(tag, properties = {}, ...children) {
    const made = Object.assign(document.createElement(tag), properties);
    made.append(...children);
    return made;
  }

  /** Writing the same text again would be read out again, and would end a selection. */
  function write(node, text) {
    if (node.textContent !== text) node.textContent = text;
  }

  // ---------------------------------------------------------------------------------------- asking

  async function ask(path, headers = {}) {
    const signal = AbortSignal.timeout(10000);
    return fetch(path, { headers: { "X-Feddraw-Key": key, ...headers }, cache: "no-store", signal });
  }

  async function look() {
    clearTimeout(timer);
    try {
      const answer = await ask(`/state?since=${known.version}&instance=${known.instance}`);
      if (answer.status === 403) {
        connection("lost", "no access: open the address that feddraw watch printed");
        timer = setTimeout(look, 15000);
        return;
      }
      if (!answer.ok) throw new Error(`status ${answer.status}`);
      take(await answer.json());
      await lookAtRun();
      failures = 0;
      connection("live", known.counts.running ? "live" : "live, nothing is running");
    } catch (error) {
      failures += 1;
      known.left = {};
      connection("lost", heard ? `reconnecting, last heard ${duration((performance.now() - heard) / 1000)} ago` : "reconnecting");
    }
    const pause = failures ? Math.min(15, 2 ** (failures - 1)) : document.hidden ? 10 : known.counts.running ? 1 : 3;
    timer = setTimeout(look, 1000 * pause);
  }

  function take(state) {
    if (known.page && known.page !== state.page) location.reload(); // the server was updated
    if (known.instance !== state.instance) begin(state.changed);
    for (const run of state.changed) known.runs.set(run.id, run);
    const { changed, ...others } = state;
    Object.assign(known, others);
    heard = performance.now();
    for (const id of known.runs.keys()) if (!known.order.includes(id)) known.runs.delete(id);
    document.title = `${known.counts.finished ?? 0}/${total()} feddraw watch`;
    choose();
    drawAll();
    if (changed.length) drawMethods();
  }

  /** Another server counts the runs anew: the chosen one is known by its name. */
  function begin(runs) {
    const name = known.runs.get(detail.id)?.name;
    known.runs.clear();
    Object.assign(detail, { id: runs.find((run) => run.name === name)?.id ?? null, tag: "", data: null });
  }

  const total = () => known.order.length + known.waiting.length + Object.keys(known.failed).length;

  async function lookAtRun() {
    const run = known.runs.get(detail.id);
    if (!run) return;
    const answer = await ask(`/run?id=${run.id}`, detail.tag ? { "If-None-Match": detail.tag } : {});
    if (answer.status === 304 || answer.status === 404) return;
    if (!answer.ok) throw new Error(`status ${answer.status}`);
    const data = await answer.json();
    if (run.id !== detail.id) return; // another one was chosen in the meantime
    Object.assign(detail, { tag: answer.headers.get("ETag"), data });
    drawRun();
  }

  /** Whoever has not chosen a run sees the one that is running. */
  function choose() {
    if (known.runs.has(detail.id) && (detail.chosen || known.runs.get(detail.id).state === "running")) return;
    const runs = sorted();
    const best = runs.find((run) => run.state === "running") ?? known.runs.get(detail.id) ?? runs.at(0);
    if (best && best.id !== detail.id) Object.assign(detail, { id: best.id, chosen: false, tag: "", data: null });
  }

  function connection(kind, words) {
    byId("connection").className = kind;
    write(byId("connection-words"), words);
  }

  // ---------------------------------------------------------------------------------------- all runs

  const wanting = (run) => run.trouble > 0 || run.diverged || ["failed", "broken", "stopped"].includes(run.state);
  const sorted = () => known.order.map((id) => known.runs.get(id)).filter(Boolean)
    .sort((a, b) => ORDER.indexOf(a.state) - ORDER.indexOf(b.state) || (a.state === "finished" ? b.updated - a.updated : 0) || a.id - b.id);

  function drawAll() {
    write(byId("title"), known.title);
    const { finished = 0, running = 0 } = known.counts;
    const left = remaining(known.all_left);
    const rest = running ? `, ${leftWords(left)}` : "";
    const only = known.order.length === 1 && total() === 1 ? known.runs.get(known.order[0]) : null;
    if (!total()) write(byId("headline"), "No run here yet");
    else if (only) write(byId("headline"), `${WORDS[only.state][0].toUpperCase()}${WORDS[only.state].slice(1)}: ${roundWords(only)}${rest}`);
    else write(byId("headline"), `${finished} of ${plural(total(), "run")} finished${rest}`);
    const percent = Math.round(100 * known.share);
    byId("whole").setAttribute("aria-valuenow", percent);
    byId("whole").firstElementChild.style.width = `${percent}%`;
    const states = ORDER.filter((state) => known.counts[state]).map((state) => `${known.counts[state]} ${WORDS[state]}`);
    write(byId("counts"), total() ? states.join(" · ") : "Runs appear here as soon as they begin.");
    drawList();
  }

  const roundWords = (run) => (run.rounds ? `${run.done} of ${plural(run.rounds, "round")} done` : plural(run.done, "round"));
  const titleOf = (run) => (run.method ? `${run.method}${known.order.length > 1 && run.seed !== null ? `, seed ${run.seed}` : ""}` : run.name);

  function drawList() {
    const filter = byId("filter").value || "all";
    const list = byId("runs");
    const old = new Map([...list.querySelectorAll("button")].map((button) => [Number(button.dataset.id), button]));
    const items = [];
    for (const run of sorted()) {
      if ((filter === "wanting" && !wanting(run)) || (["running", "finished"].includes(filter) && run.state !== filter)) continue;
      const button = old.get(run.id) ?? newButton(run.id);
      fill(button, run);
      items.push(button.parentElement);
    }
    const others = filter === "all" ? [...Object.entries(known.failed).map(([name, why]) => `${name}: failed, ${why}`), ...waitingWords()] : [];
    items.push(...others.map((words) => element("li", { className: "quiet", textContent: words })));
    const same = items.length === list.children.length && items.every((item, i) => item === list.children[i]);
    if (!same) list.replaceChildren(...items);
    list.hidden = !items.length;
    byId("no-runs").hidden = Boolean(items.length);
    write(byId("no-runs"), filter === "all" ? "Nothing yet." : `No runs match “${FILTERS[filter]}”.`);
  }

  const waitingWords = () => (known.waiting.length ? [`${plural(known.waiting.length, "run")} waiting: ${known.waiting.slice(0, 3).join(", ")}${known.waiting.length > 3 ? ", …" : ""}`] : []);

  function newButton(id) {
    const button = element("button", { type: "button" });
    button.dataset.id = id;
    for (const name of ["name", "area", "now", "rest", "bar"]) button.append(element("span", { className: name }));
    button.querySelector(".bar").append(element("span"));
    button.addEventListener("click", () => {
      Object.assign(detail, { id, chosen: true, tag: "", data: null });
      drawAll();
      look();
      if (innerWidth < 1000) byId("detail").scrollIntoView();
    });
    element("li", {}, button);
    return button;
  }

  function fill(button, run) {
    const part = (name) => button.querySelector(`.${name}`);
    write(part("name"), titleOf(run));
    part("name").title = run.name;
    const last = run.curve.at(-1)?.[1];
    write(part("area"), run.test !== null ? `test ${shown(run.test)}` : last !== undefined ? shown(last) : "");
    const notes = [WORDS[run.state], roundWords(run)];
    if (run.diverged) notes.push("diverged");
    else if (run.trouble) notes.push(plural(run.trouble, "problem"));
    write(part("now"), notes.join(" · "));
    part("now").classList.toggle("wants", wanting(run));
    const rest = run.state === "running" ? leftWords(remaining(known.left[run.id] ?? null)).replace("time left: ", "") : run.spent ? duration(run.spent) : "";
    write(part("rest"), rest);
    part("bar").hidden = run.state !== "running";
    part("bar").firstElementChild.style.width = `${run.rounds ? (100 * run.done) / run.rounds : 0}%`;
    if (run.id === detail.id) button.setAttribute("aria-current", "true");
    else button.removeAttribute("aria-current");
  }

  // ---------------------------------------------------------------------------------------- charts

  /** One value per round from points at some rounds: straight lines between them, nothing beyond them. */
  function spread(points, rounds) {
    const values = Array(rounds).fill(null);
    points.forEach(([t, value], i) => {
      values[t] = value;
      const [before, earlier] = points[i - 1] ?? [t, value];
      if (value === null || earlier === null) return;
      for (let u = before + 1; u < t; u += 1) values[u] = earlier + ((value - earlier) * (u - before)) / (t - before);
    });
    return values;
  }

  /** The rounds of a row that have a number, with it. */
  const pointsOf = (row) => row.map((value, t) => [t, value]).filter(([, value]) => value !== null);

  function limits(rows, { zero = false, margin = 0.06 } = {}) {
    const values = rows.flat().filter((value) => value !== null);
    if (!values.length) return [0, 1];
    const low = zero ? Math.min(0, ...values) : Math.min(...values);
    const high = Math.max(...values);
    const room = margin * (high - low || Math.abs(high) || 1);
    return [zero ? low : low - room, high + room];
  }

  /** Rows have [round, value] for every round with a number: these have a marker, with lines between them. */
  function chart(place, points, rounds, options, description) {
    const rows = points.map((row) => spread(row, rounds));
    const [low, high] = limits(rows, options);
    const digits = high - low < 0.08 ? 3 : high - low < 20 ? 2 : 0;
    const series = rows.map((values, index) => ({ index, values, marked: new Set(points[index].map(([t]) => t)) }));
    drawChart(place, { rounds, low, high, series, description, height: options.height ?? 220, format: (value) => (options.seconds ? shown(value, high < 10 ? 1 : 0) : shown(value, digits)) });
  }

  /** The mean validation curve of each method: what a comparison looks like while it grows. */
  function drawMethods() {
    const groups = new Map();
    for (const run of known.runs.values()) {
      const name = known.scenarios > 1 ? `${run.method}, ${run.scenario}` : run.method;
      if (run.curve.length && run.method) groups.set(name, [...(groups.get(name) ?? []), run]);
    }
    const enough = known.runs.size > 1 && groups.size > 0;
    byId("comparison").hidden = !enough;
    if (!enough) return;
    const names = [...groups.keys()].sort((a, b) => (b.startsWith("feddraw") - a.startsWith("feddraw")) ).slice(0, 12);
    const rounds = Math.max(1, ...names.flatMap((name) => groups.get(name).map((run) => Math.max(run.rounds, run.done))));
    const rows = names.map((name) => {
      const curves = groups.get(name).map((run) => spread(run.curve, rounds));
      return Array.from({ length: rounds }, (_, t) => {
        const there = curves.map((curve) => curve[t]).filter((value) => value !== null);
        return there.length ? there.reduce((a, b) => a + b) / there.length : null;
      });
    });
    const last = rows.map(lastOf);
    chart(byId("chart-methods"), rows.map(pointsOf), rounds, { height: 230 }, `Mean validation AUC by round: ${names.map((name, i) => `${name} ${shown(last[i])}`).join(", ")}.`);
    legend(byId("legend-methods"), names.map((name, i) => [name, `${shown(last[i])}, ${plural(groups.get(name).length, "run")}`]));
  }

  function legend(list, entries) {
    list.replaceChildren(...entries.map(([name, words], index) => element("li", {}, swatch(index), element("span", {}, element("b", { textContent: name }), ` ${words}`))));
  }

  // ---------------------------------------------------------------------------------------- one run

  function drawRun() {
    const run = known.runs.get(detail.id);
    byId("detail").hidden = !run || !detail.data;
    if (!run || !detail.data) return;
    const { at, clients, all_clients, sizes, weights, influence, client_seconds, site_auc, validation, loss } = detail.data;
    write(byId("run-heading"), known.order.length > 1 ? run.name : titleOf(run));
    drawRunWords();
    drawProblems(run);
    const rounds = Math.max(run.rounds, run.done, 1);
    const over = (row) => at.map((t, i) => [t, row[i]]).filter(([, value]) => value !== null);
    const shares = weights.map(over);
    const lastWeight = weights.map(lastOf);
    chart(byId("chart-weights"), shares, rounds, { zero: true }, `Weights by round: ${clients.map((name, i) => `${name} ${shown(lastWeight[i])}`).join(", ")}.`);
    const judged = validation.some((value) => value !== null);
    const lossKnown = !run.done || loss.some((value) => value !== null);
    // a server writes the ledger when a round has trained, and the round's line when it was evaluated
    const evaluating = run.state === "running" && run.done === 1;
    const noLoss = evaluating ? "Training loss: known after the evaluation" : "Training loss: not in this folder";
    write(byId("quality-heading"), judged ? "Validation AUC" : lossKnown ? "Training loss" : noLoss);
    const quality = over(judged ? validation : loss);
    chart(byId("chart-quality"), [quality], rounds, {}, `${judged ? "Validation AUC" : "Training loss"} by round, last ${shown(quality.at(-1)?.[1])}.`);
    legend(byId("legend-clients"), clients.map((name, i) => [name, legendWords(lastWeight[i], influence[i], sizes[i])]));
    const some = `${clients.length} of ${all_clients} clients are shown: those that count most`;
    if (all_clients > clients.length) byId("legend-clients").append(element("li", { textContent: some }));
    const known_at_sites = site_auc.some((row) => row.some((value) => value !== null));
    byId("sites").hidden = !known_at_sites;
    if (known_at_sites) chart(byId("chart-sites"), site_auc.map(over), rounds, { height: 170 }, `Validation AUC by round and client: ${clients.map((name, i) => `${name} ${shown(lastOf(site_auc[i]))}`).join(", ")}.`);
    const timed = client_seconds.some((row) => row.some((value) => value !== null));
    byId("chart-seconds").hidden = !timed;
    byId("no-seconds").hidden = timed;
    write(byId("no-seconds"), run.done && !evaluating ? "The clients of this run do not say how long they train." : "Known after the first round.");
    if (timed) chart(byId("chart-seconds"), client_seconds.map(over), rounds, { zero: true, seconds: true, height: 170 }, `Seconds of training by round and client: ${clients.map((name, i) => `${name} ${shown(lastOf(client_seconds[i]), 1)}`).join(", ")}.`);
    write(byId("evaluated"), evaluationWords(detail.data.evaluations));
    drawNumbers();
  }

  /** A client's last weight, its influence where the ledger knows it, and its images. */
  function legendWords(weight, influence, size) {
    const parts = [`weight ${shown(weight)}`];
    if (influence !== null) parts.push(`influence ${shown(influence)}`);
    if (size) parts.push(`${size.toLocaleString("en")} images`);
    return parts.join(", ");
  }

  /** Which sites of a federation have evaluated the model of the last round, and which have not. */
  function evaluationWords(evaluations) {
    if (!evaluations.length) return "";
    const done = evaluations.filter(({ status }) => status === "evaluated").map(({ client, images, seconds, auc }) => {
      const facts = [images === null ? "" : plural(images, "image"), seconds === null ? "" : `${shown(seconds, 1)} s`, auc === null ? "" : `AUC ${shown(auc)}`].filter(Boolean);
      return facts.length ? `${client} (${facts.join(", ")})` : client;
    });
    const others = evaluations.filter(({ status }) => status !== "evaluated").map(({ client, status }) => `${client} (${status})`);
    const by = done.length ? `Evaluated at ${done.join(", ")}.` : "No site has evaluated the last model.";
    return others.length ? `${by} Not evaluated at ${others.join(", ")}.` : by;
  }

  /** What changes every second. */
  function drawRunWords() {
    const run = known.runs.get(detail.id);
    if (!run || !detail.data) return;
    const { data, model, server, validation, seconds } = detail.data;
    byId("run-state").className = `state${run.state === "running" ? " live" : wanting(run) ? " lost" : ""}`;
    if (!byId("run-state").firstElementChild) byId("run-state").append(element("span", { className: "lamp" }), element("span"));
    write(byId("run-state").lastElementChild, run.state === "running" ? `running, ${leftWords(remaining(known.left[run.id] ?? null))}` : WORDS[run.state]);
    const best = Math.max(...validation.filter((value) => value !== null));
    const parts = [[run.method, run.scenario && `on ${run.scenario}`].filter(Boolean).join(" "), [data, model].filter(Boolean).join(", "), roundWords(run)];
    if (server) parts.unshift("folder of a Flower or FLARE server, without settings and metrics");
    if (Number.isFinite(best)) parts.push(`best validation AUC ${shown(best)}`);
    if (run.updated) parts.push(`last written ${ago(run.updated)}`);
    write(byId("run-words"), parts.filter(Boolean).join(" · "));
    const last = seconds.at(-1);
    const each = last ? Object.entries(last).map(([what, time]) => `${what} ${shown(time, time < 10 ? 1 : 0)} s`).join(", ") : "";
    write(byId("parts"), each ? `The last round: ${each}.` : "");
  }

  function drawProblems(run) {
    const problems = [];
    if (run.diverged) problems.push(`The run has diverged: ${run.diverged}. Try a lower training.lr.`);
    if (run.state === "failed" || run.state === "broken") problems.push(run.why);
    if (run.state === "stopped" && run.why) problems.push(`The run has stopped: ${run.why}`);
    else if (run.state === "stopped" && detail.data.unlocked) problems.push("Nothing was written lately. This server's folder does not show whether it goes on.");
    else if (run.state === "stopped") problems.push("No process is working on this run. What was done is kept: start it again with --resume, on a Flower server with resume = true, to go on.");
    const grouped = new Map();
    for (const { round, client, status } of detail.data.trouble) {
      const name = `${client}: ${status}`;
      grouped.set(name, [...(grouped.get(name) ?? []), round]);
    }
    for (const [name, rounds] of grouped) problems.push(`${name} (round${rounds.length > 1 ? "s" : ""} ${ranges(rounds)})`);
    const place = byId("problems");
    if (!problems.length) {
      place.replaceChildren();
      return;
    }
    const items = problems.map((words) => element("li", { textContent: words }));
    const more = items.splice(5);
    const parts = [element("h3", { textContent: grouped.size ? "Problems and notes" : "Attention" }), element("ul", {}, ...items)];
    if (more.length) parts.push(element("details", {}, element("summary", { textContent: `${more.length} more` }), element("ul", {}, ...more)));
    place.replaceChildren(...parts);
  }

  /** 0, 1, 2, 5 as «0 to 2, 5». */
  function ranges(rounds) {
    const parts = [];
    for (const t of [...new Set(rounds)].sort((a, b) => a - b)) {
      const last = parts.at(-1);
      if (last && last[1] === t - 1) last[1] = t;
      else parts.push([t, t]);
    }
    return parts.map(([a, b]) => (a === b ? `${a}` : b === a + 1 ? `${a}, ${b}` : `${a} to ${b}`)).join(", ");
  }

  function drawNumbers() {
    const { at, clients, weights, validation, loss } = detail.data;
    const row = (cells, tag, scope) => element("tr", {}, ...cells.map((cell, i) => element(i && tag === "td" ? "td" : "th", { textContent: cell, ...(i && tag === "td" ? {} : { scope }) })));
    const head = element("thead", {}, row(["round", "loss", "validation AUC", ...clients], "th", "col"));
    const body = at.map((t, i) => row([String(t), shown(loss[i], 4), shown(validation[i], 4), ...weights.map((values) => shown(values[i], 4))], "td", "row"));
    byId("numbers").replaceChildren(head, element("tbody", {}, ...body.reverse()));
  }

  // ---------------------------------------------------------------------------------------- always

  byId("filter").append(...Object.entries(FILTERS).map(([value, textContent]) => element("option", { value, textContent })));
  byId("filter").addEventListener("change", drawList);
  document.addEventListener("visibilitychange", () => { if (!document.hidden) look(); });
  addEventListener("online", look);
  addEventListener("resize", () => { drawMethods(); drawRun(); });
  setInterval(() => {
    if (!heard || failures) return;
    drawAll();
    drawRunWords();
  }, 1000);
  look();
})();
