// The table of workers, sortable by any column.

import { el, number } from "./common.js";
import { shade } from "./map.js";

const COLUMNS = ["worker", "staleness", "last active", "rounds active", "samples"];

export class WorkerTable {
  constructor(container) {
    this.container = container;
    this.by = 1;
    this.down = true;
  }

  show(workers) {
    this.workers = workers;
    this.draw();
  }

  sort(column) {
    this.down = this.by === column ? !this.down : column > 0;
    this.by = column;
    this.draw();
    this.container.querySelectorAll("th button")[column].focus();
  }

  rows() {
    const compare = (a, b) =>
      typeof a === "number" && typeof b === "number"
        ? a - b
        : String(a ?? "").localeCompare(String(b ?? ""), "en", { numeric: true });
    const sign = this.down ? -1 : 1;
    return [...this.workers.rows].sort((a, b) => sign * compare(a[this.by], b[this.by]) || compare(a[0], b[0]));
  }

  head() {
    const cells = COLUMNS.map((title, k) => {
      const button = el("button", { type: "button" }, title, this.by === k ? (this.down ? " ↓" : " ↑") : "");
      button.addEventListener("click", () => this.sort(k));
      const sorted = this.by === k ? (this.down ? "descending" : "ascending") : null;
      return el("th", { scope: "col", class: k ? "right" : null, "aria-sort": sorted }, button);
    });
    return el("thead", {}, el("tr", {}, ...cells));
  }

  line([name, staleness, last, times, size]) {
    const age = el("span", {}, el("i", { class: `swatch round ${shade(staleness)}` }), number(staleness));
    return el(
      "tr",
      {},
      el("th", { scope: "row" }, name),
      el("td", { class: "right" }, staleness === null ? "–" : age),
      el("td", { class: "right" }, last === 0 ? "never" : number(last)),
      el("td", { class: "right" }, number(times)),
      el("td", { class: "right" }, number(size)),
    );
  }

  draw() {
    if (!this.workers.rows.length) {
      this.container.replaceChildren(el("p", { class: "empty" }, "No data about the workers was recorded."));
      return;
    }
    const focused = [...this.container.querySelectorAll("th button")].indexOf(document.activeElement);
    const body = el("tbody", {}, ...this.rows().map((row) => this.line(row)));
    const table = el("table", { "aria-label": "Workers" }, this.head(), body);
    const notes = this.workers.notes.map((note) => el("p", { class: "quiet" }, note));
    const scroll = this.container.querySelector(".workers")?.scrollTop ?? 0;
    this.container.replaceChildren(el("div", { class: "card scroll workers", tabindex: 0, role: "region", "aria-label": "Workers" }, table), ...notes);
    this.container.querySelector(".workers").scrollTop = scroll;
    if (focused >= 0) this.container.querySelectorAll("th button")[focused].focus({ preventScroll: true });
  }
}
