"""Pictures of the explanation pages, drawn when the site is built.

    ```{drawing} waiting
    A caption.
    ```

They are SVG inside the page, so that their colours follow the theme. Times, active sets, staleness
and priorities are not invented: the functions of `dystop.control` compute them.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from math import cos, pi, sin

import numpy as np
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective
from sphinx.util.typing import ExtensionMetadata

from dystop.control.activation import activate
from dystop.control.laws import LAWS, cost_s, timetable
from dystop.control.priority import emd, first_phase_priority, label_shares, second_phase_priority
from dystop.control.staleness import next_queue, next_staleness
from dystop.plan import Plan, links
from dystop.sparse import Floats, Ints

WIDTH = 480  # units of a picture; small, so that text stays readable on a phone
LEFT = 70  # where a time axis begins
ROW = 24  # height of a worker's row

COMPUTE_S = np.array([1.0, 1.5, 2.2, 4.0])  # one local training of each worker
EXCHANGE_S = 0.4
END_S = 12.0


@dataclass(frozen=True)
class Bar:
    """What a worker does from one moment to another."""

    worker: int
    kind: str  # train, move or wait
    begin_s: float
    end_s: float


@dataclass(frozen=True)
class History:
    """A few rounds of a few workers."""

    bars: list[Bar] = field(default_factory=list)
    closes_s: list[float] = field(default_factory=list)
    active: list[Ints] = field(default_factory=list)
    staleness: list[Ints] = field(default_factory=list)  # when each round opens

    def trainings(self, end_s: float) -> int:
        """Return how many local trainings have ended by then."""
        return sum(bar.kind == "train" and bar.end_s <= end_s + 1e-9 for bar in self.bars)


def rounds(choose: Callable[[Floats, Floats, Ints], Ints]) -> History:
    """Run workers under the paper's law until `END_S`; `choose` picks the active set."""
    history, n = History(), len(COMPUTE_S)
    clock, busy_until = 0.0, COMPUTE_S.copy()
    free_since = np.zeros(n)
    queue, staleness = np.zeros(n), np.zeros(n, np.int64)
    history.bars.extend(Bar(i, "train", 0.0, COMPUTE_S[i]) for i in range(n))
    while clock < END_S:
        remaining = np.maximum(busy_until - clock, 0.0)
        history.staleness.append(staleness)
        active = choose(cost_s(remaining, np.full(n, EXCHANGE_S)), queue, staleness)
        close = clock + float((remaining[active] + EXCHANGE_S).max())
        for i in active:
            begin = max(busy_until[i], clock)
            history.bars.append(Bar(i, "wait", busy_until[i], begin))
            history.bars.append(Bar(i, "move", begin, begin + EXCHANGE_S))
            history.bars.append(Bar(i, "wait", begin + EXCHANGE_S, close))
            history.bars.append(Bar(i, "train", close, close + COMPUTE_S[i]))
            busy_until[i] = free_since[i] = close + COMPUTE_S[i]
        mask = np.isin(np.arange(n), active)
        queue = next_queue(queue, staleness, 1.0, np.ones(n, bool))
        staleness = next_staleness(staleness, mask)
        history.active.append(active)
        history.closes_s.append(close)
        clock = close
    for i in range(n):
        history.bars.append(Bar(i, "wait", busy_until[i], END_S))
    return history


def everybody(cost: Floats, queue: Floats, staleness: Ints) -> Ints:
    """Activate all workers, as a synchronous mechanism does."""
    return np.arange(len(cost))


def by_waa(cost: Floats, queue: Floats, staleness: Ints) -> Ints:
    """Activate workers as DySTop does."""
    return activate(np.arange(len(cost)), cost, queue, staleness, V=2.0)


def text(x: float, y: float, words: str, kind: str = "", anchor: str = "start") -> str:
    """Return a piece of text."""
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}" text-anchor="{anchor}">{words}</text>'


def rect(x: float, y: float, width: float, height: float, kind: str) -> str:
    """Return a rectangle."""
    size = f'width="{width:.1f}" height="{height:.1f}"'
    return f'<rect x="{x:.1f}" y="{y:.1f}" {size} rx="2" class="{kind}"/>'


