"""What the benchmarks share: one core, the baseline beside this checkout, figures with targets.

A measurement is a function of a benchmark that takes and returns plain data. `compared` calls it in
processes of their own, in turn with the package of this checkout and with that of the commit in
``baseline.txt``, and keeps the fastest run of each: so both have the same machine, the same minutes
and the same interpreter, and a ratio means something. The commit is unpacked once into ``build/``.
Where it cannot be (an sdist has no history), one line says so, and figures stand alone.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import inspect
import io
import json
import os
import resource
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parents[1]
BENCHMARKS: Final = Path(__file__).resolve().parent
ROUNDS: Final = 3
"""Runs of each measurement on each tree; the fastest counts."""
BUSY: Final = 1.1
"""Seconds for each second of processor time from which on a machine counts as busy."""
ONE_THREAD: Final = dict.fromkeys(
    ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"
)


def asked_for_json(description: str | None) -> bool:
    """Read the command line, stay on one core from now on, and return whether to print JSON."""
    parser = argparse.ArgumentParser(description=(description or "").splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    options = parser.parse_args()
    stay_on(1)
    return bool(options.json)


def stay_on(cores: int) -> None:
    """Run on so many cores from now on, as far as the system can be told."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, set(sorted(os.sched_getaffinity(0))[:cores]))


