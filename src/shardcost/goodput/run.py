"""A whole training run from one step: `training_run` and its result, `TrainingRun`.

Tokens make steps, steps make time; failures and checkpoints (`shardcost.goodput.checkpoints`) make
it longer. Everything else is that time: GPU-hours, money, energy. What operators have published
about failures, restarts and storage is data of ``catalog/tuner/failures.toml``.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from math import ceil, exp, hypot, inf, log
from typing import Any, Final

from shardcost.arrays import largest, smallest
from shardcost.catalog import tuner_table
from shardcost.checks import is_array
from shardcost.display import Displayed
from shardcost.errors import BadTypeError, BadValueError
from shardcost.estimate.price import host_copy_s
from shardcost.estimate.result import Estimate
from shardcost.goodput.checkpoints import DALY, cycle_s, daly_interval_s, restart_share
from shardcost.memory import checkpoint_bytes
from shardcost.receipt import Receipt
from shardcost.records import NamedTuple, dataclass
from shardcost.resilience import Resilience
from shardcost.scalars import positive_number
from shardcost.traced import Naming, named, receipt, step, unnamed
from shardcost.units import format_count, format_percent, format_time
from shardcost.workload import Train

_DAY_S: Final = 86_400.0


class Stated(NamedTuple):
    """A figure with the range that others have, and who states it."""

    value: float
    low: float
    high: float
    name: str
    """Whose it is, in a few words."""
    source: str


class Published(NamedTuple):
    """The figures of `shardcost.resilience.Resilience` that a run takes where none are given."""

    gpu_mtbf_s: Stated
    restart_s: Stated
    checkpoint_bytes_per_s: Stated
    """For each device."""


def published() -> Published:
    """Return the published figures.

    >>> round(published().gpu_mtbf_s.value / 3600)
    50677
    """
    table = tuner_table("failures")
    fleets = table["fleet"]
    mtbf = [each["gpu_days"] * _DAY_S / each["failures"] for each in fleets]
    restart, storage = table["restart"], table["storage"]
    per_gpu = storage["bytes_per_s"] / storage["gpus"]
    return Published(
        Stated(mtbf[0], min(mtbf), max(mtbf), fleets[0]["name"], fleets[0]["source"]),
        Stated(
            float(restart["seconds"]),
            float(restart["low_seconds"]),
            float(restart["high_seconds"]),
            restart["name"],
            restart["source"],
        ),
        Stated(per_gpu, per_gpu, per_gpu, storage["name"], storage["source"]),
    )


HOUR_S: Final = 3600.0
DAY_S: Final = 24 * HOUR_S
_MOST: Final = 1e18
"""Of tokens, and of a price."""
_LEAST_GOODPUT: Final = 1e-6
"""Below it, a run does not get on."""


class Target(NamedTuple):
    """What a run is to do, whatever its layout."""

    tokens: float
    resilience: Resilience


class Timing(NamedTuple):
    """How the time of a run comes about, in seconds: plain or traced numbers."""

    mtbf_s: Any
    """Between failures of the whole run."""
    save_s: Any
    """That training waits for a checkpoint."""
    write_s: Any
    """In which a checkpoint is written while training goes on; 0 where training waits."""
    interval_s: Any
    """Training between two checkpoints."""
    cycle_s: Any
    """Expected, of an interval and its checkpoint with all failures."""
    goodput: Any
    """Training that counts over all time."""
    wall_s: Any
    """Of the whole run."""


@dataclass(frozen=True, eq=False)
class TrainingRun(Displayed):
    """A whole training run: a step, the tokens to train on, and what failures make of it."""

    estimate: Estimate
    """Of one step."""
    tokens: float
    resilience: Resilience
    """With every figure that was left out filled in, but for the interval of the checkpoints."""
    price_per_gpu_hour: float | None
    checkpoint_bytes: float
    """Of trained weights and optimizer states, whatever the number of devices."""
    assumed: tuple[str, ...]
    """Fields of `resilience` that were left out."""

    def __repr__(self) -> str:
        """Return the size of the run and its headline figures."""
        low, high = self.days_interval
        estimate = self.estimate
        place = f"{estimate.devices:,} x {estimate.cluster.name}, {estimate.layout.short()}"
        what = f"{estimate.model.name}, {format_count(self.tokens)} tokens on {place}"
        hours = f"{format_count(self.gpu_hours)} GPU-hours"
        days = f"{self.days:.3g} days (90 % interval {low:.3g} to {high:.3g})"
        return f"TrainingRun: {what}\n  {days}, {hours}, goodput {format_percent(self.goodput)}"

    @property
    def steps(self) -> int:
        """Optimizer steps."""
        return ceil(self.tokens / float(self.estimate.workload.tokens))

    @property
    def step_s(self) -> float:
        """Time of one step."""
        return float(self.estimate.time_s)

    @property
    def gpus(self) -> int:
        """Devices at work."""
        return int(self.estimate.devices)

    @cached_property
    def timing(self) -> Timing:
        """How the time comes about."""
        return timing_of(self)

    @property
    def goodput(self) -> float:
        """Training that counts over all time: the effective training time ratio."""
        return float(self.timing.goodput)

    @property
    def wall_s(self) -> float:
        """Expected, from the first step to the last."""
        return float(self.timing.wall_s)

    @property
    def days(self) -> float:
        """The same in days."""
        return self.wall_s / DAY_S

    @property
    def gpu_hours(self) -> float:
        """Of all devices together."""
        return self.wall_s / HOUR_S * self.gpus

    @property
    def cost(self) -> float | None:
        """In the currency of the price; None without one."""
        return None if self.price_per_gpu_hour is None else self.price_per_gpu_hour * self.gpu_hours

    @property
    def energy_j(self) -> float | None:
        """At most, by the rule of `Estimate.energy_j`; None where the power is not stated."""
        each = self.estimate.energy_j
        return None if each is None else float(each) * self.wall_s / self.step_s

    @property
    def failures(self) -> float:
        """Expected in the whole run, those in restarts included."""
        return self.wall_s / float(self.timing.mtbf_s)

    @property
    def shares(self) -> dict[str, float]:
        """Where all time goes; the shares add up to 1."""
        timing = self.timing
        work_s, save_s, cycle = (
            float(each) for each in (timing.interval_s, timing.save_s, timing.cycle_s)
        )
        running_s = float(cycle_s(work_s, save_s, timing.mtbf_s, timing.write_s))
        return {
            "training": work_s / cycle,
            "checkpoints": save_s / cycle,
            "lost work": max(0.0, running_s - work_s - save_s) / cycle,
            "restarts": float(restart_share(self.resilience.restart_s, timing.mtbf_s)),
        }

    @cached_property
    def goodput_interval(self) -> tuple[float, float]:
        """Between the worst and the best published failure rate and restart; one value if given."""
        known = published()
        ends = []
        for mtbf, restart in (("low", "high"), ("high", "low")):
            other = {}
            if "gpu_mtbf_s" in self.assumed:
                other["gpu_mtbf_s"] = getattr(known.gpu_mtbf_s, mtbf)
            if "restart_s" in self.assumed:
                other["restart_s"] = getattr(known.restart_s, restart)
            run = replace(self, resilience=replace(self.resilience, **other))
            ends.append(float(timing_of(run).goodput))
        return ends[0], ends[1]

    @cached_property
    def days_interval(self) -> tuple[float, float]:
        """Of the days: the step's 90 % interval and that of the goodput, taken as independent."""
        step_of, (worst, best) = self.estimate.interval, self.goodput_interval
        faster = hypot(log(self.step_s / float(step_of.low_s)), log(best / self.goodput))
        if not worst:
            return self.days * exp(-faster), inf
        slower = hypot(log(float(step_of.high_s) / self.step_s), log(self.goodput / worst))
        return self.days * exp(-faster), self.days * exp(slower)

    @property
    def gpu_hours_interval(self) -> tuple[float, float]:
        """Of the GPU-hours, as of the days."""
        low, high = self.days_interval
        return low / self.days * self.gpu_hours, high / self.days * self.gpu_hours

    @cached_property
    def receipts(self) -> tuple[Receipt, ...]:
        """How the main figures are computed: formulas, values and sources."""
        traced = timing_of(self, named)
        titles = {
            "mtbf_s": ("Mean time between failures of the run", "s"),
            "save_s": ("Training waits for a checkpoint", "s"),
            "write_s": ("Time to write a checkpoint in the background", "s"),
            "interval_s": ("Training between two checkpoints", "s"),
            "cycle_s": ("Expected time of an interval and its checkpoint", "s"),
            "goodput": ("Training that counts over all time", "share"),
            "wall_s": ("Time of the run", "s"),
        }
        found = [
            receipt(getattr(traced, name), name, title, unit)
            for name, (title, unit) in titles.items()
            if getattr(traced, name) not in (0.0, inf)
        ]
        hours = named("time", self.wall_s, "s") / HOUR_S * named("GPUs", self.gpus)
        found.append(receipt(hours, "gpu_hours", "GPU-hours", "GPU-hours"))
        if self.price_per_gpu_hour is not None:
            hours = named("GPU_hours", self.gpu_hours, "GPU-hours")
            cost = hours * named("price", self.price_per_gpu_hour, "", "of a GPU-hour")
            found.append(receipt(cost, "cost", "Cost", ""))
        return tuple(found)