def line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    """Return a line."""
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{kind}"/>'


def gantt(
    bars: Sequence[Bar], closes_s: Sequence[float], top: float, end_s: float
) -> Iterator[str]:
    """Draw rows of bars over time, with a line where each round closes."""
    scale = (WIDTH - LEFT - 8) / end_s
    workers = 1 + max(bar.worker for bar in bars)
    for i in range(workers):
        yield text(LEFT - 8, top + ROW * i + 15, f"worker {i + 1}", "", "end")
    for bar in bars:
        begin, end = bar.begin_s, min(bar.end_s, end_s)
        if end > begin:
            height = ROW - 8 if bar.kind != "wait" else 4
            y = top + ROW * bar.worker + (ROW - height) / 2
            yield rect(LEFT + scale * begin, y, scale * (end - begin) - 1, height, bar.kind)
    for close in closes_s:
        if close <= end_s:
            x = LEFT + scale * close
            yield line(x, top, x, top + ROW * workers, "close")


def legend(top: float) -> Iterator[str]:
    """Explain the bars."""
    x = 20.0
    for kind, words in (("train", "trains"), ("move", "exchanges models"), ("wait", "waits")):
        height = 10 if kind != "wait" else 4
        yield rect(x, top + (10 - height) / 2, 16, height, kind)
        yield text(x + 21, top + 10, words)
        x += 45 + 7 * len(words)
    yield line(x, top - 2, x, top + 12, "close")
    yield text(x + 6, top + 10, "a round closes")


def waiting() -> tuple[float, list[str]]:
    """Draw the same four workers in a synchronous mechanism and in DySTop."""
    parts, top = [], 22.0
    for title, choose in (("Everybody waits for the slowest", everybody), ("DySTop", by_waa)):
        history = rounds(choose)
        count = history.trainings(END_S)
        parts.append(text(LEFT, top - 6, f"{title}: {count} trainings in {END_S:g} s", "title"))
        parts += gantt(history.bars, history.closes_s, top, END_S)
        top += ROW * len(COMPUTE_S) + 34
    parts += legend(top - 18)
    return top, parts


def staleness() -> tuple[float, list[str]]:
    """Draw who was active in each round of DySTop above, and how stale everybody was."""
    history = rounds(by_waa)
    shown = min(len(history.active), 14)
    cell = (WIDTH - LEFT - 8) / shown
    parts = [text(LEFT, 12, "round")]
    for t in range(shown):
        parts.append(text(LEFT + cell * (t + 0.5), 28, str(t + 1), "", "middle"))
        for i, tau in enumerate(history.staleness[t]):
            level = "active" if i in history.active[t] else f"stale{min(int(tau), 5)}"
            y = 34 + ROW * i
            parts.append(rect(LEFT + cell * t, y, cell - 2, ROW - 2, level))
            kind = "on" if level == "active" else ""
            parts.append(text(LEFT + cell * (t + 0.5) - 1, y + 15, str(tau), kind, "middle"))
    parts += [
        text(LEFT - 8, 34 + ROW * i + 15, f"worker {i + 1}", "", "end")
        for i in range(len(COMPUTE_S))
    ]
    bottom = 34 + ROW * len(COMPUTE_S)
    parts += [rect(LEFT, bottom + 8, 16, 10, "active"), text(LEFT + 21, bottom + 18, "active")]
    parts += [rect(LEFT + 80, bottom + 8, 16, 10, "stale4"), text(LEFT + 101, bottom + 18, "stale")]
    return bottom + 26, parts


def _ring(x: float, y: float, radius: float, count: int) -> list[tuple[float, float]]:
    turns = [2 * pi * k / count - pi / 2 for k in range(count)]
    return [(x + radius * cos(a), y + radius * sin(a)) for a in turns]


def _arrow(a: tuple[float, float], b: tuple[float, float], kind: str) -> str:
    """Draw an arrow that ends before the circle of its receiver."""
    dx, dy = b[0] - a[0], b[1] - a[1]
    length = (dx * dx + dy * dy) ** 0.5
    sx, sy, gap = dx / length, dy / length, 15.0
    shaft = line(a[0] + sx * gap, a[1] + sy * gap, b[0] - sx * gap, b[1] - sy * gap, kind)
    return shaft.replace("/>", f' marker-end="url(#arrow-{kind})"/>')


