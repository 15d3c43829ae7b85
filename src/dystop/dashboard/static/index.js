// The list of runs.

import { ago, at, el, follow, link, plural, tell } from "./common.js";

const EVERY_MS = 2000;

const badge = (status) => el("span", { class: `badge ${status}` }, status);

function mechanism(told) {
  if (!told || !told.name) return "–";
  if (!told.provenance) return told.name;
  return el("span", {}, told.name, " ", el("small", {}, told.provenance));
}

function rounds(row) {
  if (row.round === undefined) return "–";
  const bar = row.status === "running" && row.progress !== null;
  return el(
    "span",
    {},
    row.round,
    bar ? el("progress", { max: 1, value: row.progress, "aria-label": "done" }) : null,
  );
}

function line(row) {
  const name = row.key
    ? el("a", { href: link("/run/", row.key), "data-key": row.key }, row.name)
    : row.name;
  const narrow = [row.mechanism && row.mechanism.name, row.real ? "testbed" : ""];
  return el(
    "tr",
    {},
    el("th", { scope: "row" }, name, el("small", { class: "less" }, narrow.filter(Boolean).join(", "))),
    el("td", {}, badge(row.status)),
    el("td", { class: "more" }, mechanism(row.mechanism)),
    el("td", { class: "more" }, row.data || "–", row.real ? el("small", {}, " testbed") : null),
    el("td", { class: "right" }, rounds(row)),
    el("td", { class: "right more" }, row.clock || "–"),
    el("td", { class: "right" }, row.accuracy || "–"),
    el("td", { class: "right more" }, ago(row.age_s)),
  );
}

function body(group) {
  const out = el("tbody", {});
  if (group.name) {
    const head = el("th", { scope: "rowgroup", colspan: 8 }, group.name, " ");
    head.append(el("small", {}, group.summary));
    out.append(el("tr", { class: "group" }, head));
  }
  out.append(...group.rows.map(line));
  return out;
}

function refocus(key) {
  for (const found of document.querySelectorAll("a[data-key]")) {
    if (found.dataset.key === key) found.focus();
  }
}

function show(values) {
  const count = values.groups.reduce((sum, group) => sum + group.rows.length, 0);
  const going = values.groups.flatMap((g) => g.rows).filter((r) => r.status === "running").length;
  const focused = document.activeElement?.dataset?.key;
  const table = document.querySelector("table.runs");
  table.querySelectorAll("tbody").forEach((old) => old.remove());
  table.append(...values.groups.map(body));
  if (focused) refocus(focused);
  at("title").textContent = `Runs in ${values.title}`;
  at("listing").hidden = count === 0;
  at("empty").hidden = count > 0;
  at("note").textContent = values.left_out ? `Not listed: ${plural(values.left_out, "more run")}.` : "";
  document.title = `${going ? `${going} running – ` : ""}${values.title} – dystop dashboard`;
  tell("live", `${plural(count, "run")}, ${going} running; this list renews itself`);
  return EVERY_MS;
}

follow(() => "/api/runs", show);
