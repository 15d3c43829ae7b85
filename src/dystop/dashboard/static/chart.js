// Line charts that fit their width; the pointer or the arrow keys select a point.

import { el, number, svg } from "./common.js";

const HEIGHT = 230;
const PAD = { left: 56, right: 14, top: 10, bottom: 34 };
const LEVEL_WIDTH = 58; // of the name of a level, in the right margin
const MAX_DOTS = 40; // points that may all have a dot

/** About `count` round numbers between two values. */
export function ticks(low, high, count) {
  if (!(high > low)) return [low];
  const raw = (high - low) / Math.max(1, count);
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].find((k) => k * power >= raw * 0.999) * power;
  const first = Math.ceil(low / step - 1e-9);
  const out = [];
  for (let k = first; k * step <= high + step * 1e-9; k += 1) out.push(Number((k * step).toPrecision(12)));
  return out;
}

function bounds(lines, spec) {
  const xs = lines.flatMap((line) => [line.points[0][0], line.points.at(-1)[0]]);
  const ys = lines.flatMap((line) => line.points.map((p) => p[1]));
  if (spec.level !== null && spec.level !== undefined) ys.push(spec.level);
  if (spec.zero) ys.push(0);
  let [low, high] = [ys.reduce((a, b) => Math.min(a, b)), ys.reduce((a, b) => Math.max(a, b))];
  if (high === low) [low, high] = [spec.zero && low === 0 ? 0 : low - 0.5, high + 0.5];
  const margin = 0.05 * (high - low);
  return { x: [Math.min(0, ...xs), Math.max(...xs, 1e-9)], y: [low < 0 || !spec.zero ? low - margin : 0, high + margin] };
}

function nearest(points, x) {
  let [low, high] = [0, points.length - 1];
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (points[middle][0] < x) low = middle;
    else high = middle;
  }
  return Math.abs(points[low][0] - x) <= Math.abs(points[high][0] - x) ? low : high;
}

export const plain = (v) => v.toLocaleString("en-US", { maximumSignificantDigits: 6 });

export class Chart {
  /** `spec`: title, y and tick (formats of values), zero (start at 0), missing, caption. */
  constructor(figure, spec) {
    this.spec = { tick: plain, ...spec };
    this.keys = el("p", { class: "keys" });
    this.container = el("div", { class: "chart" });
    this.caption = el("figcaption", { class: "quiet" }, spec.caption);
    figure.append(this.keys, this.container, this.caption);
    this.lines = [];
    new ResizeObserver(() => this.draw()).observe(this.container);
  }

  /** `lines`: label, style, points [x, y], rounds per point; `axis`: label, integer ticks, tick, format of x. */
  show(lines, axis, level = null) {
    const shared = lines.filter((line) => line.group > 1).map((line) => `${number(line.group)} ${line.unit}`);
    const grouped = shared.length ? ` Each point stands for ${[...new Set(shared)].join(", or ")} in sequence.` : "";
    this.caption.textContent = this.spec.caption + grouped;
    this.lines = lines.filter((line) => line.points.length);
    this.axis = axis;
    this.spec.level = level;
    this.draw();
  }

  draw() {
    const width = this.container.clientWidth;
    if (!width || !this.axis) return;
    if (!this.lines.length) {
      this.container.replaceChildren(el("p", { class: "empty" }, this.spec.missing));
      this.keys.replaceChildren();
      return;
    }
    const range = bounds(this.lines, this.spec);
    const right = this.spec.level === null ? PAD.right : LEVEL_WIDTH;
    const inner = { w: width - PAD.left - right, h: HEIGHT - PAD.top - PAD.bottom };
    this.x = (v) => PAD.left + ((v - range.x[0]) / (range.x[1] - range.x[0])) * inner.w;
    this.y = (v) => PAD.top + inner.h - ((v - range.y[0]) / (range.y[1] - range.y[0])) * inner.h;
    this.toX = (px) => range.x[0] + ((px - PAD.left) / inner.w) * (range.x[1] - range.x[0]);
    const picture = svg("svg", {
      viewBox: `0 0 ${width} ${HEIGHT}`, width, height: HEIGHT, role: "img", tabindex: 0,
      "aria-label": this.alt(),
    });
    this.grid(picture, range, inner);
    for (const line of this.lines) this.line(picture, line);
    this.level(picture, inner);
    this.cursor = svg("g", { class: "cursor" });
    picture.append(this.cursor);
    this.listen(picture);
    const focused = this.container.firstElementChild === document.activeElement;
    const selected = this.selected ?? null; // a removed element loses the focus and clears it
    this.container.replaceChildren(picture);
    if (focused) picture.focus({ preventScroll: true });
    this.select(selected);
  }

