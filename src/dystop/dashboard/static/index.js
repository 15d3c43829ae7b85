// The list of runs.

import { ago, at, el, follow, link, plural, showState } from "./common.js";

const REFRESH_MS = 2000;

const badge = (status) => el("span", { class: `badge ${status}` }, status);

function mechanism(found) {
  if (!found || !found.name) return "–";
  if (!found.provenance) return found.name;
  return el("span", {}, found.name, " ", el("small", {}, found.provenance));
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

function line(row, score) {
  const named = row.score_name && row.score_name !== score;
  const name = row.key
    ? el("a", { href: link("/run/", row.key), "data-key": row.key }, row.name)
    : row.name;
  const narrow = [row.mechanism && row.mechanism.name, row.testbed ? "testbed" : ""];
  return el(
    "tr",
    {},
    el("th", { scope: "row" }, name, el("small", { class: "narrow-only" }, narrow.filter(Boolean).join(", "))),
    el("td", {}, badge(row.status)),
    el("td", { class: "wide-only" }, mechanism(row.mechanism)),
    el("td", { class: "wide-only" }, row.data || "–"),
    el("td", { class: "wide-only" }, row.law || "–"),
    el("td", { class: "right" }, rounds(row)),
    el("td", { class: "right wide-only" }, row.clock || "–"),
    el("td", { class: "right" }, row.score || "–", named ? el("small", {}, ` ${row.score_name}`) : null),
    el("td", { class: "right wide-only" }, ago(row.age_s)),
  );
}

function body(group, score) {
  const out = el("tbody", {});
  if (group.name) {
    const study = el("a", { class: "study", href: link("/study/", group.name), "data-key": `study ${group.name}` }, group.name);
    const head = el("th", { scope: "rowgroup", colspan: 9 }, study, " ");
    if (group.report) head.append(el("a", { href: `${link("/report/study/", group.name)}/report/report.html`, "data-key": `report ${group.name}` }, "report"), " ");
    head.append(el("small", {}, group.summary));
    out.append(el("tr", { class: "group" }, head));
  }
  out.append(...group.rows.map((row) => line(row, score)));
  return out;
}

/** Show the groups; what is focused stays focused, and a list that is the same stays as it is. */
function replaceBodies(bodies) {
  const focused = document.activeElement?.dataset?.key;
  const table = document.querySelector("table.runs");
  const old = [...table.querySelectorAll("tbody")];
  if (old.length === bodies.length && old.every((there, k) => there.isEqualNode(bodies[k]))) return;
  old.forEach((there) => there.remove());
  table.append(...bodies);
  if (focused) refocus(focused);
}

function refocus(key) {
  for (const found of document.querySelectorAll("a[data-key]")) {
    if (found.dataset.key === key) found.focus();
  }
}

function show(values) {
  const count = values.groups.reduce((sum, group) => sum + group.rows.length, 0);
  const running = values.groups.flatMap((g) => g.rows).filter((r) => r.status === "running").length;
  replaceBodies(values.groups.map((group) => body(group, values.score_name)));
  at("title").textContent = values.title === "runs" ? "Runs" : `Runs in ${values.title}`;
  at("score").textContent = values.score_name;
  at("listing").hidden = count === 0;
  at("empty").hidden = count > 0;
  at("note").textContent = values.left_out ? `Not listed: ${plural(values.left_out, "more run")}.` : "";
  document.title = `${running ? `${running} running – ` : ""}${values.title} – dystop dashboard`;
  showState("live", `${plural(count, "run")}, ${running} running; this list updates itself`);
  return REFRESH_MS;
}

follow(() => "/api/runs", show);
