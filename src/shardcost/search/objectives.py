"""What makes one layout better than another, and what it must keep.

An objective is a figure to be small: seconds of a step, or what a token costs in device-seconds,
money or joules. A rule is a limit on a figure; layouts beyond it count by its reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from typing import Any, Final, TypeAlias

from shardcost.cluster import Cluster
from shardcost.errors import BadTypeError, BadValueError, Reason, UnknownNameError
from shardcost.option import PHASES
from shardcost.options import LIMITS
from shardcost.records import NamedTuple, dataclass
from shardcost.scalars import positive_number
from shardcost.units import format_energy, format_time
from shardcost.workload import Decode, Workload

SECONDS_PER_HOUR: Final = 3600.0
LEAST_CONFIDENCE: Final = 0.5
"""The estimate is the median: it holds in half of all cases."""


Price: TypeAlias = float | Mapping[str, float]
"""Of a device for an hour, in any currency: one for all, or by the name of the cluster."""


def price_on(cluster: Cluster, price: Price | None) -> float:
    """Return what a device of a cluster costs for an hour."""
    if not isinstance(price, Mapping):
        return price or 0.0
    if cluster.name not in price:
        raise BadValueError("price_per_gpu_hour", dict(price), f"given for {cluster.name} too")
    return price[cluster.name]


def by_name(what: str, given: object, kind: Any) -> dict[str, Any]:
    """Return values by the names of a dataclass's fields; raise if they are no such thing."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        rule = f"{kind.__name__} or a mapping from each {what} to its value"
        raise BadTypeError(kind.__name__.lower(), given, rule)
    known = [each.name for each in fields(kind)]
    for name in given:
        if name not in known:
            raise UnknownNameError(what, name, known)
    return dict(given)


class Aim(NamedTuple):
    """One objective: what is to be small, in words and per device-second."""

    unit: str
    label: str
    """On the page."""
    worse: str
    """What a worse layout takes more of."""
    weight: Callable[[Cluster, Price | None], float] | None
    """What one device-second costs in its unit; None where the time of a step itself counts."""
    said: Callable[[float], str]
    """A score, or a difference of two, in words."""
    shown: Callable[[float], str] | None = None
    """The score of a layout in a table, where no other column says it."""


def _power_w(cluster: Cluster, _: Price | None) -> float:
    power = cluster.device.power_w
    if power is None:
        raise BadValueError("objective", "energy", f"another ({cluster.name}: power unknown)")
    return float(power)


def _of_a_million(score: float) -> str:
    return f"{1e6 * score:.4g}/Mtok"


OBJECTIVES: Final[Mapping[str, Aim]] = {
    "time": Aim("step time", "least time", "time", None, format_time),
    "throughput": Aim(
        "tokens/s/GPU", "most tokens/s/GPU", "GPU time per token", lambda *_: 1.0, format_time
    ),
    "cost": Aim(
        "cost per token",
        "least cost per token",
        "cost per token",
        lambda cluster, price: price_on(cluster, price) / SECONDS_PER_HOUR,
        _of_a_million,
    ),
    "energy": Aim(
        "energy per token",
        "least energy per token",
        "energy per token",
        _power_w,
        format_energy,
        format_energy,
    ),
}


class Figures(NamedTuple):
    """What is known of some layouts: numbers, or arrays of one shape."""

    time_s: Any
    memory_bytes: Any
    gpus: Any
    tokens: Any
    """That one step computes."""
    ttft_s: Any = None
    """Where a prompt was priced beside the decoding."""

    @property
    def tokens_per_s(self) -> Any:
        """Of all devices together."""
        return self.tokens / self.time_s

    @property
    def tokens_per_s_per_gpu(self) -> Any:
        """Of one device."""
        return self.tokens_per_s / self.gpus

    @property
    def gpu_s_per_token(self) -> Any:
        """Device-seconds that one token takes."""
        return self.time_s * self.gpus / self.tokens


@dataclass(frozen=True)
class Objective:
    """What to make small.

    >>> Objective.of("cost", price_per_gpu_hour=2.5).aim.unit
    'cost per token'
    """

    name: str = "time"
    price_per_gpu_hour: Price | None = None
    """For ``cost``: of any device, or by the name of the cluster."""

    @classmethod
    def of(cls, given: Objective | str, price_per_gpu_hour: Price | None = None) -> Objective:
        """Return an objective by its name."""
        if isinstance(given, Objective):
            return given
        if given not in OBJECTIVES:
            raise UnknownNameError("objective", given, OBJECTIVES)
        price = price_per_gpu_hour
        if isinstance(price, Mapping):
            named = "price_per_gpu_hour of {}"
            price = {name: positive_number(named.format(name), x) for name, x in price.items()}
        elif price is not None:
            price = positive_number("price_per_gpu_hour", price)
        if given == "cost" and price is None:
            raise BadValueError("price_per_gpu_hour", None, "given for the objective cost")
        return cls(given, price)

    @property
    def aim(self) -> Aim:
        """What it is in words, and what a device-second costs."""
        return OBJECTIVES[self.name]

    def score(self, figures: Figures, cluster: Cluster) -> Any:
        """Return the figure that is to be small."""
        if self.aim.weight is None:
            return figures.time_s
        return figures.gpu_s_per_token * self.aim.weight(cluster, self.price_per_gpu_hour)