  alt() {
    const ends = this.lines.map((l) => `${l.label} ${this.spec.y(l.points.at(-1)[1])}`);
    return `Line chart: ${this.spec.title} against ${this.axis.label}. Last values: ${ends.join(", ")}.`;
  }

  grid(picture, range, inner) {
    for (const v of ticks(...range.y, 5)) {
      const y = this.y(v);
      picture.append(svg("line", { class: "grid-line", x1: PAD.left, x2: PAD.left + inner.w, y1: y, y2: y }));
      picture.append(svg("text", { class: "tick", x: PAD.left - 7, y: y + 4, "text-anchor": "end" }, this.spec.tick(v)));
    }
    for (const v of ticks(...range.x, Math.max(2, Math.floor(inner.w / 90)))) {
      if (this.axis.integer && !Number.isInteger(v)) continue;
      picture.append(svg("text", { class: "tick", x: this.x(v), y: HEIGHT - PAD.bottom + 16, "text-anchor": "middle" }, (this.axis.tick ?? plain)(v)));
    }
    picture.append(svg("text", { class: "tick", x: PAD.left + inner.w, y: HEIGHT - 3, "text-anchor": "end" }, this.axis.label));
  }

  level(picture, inner) {
    if (this.spec.level === null) return;
    const [y, right] = [this.y(this.spec.level), PAD.left + inner.w];
    picture.append(svg("line", { class: "level", x1: PAD.left, x2: right, y1: y, y2: y }));
    picture.append(svg("text", { class: "tick", x: right + 5, y: y + 4 }, `bound ${number(this.spec.level)}`));
  }

  line(picture, line) {
    this.curve(picture, line);
    this.dots(picture, line, line.points.length <= MAX_DOTS ? line.points : line.points.slice(-1));
  }

  curve(picture, line) {
    const points = line.points.map(([x, y]) => `${this.x(x).toFixed(1)},${this.y(y).toFixed(1)}`);
    picture.append(svg("polyline", { class: `line ${line.style}`, points: points.join(" ") }));
  }

  dots(picture, line, points, r = 2.6) {
    for (const [x, y] of points) picture.append(svg("circle", { class: `dot ${line.style}`, cx: this.x(x).toFixed(1), cy: this.y(y).toFixed(1), r }));
  }

  listen(picture) {
    picture.addEventListener("pointermove", (event) => {
      const box = picture.getBoundingClientRect();
      this.select(this.toX(((event.clientX - box.left) / box.width) * picture.viewBox.baseVal.width));
    });
    picture.addEventListener("pointerleave", () => this.select(null));
    picture.addEventListener("blur", () => this.select(null));
    picture.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (!step) return;
      event.preventDefault();
      const points = this.lines[0].points;
      const now = this.selected === null ? points.length : nearest(points, this.selected);
      this.select(points[Math.min(points.length - 1, Math.max(0, now + step))][0]);
    });
  }

  /** The point of a line at an x, or its last one. */
  pointOf(line, x) {
    return x === null ? line.points.at(-1) : line.points[nearest(line.points, x)];
  }

  key(style, label, value) {
    return el("span", { class: "key" }, el("i", { class: `swatch ${style}` }), `${label} `, el("b", {}, this.spec.y(value)));
  }

  /** The keys with the values at an x, or with the last ones. */
  keysAt(x) {
    return this.lines.map((line) => this.key(line.style, line.label, this.pointOf(line, x)[1]));
  }

  /** Show the values at an x, or the last ones. */
  select(x) {
    this.selected = x;
    this.cursor.replaceChildren();
    if (x !== null) for (const line of this.lines) this.dots(this.cursor, line, [this.pointOf(line, x)], 4.5);
    const where = x === null ? "" : `at ${this.axis.format(this.pointOf(this.lines[0], x)[0])}`;
    this.keys.replaceChildren(...this.keysAt(x), el("span", { class: "quiet" }, where));
  }
}
