// The page of a study: the curves of all its runs in one chart, and a table of its groups.

import { Chart, plain } from "./chart.js";
import { at, bytes, bytesTick, el, follow, link, number, percent, percentTick, plural, showState } from "./common.js";

const RUNNING_MS = 2000;
const ENDED_MS = 5000;
const COLOURS = 12;
const DASHES = 4;
const NAME = decodeURIComponent(location.pathname.replace(/^\/study\//, ""));

const styleOf = (group) => `run${group.colour % COLOURS} dash${group.dash % DASHES}`;

/** A chart with one key for each group: the mean over its runs. */
class StudyChart extends Chart {
  line(picture, line) {
    this.curve(picture, line);
    if (line.points.length === 1) this.dots(picture, line, line.points);
  }

  alt() {
    return `Line chart: ${this.spec.title} against ${this.axis.label}. Last values: ${this.means(null).map(([label, , value]) => `${label} ${this.spec.y(value)}`).join(", ")}.`;
  }

  /** Label, style and mean of every group at an x, or at the ends. */
  means(x) {
    const groups = new Map();
    for (const line of this.lines) {
      const [, y] = this.pointOf(line, x);
      const [style, values] = groups.get(line.label) ?? [line.style, []];
      groups.set(line.label, [style, [...values, y]]);
    }
    return [...groups].map(([label, [style, values]]) => [label, style, values.reduce((a, b) => a + b, 0) / values.length]);
  }

  keysAt(x) {
    return this.means(x).map(([label, style, value]) => this.key(style, label, value));
  }
}

const charts = {
  own: new StudyChart(at("own"), { zero: false, missing: "Not evaluated yet.", caption: "A line is one run; runs of one group share colour and dash. Above: means over the runs of a group." }),
  global: new StudyChart(at("global"), { zero: false, missing: "Not evaluated yet.", caption: "The average of all models, weighted by data." }),
  loss: new StudyChart(at("loss"), { title: "test loss", y: number, zero: false, missing: "No loss has been recorded yet.", caption: "Mean over the workers." }),
};
const Y = { own: "accuracy", global: "accuracy_global", loss: "test_loss" };
const hidden = new Set();
let view = null;
let seen = "";
let runs = [];

function axis() {
  const x = document.querySelector("input[name=axis]:checked").value;
  if (x === "round") return { x, scale: 1, integer: true, label: "rounds", format: (v) => `round ${number(v)}` };
  if (x === "wire_bytes") return { x, scale: 1, integer: false, label: "data on the wire", tick: bytesTick, format: bytes };
  const column = view.columns.indexOf(x);
  const end = Math.max(0, ...runs.map((run) => run.rows.at(-1)?.[column] ?? 0));
  const [scale, unit] = end >= 20000 ? [3600, "h"] : [1, "s"];
  return { x, scale, integer: false, label: `time (${unit})`, format: (v) => `${number(v)} ${unit}` };
}

function lines(y, by) {
  const [a, b] = [view.columns.indexOf(by.x), view.columns.indexOf(y)];
  return runs
    .filter((run) => !hidden.has(view.groups[run.group].label))
    .map((run) => ({
      label: view.groups[run.group].label,
      style: styleOf(view.groups[run.group]),
      points: run.rows.filter((r) => r[a] !== null && r[b] !== null).map((r) => [r[a] / by.scale, r[b]]),
    }));
}

function draw() {
  if (!view) return;
  const by = axis();
  const format = view.score_name === "accuracy" ? { y: percent, tick: percentTick } : { y: number, tick: plain };
  Object.assign(charts.own.spec, { title: `test ${view.score_name} of own models`, ...format });
  Object.assign(charts.global.spec, { title: `test ${view.score_name} of the global model`, ...format });
  at("score").textContent = `Test ${view.score_name} of the workers' own models`;
  at("score-global").textContent = `Test ${view.score_name} of the global model`;
  for (const [name, chart] of Object.entries(charts)) chart.show(lines(Y[name], by), by);
}

/** A box for each group shows or hides its curves; boxes stay while the groups are the same. */
function offerGroups() {
  const labels = view.groups.map((group) => group.label);
  const there = [...at("groups").querySelectorAll("input")].map((box) => box.value);
  if (labels.join("\n") === there.join("\n")) return;
  const boxes = view.groups.map((group) =>
    el("label", {}, el("input", { type: "checkbox", value: group.label, checked: !hidden.has(group.label) }), el("i", { class: `swatch ${styleOf(group)}` }), group.label));
  at("groups").replaceChildren(el("legend", {}, "Show"), ...boxes);
}

function headRow() {
  const cells = [["group"], ["mechanism", "wide-only"], ["timing", "wide-only"],
    ...(view.at ? [[`${view.score_name} at ${view.at}`, "right"]] : []), [`last ${view.score_name}`, "right"],
    ["global model", "right"], ["time", "right"], ["data", "right"], ["epochs", "right"], ["finished", "right"]];
  return el("tr", {}, ...cells.map(([title, style]) => el("th", { scope: "col", class: style }, title)));
}

/** The runs of a group, each with its own page. */
function runLinks(group) {
  return group.runs.flatMap((run) => {
    const short = run.name.startsWith(`${group.label}-`) ? run.name.slice(group.label.length + 1) : run.name;
    const shown = run.key ? el("a", { href: link("/run/", run.key), "aria-label": run.name, "data-key": run.key }, short) : short;
    return [el("small", { class: run.status === "finished" ? null : "quiet" }, shown, run.status === "finished" ? "" : ` ${run.status}`), " "];
  });
}

function line(group) {
  const done = group.runs.filter((run) => run.status === "finished").length;
  const right = [...(view.at ? [group.score_at] : []), group.score, group.global, group.clock, group.wire, group.epochs, `${done} of ${group.runs.length}`];
  return el(
    "tr",
    {},
    el("th", { scope: "row" }, el("i", { class: `swatch ${styleOf(group)}` }), group.label, el("br"), ...runLinks(group)),
    el("td", { class: "wide-only" }, group.mechanism.name, " ", el("small", {}, group.mechanism.provenance ?? "")),
    el("td", { class: "wide-only" }, group.law || "–"),
    ...right.map((text) => el("td", { class: "right" }, text)),
  );
}

function table() {
  const focused = document.activeElement?.dataset?.key;
  at("head").replaceChildren(headRow());
  at("numbers").replaceChildren(...view.groups.map(line));
  if (focused) for (const found of document.querySelectorAll("a[data-key]")) if (found.dataset.key === focused) found.focus();
}

function headline() {
  const badge = (text, style = "") => el("span", { class: `badge ${style}` }, text);
  at("name").textContent = view.name;
  at("badges").replaceChildren(
    badge(view.kind, "strong"),
    ...view.over.map((key) => badge(`over ${key}`)),
    ...view.laws.map((law) => badge(law === "testbed" ? law : `timing: ${law}`)),
  );
  at("report").replaceChildren(el("a", { href: `${link("/report/study/", NAME)}/report/report.html` }, "Report of this study"));
  at("report").hidden = !view.report;
  const every = view.groups.flatMap((group) => group.runs);
  const done = every.filter((run) => run.status === "finished").length;
  at("progress").hidden = done === every.length;
  at("progress").value = every.length ? done / every.length : 0;
  at("empty").hidden = runs.length > 0;
  at("curves").hidden = runs.length === 0;
  at("note").textContent = view.left_out ? `The curves of ${plural(view.left_out, "more run")} are left out.` : "";
  document.title = `${view.summary} – ${view.name}`;
}

function update(values) {
  view = values;
  const changed = values.cursor !== seen;
  if (values.runs) runs = values.runs;
  seen = values.cursor;
  headline();
  const now = view.running ? ["live", `${view.summary}, ${view.running} running; this page updates itself`] : ["ended", view.summary];
  showState(...(view.read < 1 ? ["live", `reading the runs: ${Math.round(100 * view.read)} %`] : now));
  if (changed) {
    offerGroups();
    draw();
    table();
  }
  if (view.read < 1) return 0;
  return view.running ? RUNNING_MS : ENDED_MS;
}

at("axis").addEventListener("change", draw);
at("groups").addEventListener("change", (event) => {
  if (event.target.checked) hidden.delete(event.target.value);
  else hidden.add(event.target.value);
  draw();
});
follow(() => `${link("/api/study/", NAME)}?since=${encodeURIComponent(seen)}`, update);
