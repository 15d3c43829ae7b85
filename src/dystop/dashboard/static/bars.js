// The histogram of staleness in the last round.

import { el, number, plural, svg } from "./common.js";
import { ticks } from "./chart.js";
import { shade } from "./map.js";

const HEIGHT = 230;
const PAD = { left: 40, right: 14, top: 16, bottom: 34 };

export class Bars {
  constructor(figure) {
    this.container = el("div", { class: "chart" });
    figure.append(this.container, el("figcaption", { class: "quiet" }, "Workers at each staleness (rounds since they last started training) when the last round opened."));
    new ResizeObserver(() => this.draw()).observe(this.container);
  }

  show(counts, bound) {
    [this.counts, this.bound] = [counts, bound];
    this.draw();
  }

  draw() {
    const { counts } = this;
    const width = this.container.clientWidth;
    if (!counts || !width) return;
    if (!counts.length) {
      this.container.replaceChildren(el("p", { class: "empty" }, "No round has closed yet."));
      return;
    }
    const most = counts.reduce((a, b) => Math.max(a, b), 1);
    const inner = { w: width - PAD.left - PAD.right, h: HEIGHT - PAD.top - PAD.bottom };
    const columns = Math.max(counts.length, Math.ceil((this.bound ?? 0) + 1), 4);
    const column = inner.w / columns;
    const y = (v) => PAD.top + inner.h * (1 - v / most);
    const alt = `Histogram of staleness: ${counts.map((n, k) => [n, k]).filter(([n]) => n).slice(0, 40).map(([n, k]) => `${n} at ${k}`).join(", ")}.`;
    const picture = svg("svg", { viewBox: `0 0 ${width} ${HEIGHT}`, width, height: HEIGHT, role: "img", "aria-label": alt });
    for (const v of ticks(0, most, 4).filter(Number.isInteger)) {
      picture.append(svg("line", { class: "grid-line", x1: PAD.left, x2: width - PAD.right, y1: y(v), y2: y(v) }));
      picture.append(svg("text", { class: "tick", x: PAD.left - 7, y: y(v) + 4, "text-anchor": "end" }, number(v)));
    }
    const gap = Math.min(2, column / 6);
    counts.forEach((n, k) => {
      if (!n) return;
      const bar = svg("rect", { class: `bar ${shade(k)}`, x: PAD.left + k * column + gap, y: y(n), width: Math.max(0.5, column - 2 * gap), height: y(0) - y(n) });
      bar.append(svg("title", {}, `${plural(n, "worker")} at staleness ${k}`));
      picture.append(bar);
    });
    for (const v of ticks(0, columns - 1, Math.max(2, Math.floor(inner.w / 60))).filter(Number.isInteger)) {
      picture.append(svg("text", { class: "tick", x: PAD.left + (v + 0.5) * column, y: HEIGHT - PAD.bottom + 16, "text-anchor": "middle" }, number(v)));
    }
    picture.append(svg("text", { class: "tick", x: width - PAD.right, y: HEIGHT - 3, "text-anchor": "end" }, "staleness (rounds)"));
    if (this.bound !== null) this.drawBound(picture, PAD.left + (this.bound + 0.5) * column);
    this.container.replaceChildren(picture);
  }

  drawBound(picture, x) {
    picture.append(svg("line", { class: "level", x1: x, x2: x, y1: PAD.top - 6, y2: HEIGHT - PAD.bottom }));
    picture.append(svg("text", { class: "tick", x: x + 4, y: PAD.top }, `bound ${number(this.bound)}`));
  }
}
