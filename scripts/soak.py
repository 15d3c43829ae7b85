"""A-1: a fleet of real processes under every fault at once, for half an hour, and its verdict.

    python scripts/soak.py --minutes 30 --workers 15 --seed 0 --out DIR      (Linux, root)

Coordinator, observer and workers live in network namespaces of 12 to 40 Mbit/s with 5 % loss. A
worker is killed every 10 s, a link cut for 5 s every 15 s, a process frozen for 8 s every 30 s, the
coordinator killed five times, and one worker serves nothing but bad models. A second run with as
many rounds and no faults is what it is measured against. DIR gets both runs, `soak.json`, `soak.md`
and a copy of the code, from which everything runs: a change must not hit it halfway. Nothing is
left running, also after Ctrl-C.
"""

import argparse
import json
import os
import shutil
import signal
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SETTLED = "DYSTOP_SOAK_SETTLED"
sys.path[:0] = [str(ROOT / "tests"), *([str(ROOT / "src")] if SETTLED in os.environ else [])]

from chaos.facts import durations_of, facts_of  # noqa: E402
from chaos.rig import Rig, Setting  # noqa: E402
from chaos.schedule import FaultRates, schedule  # noqa: E402
from dystop.rng import stream  # noqa: E402
from dystop.testbed.audit.check import accuracy_near  # noqa: E402
from dystop.testbed.events import StartTraining  # noqa: E402
from dystop.testbed.setup.parts import worker_parts  # noqa: E402

SOAK, CONTROL = "soak-facts.json", "control-facts.json"
QUIET_S = 20.0  # at the end, for everybody to come back
MOST_ROUNDS = 1_000_000
GLOBAL, LOCAL, WALL, DONE, GROWTH = 0.010, 0.015, 4.0, 0.99, 0.10  # the guarantees
LAG_S = 45.0  # a record waits 30 s for its score; a killed coordinator is back within 15 s


def main() -> int:
    """Run what was asked for; 1 if a guarantee was broken."""
    args = _arguments()
    args.out.mkdir(parents=True, exist_ok=True)
    if not args.summary:
        _run(args)
    summary = verdict(_recorded(args.out / SOAK), _recorded(args.out / CONTROL))
    _write(args.out / "soak.json", summary)
    (args.out / "soak.md").write_text(markdown(summary))
    _say(markdown(summary))
    return 1 if summary["broken"] else 0


def _run(args: Any) -> None:
    if SETTLED not in os.environ:
        _settle(args.out.resolve() / "code")
    if not args.control:
        (args.out / CONTROL).unlink(missing_ok=True)
        _write(args.out / SOAK, soak(args))
    if not args.no_control:
        _write(args.out / CONTROL, control(args, json.loads((args.out / SOAK).read_text())))


def _recorded(path: Path) -> dict[str, Any]:
    """What is known of a run, with all figures worked out anew; empty if there was none."""
    if not path.exists():
        return {}
    known = json.loads(path.read_text())
    return {**known, **facts_of(Path(known["folder"]), known["wall_s"], known["bad"])}


def _settle(place: Path) -> None:
    """Go on from a copy of the code: processes start for half an hour, and must all be alike."""
    shutil.rmtree(place, ignore_errors=True)
    for part in ("src", "tests", "scripts"):
        shutil.copytree(ROOT / part, place / part)
    words = [sys.executable, str(place / "scripts" / "soak.py"), *sys.argv[1:]]
    os.execve(sys.executable, words, {**os.environ, SETTLED: "1"})


def _arguments() -> Any:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--workers", type=int, default=15)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--no-control", action="store_true", help="only the run with faults")
    parser.add_argument("--control", action="store_true", help="only the control run, afterwards")
    parser.add_argument("--summary", action="store_true", help="run nothing, look again")
    return parser.parse_args()


# The two runs -----------------------------------------------------------------------------------


def _keys(args: Any) -> list[str]:
    return [
        f"fleet.workers={args.workers}", f"seed={args.seed}", "data.name=fmnist-mini",
        "model.name=cnn", "world.range_m=200", "testbed.links=free", "mechanism.phase_threshold=50",
        "evaluate.every_rounds=20", "evaluate.samples=1000", "testbed.timeouts.gather_s=120",
    ]  # fmt: skip


