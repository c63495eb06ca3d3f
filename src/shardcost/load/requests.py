"""Requests: when they arrive, how long their prompts and outputs are, what prefixes they share."""

from __future__ import annotations

from collections.abc import Sequence
from math import log, sqrt
from statistics import NormalDist
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from shardcost.checks import Noun, instance, noun, one_of, positive, whole
from shardcost.errors import BadValueError, UsageError
from shardcost.records import dataclass
from shardcost.scalars import positive_number

ARRIVALS: Final = ("poisson", "closed", "all-at-once", "trace")
KINDS: Final = ("fixed", "uniform", "lognormal", "exponential")
MOST_REQUESTS: Final = 10_000_000
_MOST_TOKENS: Final = 100_000_000
_ROUNDS: Final = 8

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@noun
class Lengths(Noun):
    """A distribution of token counts, of at least 1.

    >>> Lengths.parse("819-1024")
    Lengths(kind='uniform', mean=921.5, low=819, high=1024)
    >>> str(Lengths.parse("lognormal:300:1.2")), str(Lengths.parse("1024"))
    ('lognormal:300:1.2', '1024')
    >>> Lengths.parse("lognormal:300:1.2:1024").most
    1024.0
    """

    kind: str = one_of(*KINDS, default="fixed")
    mean: float = positive()
    low: int | None = whole(default=None)
    """The least, of ``uniform``."""
    high: int | None = whole(default=None)
    """The most: of ``uniform``, or where ``lognormal`` lengths are cut off; their mean is kept."""
    cv: float | None = positive(default=None)
    """Of ``lognormal``: standard deviation over mean."""

    @classmethod
    def parse(cls, text: str | float | Lengths, name: str = "length") -> Lengths:
        """Return what a text means.

        ``1024``, ``819-1024``, ``lognormal:MEAN:CV[:MOST]`` or ``exponential:MEAN``.
        """
        if isinstance(text, Lengths):
            return text
        try:
            return cls._parse(str(text).strip())
        except (ValueError, TypeError) as error:
            rule = "tokens such as 1024, 819-1024, lognormal:300:1.2 or exponential:300"
            raise BadValueError(name, text, rule) from error

    @classmethod
    def _parse(cls, text: str) -> Lengths:
        kind, _, rest = text.partition(":")
        if rest:
            mean, *more = (float(each) for each in rest.split(":"))
            if (kind, len(more)) not in {("lognormal", 1), ("lognormal", 2), ("exponential", 0)}:
                raise ValueError(text)
            high = int(more[1]) if len(more) > 1 else None
            if high is not None and high < mean:
                raise ValueError(text)
            made = cls(kind=kind, mean=mean, cv=more[0] if more else None, high=high)
        elif "-" in text[1:]:
            low, high = (int(each) for each in text.split("-"))
            if low > high:
                raise ValueError(text)
            made = cls(kind="uniform", mean=(low + high) / 2, low=low, high=high)
        else:
            made = cls(mean=float(text))
        if not 1 <= made.mean <= _MOST_TOKENS:
            raise ValueError(text)
        return made

    def __str__(self) -> str:
        if self.kind == "uniform":
            return f"{self.low}-{self.high}"
        if self.kind == "fixed":
            return f"{self.mean:g}"
        shape = f":{self.cv:g}" if self.cv else ""
        return f"{self.kind}:{self.mean:g}{shape}" + (f":{self.high}" if self.high else "")

    @property
    def variation(self) -> float:
        """Standard deviation over mean."""
        if self.low is not None and self.high is not None:
            return sqrt(((self.high - self.low + 1) ** 2 - 1) / 12) / self.mean
        return {"fixed": 0.0, "exponential": 1.0}.get(self.kind, self.cv or 0.0)

    @property
    def most(self) -> float:
        """A length that fewer than one in a thousand exceed."""
        if self.high is not None:
            return float(self.high)
        if self.kind == "exponential":
            return self.mean * log(1000.0)
        if self.cv is not None:
            sigma = sqrt(log(1 + self.cv**2))
            return self.mean * float(np.exp(3.09 * sigma - sigma**2 / 2))
        return self.mean

    def quantiles(self, count: int) -> Ints:
        """Return so many lengths in the middles of equal shares, ascending, with the same mean."""
        shares = (np.arange(count) + 0.5) / count
        lengths: Floats
        if self.low is not None and self.high is not None:
            lengths = self.low - 0.5 + (self.high - self.low + 1) * shares
        elif self.kind == "exponential":
            lengths = -self.mean * np.log1p(-shares)
        elif self.cv is not None:
            sigma = sqrt(log(1 + self.cv**2))
            normal = NormalDist(log(self.mean) - sigma**2 / 2, sigma)
            lengths = np.exp([normal.inv_cdf(float(share)) for share in shares])
        else:
            lengths = np.full(count, self.mean)
        most = _MOST_TOKENS if self.high is None else self.high
        for _ in range(3):  # what is cut off the longest is given to the others
            lengths = lengths * (self.mean / np.minimum(lengths, most).mean())
        return np.asarray(np.clip(np.rint(lengths), 1, most), dtype=np.int64)

    def draw(self, count: int, random: np.random.Generator) -> Ints:
        """Return so many lengths."""
        if self.low is not None and self.high is not None:
            return random.integers(self.low, self.high + 1, count)
        if self.kind == "exponential":
            lengths = random.exponential(self.mean, count)
        elif self.cv is not None:
            sigma = sqrt(log(1 + self.cv**2))
            lengths = random.lognormal(log(self.mean) - sigma**2 / 2, sigma, count)
        else:
            lengths = np.full(count, self.mean)
        most = _MOST_TOKENS if self.high is None else self.high
        if self.high is not None:
            for _ in range(_ROUNDS):  # what is cut off the longest is given to the others
                lengths *= self.mean / np.minimum(lengths, most).mean()
        return np.clip(np.rint(lengths), 1, most).astype(np.int64)