def training_run(
    estimate: Estimate,
    *,
    tokens: float,
    price_per_gpu_hour: float | None = None,
    resilience: Resilience | None = None,
) -> TrainingRun:
    """Return what a whole training run costs: days, GPU-hours, money, energy.

    >>> from shardcost import Cluster, Layout, Train, estimate
    >>> cluster = Cluster.named("h100_sxm", "ib_8x400g")
    >>> step = estimate(
    ...     "llama3-8b",
    ...     cluster,
    ...     Layout(dp=64, zero=1),
    ...     Train(global_batch=512, sequence_length=8192),
    ... )
    >>> run = training_run(step, tokens=1e12, price_per_gpu_hour=2.5)
    >>> run.steps, round(run.cost / run.gpu_hours, 2), 0.95 < run.goodput < 1
    (238419, 2.5, True)

    Args:
        estimate: One step of training.
        tokens: To train on.
        price_per_gpu_hour: In any currency.
        resilience: Failures, checkpoints and restarts; what is left out is as published.

    Raises:
        BadTypeError: The estimate is of no training step, or of an array of layouts.
        BadValueError: A figure is out of range, or failures leave no time to train.
    """
    work = estimate.workload
    if not isinstance(work, Train) or is_array(estimate.time_s):
        raise BadTypeError("estimate", work, "of one training step")
    tokens = _at_most("tokens", tokens)
    if price_per_gpu_hour is not None:
        price_per_gpu_hour = _at_most("price_per_gpu_hour", price_per_gpu_hour)
    given, known = resilience or Resilience(), published()
    gpus = int(estimate.devices)
    usual: dict[str, Any] = {
        "gpu_mtbf_s": known.gpu_mtbf_s.value,
        "restart_s": known.restart_s.value,
        "checkpoint_bytes_per_s": gpus * known.checkpoint_bytes_per_s.value,
    }
    assumed = tuple(name for name in usual if getattr(given, name) is None)
    filled = replace(given, **{name: usual[name] for name in assumed})
    size = checkpoint_bytes(estimate.model, work)
    run = TrainingRun(estimate, tokens, filled, price_per_gpu_hour, size, assumed)
    _check(run)
    return run