def _rates(args: Any) -> list[float]:
    return [float(x) for x in stream(args.seed, "soak", "rates").uniform(12, 40, args.workers)]


def _free_name(out: Path, name: str) -> str:
    taken = sum(path.name.startswith(name) for path in out.iterdir() if path.is_dir())
    return f"{name}-{taken}" if taken else name


def soak(args: Any) -> dict[str, Any]:
    """The run with faults."""
    span_s = 60.0 * args.minutes
    keys = [*_keys(args), f"stop.seconds={span_s}", f"stop.rounds={MOST_ROUNDS}"]
    bad = f"w{args.workers // 2:02d}"
    setting = Setting(keys, _rates(args), 5.0, (bad,), seed=args.seed)
    with Rig(args.out, setting, _free_name(args.out, "soak")) as rig:
        _say(f"soak: {args.minutes:g} min in {rig.folder}; rates hold: {rig.events[0]['share']}")
        _warm(rig)
        rig.start()
        rig.until(lambda: rig.rounds > 0 and rig.joined >= args.workers - 1, 240)
        left_s = span_s - rig.records[-1].clock_s  # workers took some time to come
        rig.inject(schedule(FaultRates(), 0.0, max(left_s - QUIET_S, 30.0), args.seed))
        wall_s = _follow(rig, 3 * span_s + 300)
        findings = [str(finding) for finding in rig.findings()]
    kinds = Counter(e["kind"] for e in rig.events if e["kind"] != "rate")
    more = {"bad": bad, "findings": findings, "faults": dict(kinds), "planned": rig.planned}
    more |= {"lag_s": round(rig.lag.longest_s, 1), "lag_round": rig.lag.longest_round}
    return {"folder": str(rig.folder), "wall_s": wall_s, **more, "seed": args.seed}


def control(args: Any, facts: dict[str, Any]) -> dict[str, Any]:
    """As many rounds on the same network without a single fault."""
    rounds = len(durations_of(Path(facts["folder"])))
    keys = [*_keys(args), f"stop.rounds={rounds}"]
    setting = Setting(keys, _rates(args), seed=args.seed)
    with Rig(args.out, setting, _free_name(args.out, "control")) as rig:
        _say(f"control: {rounds} rounds in {rig.folder}")
        _warm(rig)
        rig.start()
        rig.until(lambda: rig.rounds > 0, 240)
        wall_s = _follow(rig, 2 * facts["wall_s"] + 300)
        findings = [str(finding) for finding in rig.findings()]
    known = {"folder": str(rig.folder), "wall_s": wall_s, "bad": facts["bad"]}
    lag = {"lag_s": round(rig.lag.longest_s, 1), "lag_round": rig.lag.longest_round}
    return {**known, **lag, "findings": findings}


def _warm(rig: Rig) -> None:
    """Train a step here, so that kernels are compiled once and not by every worker at a time."""
    parts = worker_parts(rig.experiment, 0)
    if parts.train is not None:
        parts.train(StartTraining(0, parts.vector, parts.counters, 1, 1.0))


def _follow(rig: Rig, at_most_s: float) -> float:
    """To the end, with a line every half minute; answers how long it took."""
    began = time.monotonic()

    def tell() -> None:
        last = next(
            (r for r in reversed(rig.records) if r.get("accuracy_global") is not None), None
        )
        score = f", global accuracy {100 * last.get('accuracy_global'):.1f} %" if last else ""  # type: ignore[operator]
        _say(
            f"  {time.monotonic() - began:6.0f} s: round {rig.rounds}, {rig.joined} joined, "
            f"{rig.done}/{rig.planned} faults{score}"
        )
        rig.after(30.0, tell)

    tell()
    rig.finish(at_most_s)
    return time.monotonic() - began


# Verdict ----------------------------------------------------------------------------------------


