// What went wrong with which member of a testbed run.

import { el, number } from "./common.js";

const COLUMNS = ["member", "incident", "times", "last after", "reported by", "details"];

function line([member, kind, count, last, reporter, text]) {
  return el(
    "tr",
    {},
    el("th", { scope: "row" }, member),
    el("td", {}, kind),
    el("td", { class: "right" }, number(count)),
    el("td", { class: "right" }, last),
    el("td", {}, reporter),
    el("td", {}, text),
  );
}

export function showIncidents(container, rows) {
  container.hidden = rows.length === 0;
  const cells = COLUMNS.map((title, k) => el("th", { scope: "col", class: k === 2 || k === 3 ? "right" : null }, title));
  const table = el("table", { "aria-label": "Incidents" }, el("thead", {}, el("tr", {}, ...cells)), el("tbody", {}, ...rows.map(line)));
  container.replaceChildren(el("h2", { class: "apart" }, "Incidents"), el("div", { class: "card scroll", tabindex: 0, role: "region", "aria-label": "Incidents" }, table));
}
