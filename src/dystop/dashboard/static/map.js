// The map: workers coloured by staleness, with the links of one round.

import { el, number, plural, svg } from "./common.js";

const BINS = [[0, "0"], [1, "1"], [2, "2–3"], [4, "4–7"], [8, "8–15"], [16, "16–31"], [32, "32+"]];
const MAX_NUMBERED = 60; // workers whose number fits into their marker
const MAX_BENT = 200; // links that are drawn as bent arrows
const BEND = 0.1;
const MAX_HEIGHT = 620;

/** Colour class of a staleness. */
export const shade = (staleness) =>
  staleness === null ? "unknown" : `stale${BINS.filter(([from]) => staleness >= from).length - 1}`;

function radius(count) {
  if (count <= 30) return 11;
  if (count <= MAX_NUMBERED) return 9;
  return Math.max(2.2, Math.min(7, 90 / Math.sqrt(count)));
}

function frame(data) {
  const xs = data.dots.map((d) => d[0]).concat(data.servers.map((s) => s[0]));
  const ys = data.dots.map((d) => d[1]).concat(data.servers.map((s) => s[1]));
  const least = (values) => values.reduce((a, b) => Math.min(a, b), 0);
  const most = (values, side) => values.reduce((a, b) => Math.max(a, b), data.area_m ? data.area_m[side] : 1);
  return { left: least(xs), bottom: least(ys), right: most(xs, 0), top: most(ys, 1) };
}

/** A bent path, shortened at both ends by the size of the markers. */
function arrow([x1, y1, x2, y2], gap) {
  const [dx, dy] = [x2 - x1, y2 - y1];
  const length = Math.hypot(dx, dy) || 1;
  const [cx, cy] = [(x1 + x2) / 2 - BEND * dy, (y1 + y2) / 2 + BEND * dx];
  const cut = Math.min(gap, length / 3);
  const toward = (x, y) => {
    const away = Math.hypot(cx - x, cy - y) || 1;
    return [x + ((cx - x) / away) * cut, y + ((cy - y) / away) * cut];
  };
  const [a, b] = [toward(x1, y1), toward(x2, y2)];
  const f = (v) => v.toFixed(1);
  return `M${f(a[0])} ${f(a[1])}Q${f(cx)} ${f(cy)} ${f(b[0])} ${f(b[1])}`;
}

function describe([, , active, , name, staleness, last, times, size], when) {
  const parts = [`worker ${name}`, active ? `active in ${when}` : ""];
  parts.push(staleness === null ? "staleness not recorded" : `staleness ${number(staleness)}`);
  if (times !== null) parts.push(`active in ${plural(times, "round")}`);
  if (last) parts.push(`last in round ${number(last)}`);
  if (size !== null) parts.push(plural(size, "sample"));
  return parts.filter(Boolean).join(", ");
}

export class LinkMap {
  constructor(figure) {
    this.keys = el("p", { class: "keys" });
    this.container = el("div", { class: "chart" });
    this.caption = el("figcaption", { class: "quiet" });
    figure.append(this.keys, this.container, this.caption);
    new ResizeObserver(() => this.draw()).observe(this.container);
  }

  /** `when`: the round in words. */
  show(data, when = "the last round") {
    this.data = data;
    this.when = when;
    this.draw();
  }

  draw() {
    const { data } = this;
    const width = this.container.clientWidth;
    if (!data || !width) return;
    if (data.missing) {
      this.keys.replaceChildren();
      this.caption.replaceChildren();
      this.container.replaceChildren(el("p", { class: "empty" }, data.missing));
      return;
    }
    this.size = radius(data.dots.length) * Math.max(0.75, Math.min(1, width / 460));
    const box = frame(data);
    const pad = this.size + 6;
    const [w, h] = [Math.max(1e-9, box.right - box.left), Math.max(1e-9, box.top - box.bottom)];
    const scale = Math.min((width - 2 * pad) / w, (MAX_HEIGHT - 2 * pad) / h);
    const left = (width - w * scale) / 2;
    const height = h * scale + 2 * pad;
    this.x = (v) => left + (v - box.left) * scale;
    this.y = (v) => height - pad - (v - box.bottom) * scale;
    this.scale = scale;
    const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": this.alt() });
    picture.append(this.head(), this.area(box), ...this.range(), ...this.links(), ...this.servers(), ...this.dots());
    this.container.replaceChildren(picture);
    this.legend();
  }