def _node(at: tuple[float, float], kind: str, words: str = "") -> str:
    circle = f'<circle cx="{at[0]:.1f}" cy="{at[1]:.1f}" r="11" class="{kind}"/>'
    return circle + (text(at[0], at[1] + 4, words, "on", "middle") if words else "")


def three_ways() -> tuple[float, list[str]]:
    """Draw a server, a synchronous round and an asynchronous round."""
    parts = []
    for k, title in enumerate(("with a server", "synchronous", "asynchronous")):
        x, y = 80 + 160 * k, 82.0
        ring = _ring(x, y, 52, 5)
        if k == 0:
            hub = (x, y)
            parts += [_arrow(at, hub, "pull") + _arrow(hub, at, "pull") for at in ring]
            parts.append(rect(x - 12, y - 12, 24, 24, "server"))
        if k == 1:
            near = [(i, (i + s) % 5) for i, s in product(range(5), (1, 4))]
            parts += [_arrow(ring[j], ring[i], "pull") for i, j in near]
        if k == 2:
            parts += [_arrow(ring[j], ring[0], "pull") for j in (1, 3)]
            parts += [_arrow(ring[j], ring[2], "pull") for j in (3,)]
        active = {0, 2} if k == 2 else set(range(5))
        parts += [_node(at, "active" if i in active else "busy") for i, at in enumerate(ring)]
        parts.append(text(x, 162, title, "title", "middle"))
    words = (("active", "trains anew in this round"), ("busy", "still trains"))
    for x, (kind, meaning) in zip((110, 300), words, strict=True):
        parts += [f'<circle cx="{x}" cy="184" r="6" class="{kind}"/>', text(x + 11, 188, meaning)]
    return 198, parts


# Six workers: place in metres, share of label A, pulls so far by worker 1, and staleness.
_PLACES = np.array([[50, 52], [92, 10], [14, 14], [90, 72], [44, 98], [6, 60]])
_SHARE_A = np.array([0.9, 0.8, 0.15, 0.1, 0.5, 0.05])
_PULLS, _ROUND = np.array([0, 2, 8, 7, 1, 3]), 12
_STALENESS = np.array([0, 1, 4, 1, 0, 5])


def phases() -> tuple[float, list[str]]:
    """Draw whom worker 1 would pull from in both phases, with the priorities."""
    counts = np.stack([100 * _SHARE_A, 100 - 100 * _SHARE_A], axis=1).astype(np.int64)
    other, me = np.arange(1, 6), np.zeros(5, np.int64)
    distance = np.linalg.norm(_PLACES[other] - _PLACES[0], axis=1)
    first = first_phase_priority(emd(label_shares(counts), me, other), distance)
    second = second_phase_priority(_PULLS[other], _ROUND, _STALENESS[other] - _STALENESS[0])
    parts = []
    titles = ("phase 1: near, with other labels", "phase 2: rarely pulled, as fresh")
    for k, (title, priority) in enumerate(zip(titles, (first, second), strict=True)):
        places = [(16 + 240 * k + 1.75 * x, 6 + 1.5 * y) for x, y in _PLACES.tolist()]
        best = set(other[np.argsort(-priority)[:2]].tolist())
        parts += [_arrow(places[j], places[0], "pull") for j in sorted(best)]
        for i, at in enumerate(places):
            parts.append(_pie(at, _SHARE_A[i]))
            label = "1" if i == 0 else f"{priority[i - 1]:.2f}"
            parts.append(text(at[0] + 15, at[1] + 4, label, "title" if i in best | {0} else ""))
            if k == 1 and i:
                note = f"{_PULLS[i]} pulls, stale {_STALENESS[i]}"
                parts.append(text(max(at[0], 290), at[1] + 24, note, "small", "middle"))
        parts.append(text(110 + 240 * k, 198, title, "title", "middle"))
    return 206, parts