def peak_mb(of: int = resource.RUSAGE_SELF) -> float:
    """Return the most megabytes that this process ever had, or the largest of those it started."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(of).ru_maxrss * unit / 1e6


# ------------------------------------------------------------------------------------ two trees


class Tree(NamedTuple):
    """A version of the package."""

    name: str
    """``now`` or ``before``."""
    source: Path
    """The folder that has the package."""

    @property
    def environment(self) -> dict[str, str]:
        """What makes Python import this version; it may keep what it compiles."""
        kept = {name: text for name, text in os.environ.items() if not name.startswith("PYTHON")}
        path = os.pathsep.join(map(str, (self.source, BENCHMARKS)))
        return kept | ONE_THREAD | {"PYTHONPATH": path}


NOW: Final = Tree("now", ROOT / "src")


@functools.cache
def baseline() -> Tree | None:
    """Return the version to compare with; None, with a line on why, where it cannot be had."""
    lines = (BENCHMARKS / "baseline.txt").read_text().split("\n")
    (commit,) = (line.strip() for line in lines if line.strip() and not line.startswith("#"))
    place = ROOT / "build" / f"baseline-{commit[:12]}"
    if not place.is_dir():
        # A package that is unpacked inside another checkout is not of that checkout's history.
        own = (ROOT / ".git").exists()
        words = ["git", "archive", commit, "src"]
        done = subprocess.run(words, cwd=ROOT, capture_output=True, check=False) if own else None
        if done is None or done.returncode:
            why = done.stderr.decode().strip().splitlines()[-1:] if done else ["no git history"]
            line = f"no baseline to compare with ({' '.join(why)}): figures of this checkout alone"
            print(line, file=sys.stderr)
            return None
        place.parent.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=place.parent) as folder:
            with tarfile.open(fileobj=io.BytesIO(done.stdout)) as packed:
                packed.extractall(folder, filter="data")
            (Path(folder) / "src").rename(place)
    return Tree("before", place)


def trees() -> list[Tree]:
    """Return this version and, where it can be had, the one to compare with."""
    before = baseline()
    return [NOW] if before is None else [NOW, before]


def in_turn(rounds: int = ROUNDS) -> Iterator[Tree]:
    """Yield the trees in turn."""
    for _ in range(rounds):
        yield from trees()


def measured(
    call: Callable[..., dict[str, Any]], tree: Tree, *, cores: int = 1, **arguments: Any
) -> dict[str, Any]:
    """Return what a function of a benchmark measures, in a process of its own, with a version."""
    module = Path(inspect.getfile(call)).stem
    program = "import measuring; measuring.answer()"
    words = [sys.executable, "-c", program, module, call.__name__, str(cores)]
    words.append(json.dumps(arguments))
    done = subprocess.run(words, env=tree.environment, stdout=subprocess.PIPE, check=False)
    if done.returncode:
        raise SystemExit(f"{module}.{call.__name__} failed on {tree.source}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    if not Path(found.pop("package")).is_relative_to(tree.source):
        raise SystemExit(f"{sys.executable} does not import shardcost from {tree.source}")
    return found


def answer() -> None:
    """Measure what the command line names and print it: the side of the new process."""
    module, name, cores, arguments = sys.argv[1:]
    stay_on(int(cores))
    found = getattr(importlib.import_module(module), name)(**json.loads(arguments))
    print(json.dumps(found | {"package": importlib.import_module("shardcost").__file__}))


class Pair(NamedTuple):
    """The fastest run of each version, as the measurement returned it."""

    now: dict[str, Any]
    before: dict[str, Any] | None


def fastest(
    call: Callable[..., dict[str, Any]],
    versions: Sequence[Tree],
    rounds: int = ROUNDS,
    **arguments: Any,
) -> dict[str, dict[str, Any]]:
    """Return the fastest of some runs with each version, run in turn, by the version's name.

    Where even the fastest had to wait for the processor, there are as many runs again.

    Args:
        call: A function of a benchmark, with ``seconds`` and ``cpu_seconds`` among its figures.
        versions: Of the package.
        rounds: Runs of each.
        arguments: Plain data for the function.
    """
    best: dict[str, dict[str, Any]] = {}
    for turn in range(2 * rounds):
        if turn >= rounds and not any(map(waited, best.values())):
            break
        for tree in versions:
            run = measured(call, tree, **arguments)
            if tree.name not in best or run["seconds"] < best[tree.name]["seconds"]:
                best[tree.name] = run
    return best


def waited(run: Mapping[str, Any]) -> bool:
    """Return whether a run had to share its core with other work."""
    return bool(run["seconds"] > BUSY * (run.get("cpu_seconds") or run["seconds"]))


def compared(
    call: Callable[..., dict[str, Any]], *, rounds: int = ROUNDS, **arguments: Any
) -> Pair:
    """Return what a measurement gives with this version and with the baseline, see `fastest`."""
    best = fastest(call, trees(), rounds, **arguments)
    return Pair(best["now"], best.get("before"))


# ------------------------------------------------------------------------------------- figures


@dataclass(frozen=True)
class Figure:
    """A figure, that of the baseline, and the target."""

    what: str
    value: float
    unit: str = ""
    before: float | None = None
    most: float | None = None
    least: float | None = None
    note: str = ""
    same: bool = True
    """Whether the answers that were timed are those they should be."""

    @property
    def ratio(self) -> float | None:
        """How much better than before; above 1 is better. None where one of them is 0."""
        if not self.before or not self.value:
            return None
        return self.value / self.before if self.unit.endswith("/s") else self.before / self.value

    @property
    def target(self) -> str:
        """The target in words; empty where there is none."""
        if self.most is not None:
            return f"at most {_said(self.most)}"
        return "" if self.least is None else f"at least {_said(self.least)}"

    @property
    def verdict(self) -> str:
        """``pass`` or ``FAIL``; empty where there is no target."""
        if not self.target and self.same:
            return ""
        within = self.most is None or self.value <= self.most
        enough = self.least is None or self.value >= self.least
        return "pass" if within and enough and self.same else "FAIL"

    def as_data(self) -> dict[str, Any]:
        """Return it as data."""
        words = ("what", "value", "unit", "before", "ratio", "target", "verdict", "note")
        return {word: getattr(self, word) for word in words}


def figure(pair: Pair, key: str, what: str, *, note: str = "", **given: Any) -> Figure:
    """Return a figure that both versions measured; a note says where the machine was busy."""
    before = pair.before[key] if pair.before else None
    runs = [run for run in pair if run is not None and "seconds" in run]
    if any(map(waited, runs)):
        note = "; ".join(filter(None, (note, "the machine was busy: repeat it")))
    return Figure(what, pair.now[key], before=before, note=note, **given)


Tables = Mapping[str, Sequence[Figure]]
"""Figures by title."""


def show(tables: Tables) -> None:
    """Print figures as text."""
    for title, figures in tables.items():
        print(f"\n{title}")
        wide = max(len(each.what) for each in figures)
        print(f"{'':<{wide}} {'now':>12} {'before':>12} {'ratio':>8}")
        for each in figures:
            before = "" if each.before is None else _said(each.before)
            ratio = "" if each.ratio is None else f"{each.ratio:.2f} x"
            wanted = f"  ({each.target})  {each.verdict}" if each.verdict else ""
            line = f"{each.what:<{wide}} {_said(each.value):>12} {before:>12} {ratio:>8}"
            print(f"{line}  {each.unit}{wanted}".rstrip())
            if each.note:
                print(f"  {each.note}")


def as_data(tables: Tables) -> dict[str, Any]:
    """Return figures as data."""
    return {title: [each.as_data() for each in figures] for title, figures in tables.items()}


def as_markdown(figures: Sequence[Figure]) -> str:
    """Return figures as a table of a page."""
    lines = ["| | now | before | ratio | target | |", "|---|---:|---:|---:|---|---|"]
    for each in figures:
        unit = f" {each.unit}" if each.unit else ""
        before = "" if each.before is None else f"{_said(each.before)}{unit}"
        ratio = "" if each.ratio is None else f"{each.ratio:.3g} x"
        cells = (each.what, f"{_said(each.value)}{unit}", before, ratio, each.target, each.verdict)
        lines.append(f"| {' | '.join(cells)} |")
    notes = [f"- {each.what}: {each.note}" for each in figures if each.note]
    return "\n".join([*lines, *(["", *notes] if notes else [])])


def _said(value: float) -> str:
    """Return a number with three digits or all before the point."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