def _at_most(name: str, value: float) -> float:
    """Return a number above 0 that is not so large that nothing can be computed with it."""
    number = positive_number(name, value)
    if number > _MOST:
        raise BadValueError(name, value, f"at most {_MOST:g}")
    return number


def _check(run: TrainingRun) -> None:
    """Raise where checkpoints cannot be taken as given, or a run would not end."""
    interval, timing = run.resilience.checkpoint_interval_s, run.timing
    least = _least_interval_s(run.step_s, timing.save_s, timing.write_s)
    if interval is not None and interval < least:
        why = "the writing of a checkpoint" if least > run.step_s else "a step"
        rule = f"at least {format_time(least)}, {why}"
        raise BadValueError("checkpoint_interval_s", interval, rule)
    if run.goodput >= _LEAST_GOODPUT:
        return
    given, restart_s = run.resilience, run.resilience.restart_s or 0.0
    if "checkpoint_bytes_per_s" not in run.assumed and timing.mtbf_s > restart_s:
        rule = f"higher: a checkpoint takes {format_time(timing.save_s)}"
        raise BadValueError("checkpoint_bytes_per_s", given.checkpoint_bytes_per_s, rule)
    every = f"{run.gpus:,} GPUs fail every {format_time(timing.mtbf_s)}"
    rule = f"longer: {every}, a restart takes {format_time(restart_s)}"
    raise BadValueError("gpu_mtbf_s", given.gpu_mtbf_s, rule)


