// The table of workers, sortable by any column.

import { el, number } from "./common.js";
import { shade } from "./map.js";

const COLUMNS = ["worker", "staleness", "last active", "rounds active", "samples"];

export class Crew {
  constructor(place) {
    this.place = place;
    this.by = 1;
    this.down = true;
  }

  show(crew) {
    this.crew = crew;
    this.draw();
  }

  sort(column) {
    this.down = this.by === column ? !this.down : column > 0;
    this.by = column;
    this.draw();
    this.place.querySelectorAll("th button")[column].focus();
  }

  rows() {
    const compare = (a, b) =>
      typeof a === "number" && typeof b === "number"
        ? a - b
        : String(a ?? "").localeCompare(String(b ?? ""), "en", { numeric: true });
    const sign = this.down ? -1 : 1;
    return [...this.crew.rows].sort((a, b) => sign * compare(a[this.by], b[this.by]) || compare(a[0], b[0]));
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
    if (!this.crew.rows.length) {
      this.place.replaceChildren(el("p", { class: "empty" }, "Nothing was recorded about the workers."));
      return;
    }
    const focused = [...this.place.querySelectorAll("th button")].indexOf(document.activeElement);
    const body = el("tbody", {}, ...this.rows().map((row) => this.line(row)));
    const table = el("table", { "aria-label": "Workers" }, this.head(), body);
    const notes = this.crew.notes.map((note) => el("p", { class: "quiet" }, note));
    const scroll = this.place.querySelector(".crew")?.scrollTop ?? 0;
    this.place.replaceChildren(el("div", { class: "card scroll crew" }, table), ...notes);
    this.place.querySelector(".crew").scrollTop = scroll;
    if (focused >= 0) this.place.querySelectorAll("th button")[focused].focus({ preventScroll: true });
  }
}