def _pie(at: tuple[float, float], share: float) -> str:
    """Draw a worker as a pie of its two labels."""
    x, y = at
    angle = 2 * pi * share - pi / 2
    end, large = (x + 11 * cos(angle), y + 11 * sin(angle)), int(share > 0.5)
    circle = f'<circle cx="{x:.1f}" cy="{y:.1f}" r="11" class="label-b"/>'
    wedge = f"M{x:.1f} {y:.1f} L{x:.1f} {y - 11:.1f} A11 11 0 {large} 1 {end[0]:.1f} {end[1]:.1f} Z"
    return f'{circle}<path d="{wedge}" class="label-a"/>'


def laws() -> tuple[float, list[str]]:
    """Draw one round under all timing laws."""
    plan = Plan(np.arange(3), links(np.arange(3), np.array([1, 2, 0])))
    remaining, link_s = np.array([0.5, 1.2, 2.4]), np.array([1.4, 0.6, 0.9])
    training, end_s = np.array([2.0, 2.0, 2.0]), 6.0
    parts, top = [], 22.0
    for law in LAWS.built_in:
        when = timetable(LAWS[law](), plan, link_s, remaining, training)
        bars = []
        for i in range(3):
            done = when.link_end_s[i]
            bars += [
                Bar(i, "train", 0.0, remaining[i]),
                Bar(i, "move", when.link_begin_s[i], done),
                Bar(i, "wait", done, when.begin_s[i]),
                Bar(i, "train", when.begin_s[i], when.begin_s[i] + training[i]),
            ]
        title = f"{law}: the round lasts {when.duration_s:.1f} s"
        parts.append(text(LEFT, top - 6, title, "title"))
        parts += gantt(bars, [when.duration_s], top, end_s)
        top += ROW * 3 + 34
    parts += legend(top - 18)
    return top, parts


def publish() -> tuple[float, list[str]]:
    """Draw what a pull returns while its owner trains."""
    scale, top = (WIDTH - LEFT - 8) / 6.0, 26.0
    bars = [Bar(0, "train", 0, 2), Bar(0, "train", 2.05, 5.5), Bar(1, "train", 0, 3.4)]
    bars.append(Bar(1, "move", 3.4, 4.2))
    parts = [text(LEFT + scale, 12, "makes model 1", "", "middle")]
    parts.append(text(LEFT + scale * 3.8, 12, "makes model 2", "", "middle"))
    parts += gantt(bars, [], top - 8, 6.0)
    y, x = top + ROW * 1.75 + 12, LEFT + scale * 3.8
    parts.append(text(x, y + 6, "pulls from worker 1", "", "middle"))
    parts.append(text(LEFT, y + 28, "eager: the pull returns model 2, as in the paper's equations"))
    parts.append(text(LEFT, y + 46, "on_completion: it returns model 1, which exists"))
    return y + 56, parts


DRAWINGS: dict[str, Callable[[], tuple[float, list[str]]]] = {
    "laws": laws,
    "phases": phases,
    "publish": publish,
    "staleness": staleness,
    "three-ways": three_ways,
    "waiting": waiting,
}

_ARROW = (
    '<defs><marker id="arrow-pull" viewBox="0 0 8 8" refX="6" refY="4" markerWidth="6" '
    'markerHeight="6" orient="auto"><path d="M0 0L8 4L0 8z" class="head"/></marker></defs>'
)


def svg(name: str, meaning: str) -> str:
    """Return a picture as SVG, with its caption as the text for those who cannot see it."""
    height, parts = DRAWINGS[name]()
    size = f'viewBox="0 0 {WIDTH} {height:.0f}" role="img"'
    return f'<svg class="drawing" {size}><title>{meaning}</title>{_ARROW}{"".join(parts)}</svg>'


class Drawing(SphinxDirective):
    """Insert a picture with a caption."""

    required_arguments = 1
    has_content = True

    def run(self) -> list[nodes.Node]:
        """Return the figure; it is drawn anew in every build."""
        self.env.note_reread()
        caption = self.parse_content_to_nodes()
        words = " ".join(node.astext() for node in caption)
        picture = nodes.raw("", svg(self.arguments[0], words), format="html")
        below = nodes.container("", *caption, classes=["drawing-caption"])
        return [picture, below]


def setup(app: Sphinx) -> ExtensionMetadata:
    """Register the directive."""
    app.add_directive("drawing", Drawing)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