def _least_interval_s(step_s: Any, save_s: Any, write_s: Any) -> Any:
    """Return the least training between checkpoints: a step, and no two written at a time."""
    return largest(step_s, write_s - save_s) if write_s else step_s


def timing_of(run: TrainingRun, term: Naming = unnamed) -> Timing:
    """Return how the time of a run comes about; traced if `term` names the terms."""
    given, known = run.resilience, published()
    gpus = term("GPUs", run.gpus)
    gpu_mtbf = term("GPU_MTBF", given.gpu_mtbf_s, "s", *_stated(run, "gpu_mtbf_s", known))
    mtbf_s = step("MTBF", gpu_mtbf / gpus, "s", "of the run")
    size = term("checkpoint", run.checkpoint_bytes, "bytes sent", "weights and optimizer states")
    rate = term(
        "storage",
        given.checkpoint_bytes_per_s,
        "bytes/s",
        *_stated(run, "checkpoint_bytes_per_s", known),
    )
    save_s, write_s = size / rate, 0.0
    if given.checkpoint == "async":
        write_s = step("write", save_s, "s", "of a checkpoint in the background")
        save_s = host_copy_s(size / gpus, term("host_link", _host_link(run), "bytes/s"))
    save_s = step("save", save_s, "s", "of a checkpoint")
    step_s = term("step", run.step_s, "s")
    all_s = term("steps", run.steps) * step_s
    if given.checkpoint_interval_s is None:
        best = all_s if mtbf_s == inf else daly_interval_s(save_s, mtbf_s)
        best = largest(best, _least_interval_s(step_s, save_s, write_s))
        interval_s = step("interval", smallest(best, all_s), "s", f"that loses least ({DALY})")
    else:
        interval_s = smallest(term("interval", given.checkpoint_interval_s, "s"), all_s)
    restart_s = term("restart", given.restart_s, "s", *_stated(run, "restart_s", known))
    cycle = step("cycle", cycle_s(interval_s, save_s, mtbf_s, restart_s + write_s), "s", DALY)
    goodput = step("goodput", 0.0 if cycle == inf else interval_s / cycle, "share")
    wall_s = all_s / goodput if goodput else inf
    return Timing(mtbf_s, save_s, write_s, interval_s, cycle, goodput, wall_s)


def _stated(run: TrainingRun, field: str, known: Published) -> tuple[str, str]:
    """Return the meaning and the source of a figure of the run's resilience."""
    meanings = {
        "gpu_mtbf_s": "mean time between failures of one GPU",
        "restart_s": "from a failure to the next step",
        "checkpoint_bytes_per_s": "bandwidth of all GPUs",
    }
    return meanings[field], getattr(known, field).source if field in run.assumed else ""


def _host_link(run: TrainingRun) -> float:
    rate = run.estimate.cluster.device.host_link_bytes_per_s
    if rate is None:
        rule = f"blocking: {run.estimate.cluster.name} states no link to the host's memory"
        raise BadValueError("checkpoint", "async", rule)
    return float(rate)
