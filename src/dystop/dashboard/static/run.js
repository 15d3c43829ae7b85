// The page of one run.

import { Bars } from "./bars.js";
import { Chart, plain } from "./chart.js";
import { ago, at, bytes, bytesTick, el, follow, link, number, percent, percentTick, showState } from "./common.js";
import { showIncidents } from "./incidents.js";
import { LinkMap } from "./map.js";
import { Replay } from "./replay.js";
import { WorkerTable } from "./workers.js";

const RUNNING_MS = 1500;
const ENDED_MS = 5000;
const KEY = decodeURIComponent(location.pathname.replace(/^\/run\//, ""));

const charts = {
  accuracy: new Chart(at("accuracy"), {
    title: "test score", zero: false, missing: "Not evaluated yet.",
    caption: "Own models: mean over the workers. Global: the average model, weighted by data.",
  }),
  staleness: new Chart(at("staleness"), {
    title: "staleness", y: number, zero: true, missing: "No round has closed yet.",
    caption: "Rounds since a worker last started training, when a round opened.",
  }),
  loss: new Chart(at("loss"), {
    title: "loss", y: number, zero: false, missing: "No loss has been recorded yet.",
    caption: "Training: mean of the workers that trained, each on its own data. Test: own models.",
  }),
  traffic: new Chart(at("traffic"), {
    title: "data on the wire", y: bytes, tick: bytesTick, zero: true, missing: "No round has closed yet.",
    caption: "All bytes since the start, every transfer counted once.",
  }),
};
const map = new LinkMap(at("map"));
const replay = new Replay(map, `${link("/api/run/", KEY)}/round/`);
const workers = new WorkerTable(at("workers"));
const bars = new Bars(at("histogram"));
const tables = { rounds: { rows: [], columns: [] }, evaluations: { rows: [], columns: [] } };
let seen = "";
let view = null;

/** Append new points to those that are kept. */
function extend(name, update) {
  const table = tables[name];
  table.rows.length = update.from;
  table.rows.push(...update.rows);
  Object.assign(table, { columns: update.columns, group: update.group });
}

function points(name, x, y) {
  const { rows, columns } = tables[name];
  const [a, b] = [columns.indexOf(x), columns.indexOf(y)];
  return rows.filter((r) => r[a] !== null && r[b] !== null).map((r) => [r[a], r[b]]);
}

function axis() {
  const x = document.querySelector("input[name=axis]:checked").value;
  if (x === "round") {
    return { x, scale: 1, integer: true, label: "rounds", format: (v) => `round ${number(v)}` };
  }
  const end = tables.rounds.rows.at(-1)?.[1] ?? 0;
  const [scale, unit] = end >= 20000 ? [3600, "h"] : [1, "s"];
  const label = `${view.testbed ? "measured" : "simulated"} time (${unit})`;
  return { x, scale, integer: false, label, format: (v) => `${number(v)} ${unit}` };
}

/** Lines in the unit of the axis. */
function scaled(by, lines) {
  return lines.map(([label, style, table, y]) => {
    const all = points(table, by.x, y).map(([a, b]) => [a / by.scale, b]);
    const unit = table;
    return { label, style, points: all, group: tables[table].group, unit };
  });
}

/** Only an accuracy is a share; the score of another task is a number with its own name. */
function nameScore() {
  const { score_name: name } = view;
  const format = name === "accuracy" ? { y: percent, tick: percentTick } : { y: number, tick: plain };
  Object.assign(charts.accuracy.spec, { title: `test ${name}`, ...format });
  at("score").textContent = `Test ${name}`;
}

function draw() {
  if (!view) return;
  const by = axis();
  nameScore();
  charts.accuracy.show(scaled(by, [["own models", "own", "evaluations", "accuracy"], ["global", "global", "evaluations", "accuracy_global"]]), by);
  charts.staleness.show(scaled(by, [["mean", "stale", "rounds", "staleness_mean"], ["largest", "stale thin", "rounds", "staleness_max"]]), by, view.bound);
  charts.loss.show(scaled(by, [["training", "train", "rounds", "loss"], ["test", "own", "evaluations", "test_loss"]]), by);
  charts.traffic.show(scaled(by, [["sent", "traffic", "rounds", "wire_bytes"]]), by);
}

function badges() {
  const { mechanism, status } = view;
  const badge = (text, style = "") => (text ? el("span", { class: `badge ${style}` }, text) : null);
  return [
    badge(mechanism.name, "strong"),
    badge(mechanism.mode),
    badge(mechanism.provenance && `provenance: ${mechanism.provenance}`, mechanism.inexact ? "warn" : ""),
    badge(view.testbed ? "testbed" : "simulated"),
    badge(status, status),
  ].filter(Boolean);
}

function headline() {
  at("name").textContent = view.name;
  const study = view.group ? [" / ", el("a", { href: link("/study/", view.group) }, view.group)] : [];
  if (at("group").textContent !== study.map((part) => part.textContent ?? part).join("")) at("group").replaceChildren(...study);
  at("badges").replaceChildren(...badges());
  at("summary").textContent = view.mechanism.summary;
  at("report").replaceChildren(el("a", { href: `${link("/report/run/", KEY)}/report/report.html` }, "Report of this run"));
  at("report").hidden = !view.report;
  at("tiles").replaceChildren(...view.tiles.map(([value, label, more]) =>
    el("div", { class: "card tile" }, el("b", {}, value), el("span", {}, label), el("small", {}, more))));
  at("facts").replaceChildren(...view.facts.flatMap(([key, value]) => [el("dt", {}, key), el("dd", {}, value)]));
  at("notices").replaceChildren(...view.notices.map((text) => el("li", {}, text)));
  at("notices").hidden = view.notices.length === 0;
  showIncidents(at("incidents"), view.incidents);
  at("progress").hidden = view.progress === null || view.status === "finished";
  at("progress").value = view.progress ?? 0;
  const [round, , accuracy] = view.tiles;
  document.title = `${accuracy ? `${accuracy[0]}, ` : ""}round ${round[0]} – ${view.name}`;
}

function state() {
  if (view.read < 1) return ["live", `reading the history: ${Math.round(100 * view.read)} %`];
  const last = view.age_s === null ? "" : `last round written ${ago(view.age_s)}`;
  if (view.status === "running") return ["live", `live; ${last}`];
  return ["ended", [view.end, last].filter(Boolean).join("; ")];
}

function update(values) {
  view = values;
  const changed = values.cursor !== seen;
  extend("rounds", values.rounds);
  extend("evaluations", values.evaluations);
  seen = values.cursor;
  headline();
  showState(...state());
  if (changed) {
    draw();
    map.show(values.map);
    replay.offer(values.replay, values.map);
    workers.show(values.workers);
    bars.show(values.histogram, values.bound);
  }
  if (values.read < 1) return 0;
  return values.status === "running" ? RUNNING_MS : ENDED_MS;
}

at("axis").addEventListener("change", draw);
follow(() => `${link("/api/run/", KEY)}?since=${encodeURIComponent(seen)}`, update);