class Limit(NamedTuple):
    """One limit, and what layouts have of what it limits."""

    name: str
    """The field of `Constraints`."""
    bound: float
    value: Any
    words: str
    """What is limited; between its gaps, how and by how much."""
    of_prompt: bool = False
    """Whether it is on the prompt that is priced beside the decoding."""

    @property
    def at_least(self) -> bool:
        """Whether less than the bound breaks it, not more."""
        return self.name.startswith("min")

    def said(self, how: str) -> str:
        """Return the limit in words.

        >>> Limit("max_tpot_s", 0.02, 0.018, "TPOT {} {}").said("at most")
        'TPOT at most 20 ms'
        """
        bound = f"{self.bound:g}" if self.at_least else format_time(self.bound)
        return self.words.format(how, bound)


@dataclass(frozen=True)
class Constraints:
    """Limits that a layout must keep; None where there is none."""

    memory_headroom: float = 0.0
    """Share of the device's memory to be left free."""
    max_time_s: float | None = None
    """Of one step."""
    max_ttft_s: float | None = None
    """Time to the first token; in decoding, of a prompt as long as the context by itself."""
    max_tpot_s: float | None = None
    """Time per output token."""
    min_tokens_per_s_per_user: float | None = None
    min_tokens_per_s: float | None = None
    """Of all devices together."""
    confidence: float | None = None
    """Share of cases in which each limit on time or rate must hold, by the errors of similar
    measurements; without one, limits are on the estimate itself."""

    @classmethod
    def of(cls, given: Constraints | Mapping[str, Any] | None) -> Constraints:
        """Return constraints from values by name."""
        if isinstance(given, Constraints):
            return given
        return cls(**by_name("constraint", given, cls))

    def __post_init__(self) -> None:
        headroom: object = self.memory_headroom
        if isinstance(headroom, bool) or not isinstance(headroom, int | float):
            raise BadTypeError("memory_headroom", headroom, "a share, like 0.1")
        if not 0 <= headroom < 1:
            raise BadValueError("memory_headroom", headroom, "at least 0 and below 1")
        for each in fields(self)[1:]:
            value = getattr(self, each.name)
            if value is not None:
                object.__setattr__(self, each.name, positive_number(each.name, value))
        if self.confidence is not None and not LEAST_CONFIDENCE <= self.confidence < 1:
            rule = "a share of at least 50 % and below 100 %, like 0.9"
            raise BadValueError("confidence", self.confidence, rule)

    def check(self, workload: Workload) -> None:
        """Raise for a limit on something that a workload does not have."""
        for option in LIMITS:
            value = getattr(self, option.limit)
            if value is not None and workload.phase not in option.applies_to:
                words = " or ".join(PHASES[phase].__name__ for phase in option.applies_to)
                raise BadValueError(option.limit, value, f"left out but for {words}")

    @property
    def limited(self) -> bool:
        """Whether there is a limit on time or rate."""
        names = (each.name for each in fields(self) if each.name.startswith(("max", "min")))
        return any(getattr(self, name) is not None for name in names)

    def limits(self, figures: Figures, workload: Workload) -> Iterator[Limit]:
        """Yield each limit on time or rate, with what layouts have of it."""
        time_s = figures.time_s
        if self.max_time_s is not None:
            yield Limit("max_time_s", self.max_time_s, time_s, "step {} {}")
        if self.max_ttft_s is not None:
            prompt = figures.ttft_s is not None
            first = figures.ttft_s if prompt else time_s
            yield Limit("max_ttft_s", self.max_ttft_s, first, "TTFT {} {}", of_prompt=prompt)
        if self.min_tokens_per_s is not None:
            rate = figures.tokens_per_s
            yield Limit("min_tokens_per_s", self.min_tokens_per_s, rate, "{} {} tokens/s")
        if isinstance(workload, Decode):
            token_s = time_s / workload.kept_tokens
            if self.max_tpot_s is not None:
                yield Limit("max_tpot_s", self.max_tpot_s, token_s, "TPOT {} {}")
            if self.min_tokens_per_s_per_user is not None:
                rate = self.min_tokens_per_s_per_user
                words = "{} {} tokens/s/user"
                yield Limit("min_tokens_per_s_per_user", rate, 1 / token_s, words)

    def broken(self, figures: Figures, workload: Workload) -> Iterator[tuple[Reason, Any]]:
        """Yield each limit as a reason, coded by its name, and where it is broken."""
        sure = self.confidence
        surely = "" if sure is None else f" at {100 * sure:g} % confidence"
        for each in self.limits(figures, workload):
            words = each.said("below" if each.at_least else "above") + surely
            where = each.value < each.bound if each.at_least else each.value > each.bound
            yield Reason(each.name, words, (each.bound,)), where