def verdict(facts: dict[str, Any], calm: dict[str, Any]) -> dict[str, Any]:
    """Compare every guarantee with the measurements."""
    kept = facts["done_or_late"]
    broken = list(facts["findings"])
    if kept < DONE:
        broken.append(f"only {100 * kept:.2f} % of the orders are done or late")
    if facts["bad_used"]:
        broken.append(f"{facts['bad_used']} bad models were used")
    for who, share in facts["rss_growth"].items():
        if share is not None and share > GROWTH:
            broken.append(f"memory of {who} grew by {100 * share:.1f} %")
    for name, run in (("soak", facts), ("control", calm)):
        if run and run["lag_s"] > LAG_S:
            broken.append(
                f"{name}: the record of round {run['lag_round']} came {run['lag_s']} s after it"
            )
    summary = {"soak": facts, "control": calm}
    if calm:
        summary["wall_ratio"] = ratio = facts["wall_s"] / calm["wall_s"]
        broken += calm["findings"]
        near = [("accuracy_global", GLOBAL), ("accuracy_local", LOCAL)]
        broken += [str(f) for key, d in near for f in accuracy_near(facts[key], calm[key], d)]
        if ratio > WALL:
            broken.append(f"{ratio:.2f} times as long as the control run")
    return {**summary, "broken": broken}


def markdown(summary: dict[str, Any]) -> str:
    """The summary as a table."""
    soak, calm = summary["soak"], summary["control"]
    rows = [
        ("injected", _counts(soak["faults"]), "none"),
        ("wall time", f"{soak['wall_s']:.0f} s", f"{calm.get('wall_s', 0):.0f} s"),
        ("rounds", soak["rounds"], calm.get("rounds", "")),
        ("round time median / p95 / max, s", _three(soak), _three(calm)),
        ("longest wait for a record after its round", *_both_lags(soak, calm)),
        ("tests with a score / without", *_both_tests(soak, calm)),
        ("orders", _endings(soak), _endings(calm)),
        ("done or late", f"{100 * soak['done_or_late']:.2f} %", ""),
        ("pulls / resumed", f"{soak['pulls']} / {soak['resumed']}", _pulls(calm)),
        ("refused", _counts(soak["refused"]), _counts(calm.get("refused", {}))),
        ("bad models used", soak["bad_used"], ""),
        ("accuracy of the last ten tests, global", *_both(soak, calm, "accuracy_global")),
        ("... mean local", *_both(soak, calm, "accuracy_local")),
        ("... of the models at the end, global", *_both(soak, calm, "end_global")),
        ("... mean local", *_both(soak, calm, "end_local")),
        ("memory growth after 5 min", _growths(soak), _growths(calm)),
        ("most descriptors / threads", _most(soak), _most(calm)),
        ("broken guarantees", len(summary["broken"]), ""),
    ]  # fmt: skip
    lines = ["| | with faults | control |", "| --- | --- | --- |"]
    lines += [f"| {a} | {b} | {c} |" for a, b, c in rows]
    if "wall_ratio" in summary:
        lines.append(f"\nWall time: {summary['wall_ratio']:.2f} times the control run.")
    return "\n".join([*lines, *(f"\n* {text}" for text in summary["broken"]), ""])


def _three(facts: dict[str, Any]) -> str:
    return " / ".join(str(x) for x in facts.get("round_s", ()))


def _endings(facts: dict[str, Any]) -> str:
    return _counts(facts.get("endings", {}))


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{n} {what}" for what, n in sorted(counts.items()))


def _pulls(facts: dict[str, Any]) -> str:
    return f"{facts['pulls']} / {facts['resumed']}" if facts else ""


def _both(soak: dict[str, Any], calm: dict[str, Any], key: str) -> list[str]:
    return [f"{100 * facts[key]:.2f} %" if facts else "" for facts in (soak, calm)]


def _both_lags(soak: dict[str, Any], calm: dict[str, Any]) -> list[str]:
    return [
        f"{facts['lag_s']} s (round {facts['lag_round']})" if facts else ""
        for facts in (soak, calm)
    ]


def _both_tests(soak: dict[str, Any], calm: dict[str, Any]) -> list[str]:
    return [
        f"{facts['tests']} / {_counts(facts['untested']) or 'none'}" if facts else ""
        for facts in (soak, calm)
    ]


def _growths(facts: dict[str, Any]) -> str:
    known = {who: share for who, share in facts.get("rss_growth", {}).items() if share is not None}
    return ", ".join(f"{who} {100 * share:+.1f} %" for who, share in known.items())


def _most(facts: dict[str, Any]) -> str:
    return f"{facts['descriptors']} / {facts['threads']}" if facts else ""


def _write(path: Path, tree: Any) -> None:
    path.write_text(json.dumps(tree, indent=1) + "\n")


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _end(number: int, frame: object) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _end)
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("interrupted; nothing is left running")