@dataclass(frozen=True, eq=False)
class Stream:
    """Requests one by one, in the order of their arrival."""

    arrival_s: Floats
    """When each comes. In a closed loop: when its user may send it at the earliest."""
    prompt_tokens: Ints
    output_tokens: Ints
    prefixes: Sequence[Sequence[int]] | None = None
    """Hashes of the blocks of `prefix_block_tokens` of each prompt, from its beginning."""
    prefix_block_tokens: int = 512
    users: int | None = None
    """In a closed loop: how many send the next request when their last one ends."""
    shared_tokens: int = 0
    """Of every prompt, the tokens that all begin with."""

    def __len__(self) -> int:
        return len(self.arrival_s)


@noun
class Requests(Noun):
    """The requests of a load: arrivals and lengths. A trace states both by itself.

    >>> closed = Requests(arrival="closed", users=8, count=80, prompt=Lengths(mean=1024),
    ...                   output=Lengths(mean=256))
    >>> len(closed.stream())
    80
    """

    arrival: str = one_of(*ARRIVALS, default="poisson")
    rate_per_s: float | None = positive(default=None)
    """Of ``poisson``: mean arrivals in a second. Of ``trace``: the trace is sped up or slowed down
    to this rate."""
    users: int | None = whole(default=None)
    """Of ``closed``: each sends its next request when its last one ends; all begin at time 0."""
    count: int = whole(default=1000)
    """Requests in all."""
    prompt: Lengths | None = instance(Lengths, default=None)
    output: Lengths | None = instance(Lengths, default=None)
    prefix_tokens: int = whole(default=0, least=0)
    """Of every prompt, the tokens that all begin with."""
    seed: int = whole(default=0, least=0)
    trace: Any = None
    """A `Stream` that was recorded."""

    def check(self) -> None:
        """Raise where arrivals lack their rate, users or trace."""
        wanted = {"poisson": "rate_per_s", "closed": "users", "trace": "trace"}.get(self.arrival)
        if wanted and getattr(self, wanted) is None:
            raise UsageError(f"{self.arrival} arrivals need {wanted}")
        if self.arrival != "trace" and (self.prompt is None or self.output is None):
            raise UsageError("requests need lengths of prompt and output")
        if self.arrival == "trace" and not len(self.trace):
            raise UsageError("the trace has no requests")
        if self.count > MOST_REQUESTS:
            raise BadValueError("requests", self.count, f"at most {MOST_REQUESTS}")

    @property
    def mean_prompt_tokens(self) -> float:
        """Of all requests."""
        return float(np.mean(self.trace.prompt_tokens)) if self.prompt is None else self.prompt.mean

    @property
    def mean_output_tokens(self) -> float:
        """Of all requests."""
        return float(np.mean(self.trace.output_tokens)) if self.output is None else self.output.mean

    def stream(self) -> Stream:
        """Return the requests one by one; the same seed gives the same ones."""
        if self.arrival == "trace":
            return _at_rate(self.trace, self.rate_per_s)
        if self.prompt is None or self.output is None:  # see check
            raise UsageError("requests need lengths of prompt and output")
        random = np.random.default_rng(self.seed)
        arrival_s = np.zeros(self.count)
        if self.arrival == "poisson" and self.rate_per_s is not None:
            arrival_s = np.cumsum(random.exponential(1 / self.rate_per_s, self.count))
        return Stream(
            arrival_s=arrival_s,
            prompt_tokens=self.prompt.draw(self.count, random),
            output_tokens=self.output.draw(self.count, random),
            users=self.users if self.arrival == "closed" else None,
            shared_tokens=self.prefix_tokens,
        )


def _at_rate(trace: Stream, rate_per_s: float | None) -> Stream:
    if rate_per_s is None:
        return trace
    from dataclasses import replace

    span_s = float(trace.arrival_s[-1] - trace.arrival_s[0])
    if span_s <= 0:
        raise UsageError("a trace whose requests all come at once has no rate to change")
    scale = (len(trace) - 1) / span_s / positive_number("rate_per_s", rate_per_s)
    return replace(trace, arrival_s=(trace.arrival_s - trace.arrival_s[0]) * scale)