  alt() {
    const { dots, links, round, active } = this.data;
    const when = round === null ? "no round yet" : `round ${round}`;
    const who = active === null ? "active workers not recorded" : `${active} active`;
    return `Map of ${plural(dots.length, "worker")}, ${when}: ${who}, ${plural(links.length, "link")}.`;
  }

  head() {
    const shape = svg("path", { class: "head", d: "M0 0 7 3.5 0 7Z" });
    return svg("defs", {}, svg("marker", { id: "head", viewBox: "0 0 7 7", refX: 5.5, refY: 3.5, markerWidth: 8, markerHeight: 8, markerUnits: "userSpaceOnUse", orient: "auto" }, shape));
  }

  area(box) {
    const [w, h] = this.data.area_m || [box.right, box.top];
    return svg("rect", { class: "area", x: this.x(0), y: this.y(h), width: w * this.scale, height: h * this.scale, rx: 4 });
  }

  /** The radio range of one worker, if possible an active one near the centre. */
  range() {
    const { range_m: range, dots, area_m: area } = this.data;
    if (!range || !dots.length) return [];
    const [mx, my] = (area || [0, 0]).map((side) => side / 2);
    const candidates = dots.some((d) => d[2]) ? dots.filter((d) => d[2]) : dots;
    const gap = (d) => Math.hypot(d[0] - mx, d[1] - my);
    const [x, y] = candidates.reduce((a, b) => (gap(b) < gap(a) ? b : a));
    return [svg("circle", { class: "range", cx: this.x(x), cy: this.y(y), r: range * this.scale })];
  }

  links() {
    const { links } = this.data;
    const ends = links.map(([a, b, c, d]) => [this.x(a), this.y(b), this.x(c), this.y(d)]);
    if (links.length > MAX_BENT) {
      return ends.map(([x1, y1, x2, y2]) => svg("line", { class: "link pale", x1, y1, x2, y2 }));
    }
    return ends.map((e) => svg("path", { class: "link", d: arrow(e, this.size + 2.5), "marker-end": "url(#head)" }));
  }

  servers() {
    const side = 2 * this.size + 2;
    return this.data.servers.map(([x, y]) =>
      svg("rect", { class: "server", x: this.x(x) - side / 2, y: this.y(y) - side / 2, width: side, height: side, rx: 2 }, svg("title", {}, "server")));
  }

  dots() {
    const numbered = this.data.dots.length <= MAX_NUMBERED;
    return this.data.dots.map((dot) => {
      const [x, y] = [this.x(dot[0]), this.y(dot[1])];
      const group = svg("g", { class: `worker ${shade(dot[5])}${dot[2] ? " active" : ""}` });
      group.append(svg("title", {}, describe(dot, this.when)), svg("circle", { cx: x, cy: y, r: this.size }));
      if (numbered) group.append(svg("text", { x, y: y + 3.4, "text-anchor": "middle" }, String(dot[3])));
      return group;
    });
  }

  legend() {
    const { data } = this;
    const key = (style, label) => el("span", { class: "key" }, el("i", { class: `swatch ${style}` }), label);
    const most = data.dots.reduce((a, d) => Math.max(a, d[5] ?? 0), 0);
    const bins = BINS.map(([from, label], k) => [from, key(`round stale${k}`, label)]);
    const shown = data.staleness_known ? bins.filter(([from]) => from <= most).map(([, node]) => node) : [];
    const extra = [];
    if (data.active !== null) extra.push(key("round ring", "active"));
    if (data.links.length) extra.push(key("bar own", "link"));
    if (data.range_m) extra.push(key("bar dashed", `range ${number(data.range_m)} m`));
    if (data.servers.length) extra.push(key("server", "server"));
    this.keys.replaceChildren(...(shown.length ? [el("span", { class: "quiet" }, "staleness")] : []), ...shown, ...extra);
    const when = data.round === null ? "No round has closed yet." : `Round ${number(data.round)}: each arrow is one model transfer from sender to receiver; colours show staleness when the round opened.`;
    this.caption.replaceChildren(el("span", {}, when), ...data.notes.map((note) => el("p", {}, note)));
  }
}
