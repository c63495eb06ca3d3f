"""Interleaved 1F1B: how long it takes, as the longest chain of operations that wait for each other.

Narayanan et al., 2021 (arXiv:2104.04473): each of p ranks holds v virtual stages, and groups
of p micro-batches go through chunk after chunk, so that the pipeline fills v times faster. Equal
stages take ``(m + (p - 1)/v)(f + b)``: the bubble is (p - 1)/(v m) of the work.

Count in units: one chunk of one micro-batch. A stage is ``2 (p - 1 - s) + (v - 1) p`` forward units
ahead of its backward ones, twice what 1F1B is, so a loop over neighbours loses turns, and
asynchronous sends stay hidden between the first and the last group. There they show: the first
micro-batch passes all v p virtual_stages one after the other, and so does the backward of the last.

Embedding and head make some units longer, p in a row in each group of v p: a *burst*. The chains
below stay on the stage whose bursts cost most, and between them on a middle stage where those have
more to do; at the start and the end they pick up the bursts of the other outer stage.
"""

from __future__ import annotations

from math import inf

from shardcost.arrays import choose, largest
from shardcost.records import NamedTuple
from shardcost.schedule.pipeline import Pipeline, full_groups
from shardcost.schedule.work import Seconds


def interleaved(pipe: Pipeline) -> Seconds:
    """Return the time of interleaved 1F1B with two or more virtual_stages.

    Micro-batches must be a multiple of the stages (`shardcost.schedule.work.problems`).
    """
    return _Chains(pipe).longest()


class Passes(NamedTuple):
    """How long p units of one chunk take: across all stages, or all on one of them."""

    usual_s: Seconds
    outermost_s: Seconds
    """For the chunk with the embedding."""


class BothPasses(NamedTuple):
    """Passes through a chunk while the pipeline fills, and while it drains."""

    forward: Passes
    backward: Passes


def passes(pipe: Pipeline) -> BothPasses:
    """Return the passes of a pipeline."""
    first, middle, last = pipe.first, pipe.middle, pipe.last
    p, sends = pipe.stages, pipe.stages * pipe.send

    def both(units: tuple[Seconds, Seconds, Seconds], extra: Seconds) -> Passes:
        outer, inner, end = units
        across = outer + (p - 2) * inner + end + sends
        elsewhere = p * largest(inner, end)
        return Passes(
            largest(across, p * outer, elsewhere),
            largest(across, p * outer + (p - 1) * extra, elsewhere) + extra,
        )

    return BothPasses(
        both((first.forward, middle.forward, last.forward), first.extra_forward),
        both((first.backward, middle.backward, last.backward), first.extra_backward),
    )


class _Chains:
    """The chains of one pipeline, and what they have in common."""

    def __init__(self, pipe: Pipeline) -> None:
        self.p, self.m, self.v, self.send = pipe[:4]
        self.groups = full_groups(self.m, self.p)
        self.first, self.middle, self.last = pipe.first, pipe.middle, pipe.last
        first, middle, last = self.first, self.middle, self.last
        inner, sends = self.p - 2, (self.p - 1) * self.send
        self.down = first.forward + inner * middle.forward + sends
        """Forwards of one micro-batch and chunk, up to the last stage …"""
        self.up = first.backward + inner * middle.backward + sends
        """… and backwards after it."""
        self.head = last.whole_forward + last.whole_backward
        self.gap = (self.v - 1) * self.p
        """Units between two bursts."""
        forward, backward = passes(pipe)
        self.forward_pass, self.backward_pass = forward.usual_s, backward.usual_s
        slow_sends = (self.v - 1) * largest(self.forward_pass, self.backward_pass)
        last_pair, first_pair = last.forward + last.backward, first.forward + first.backward
        middle_pair = middle.forward + middle.backward
        self.away_from_last = self._away(choose(self.p > 2, middle_pair, first_pair), slow_sends)
        self.away_from_first = self._away(choose(self.p > 2, middle_pair, last_pair), slow_sends)
        # All virtual stages but the last, forward, and all but the first, backward: pass by pass,
        # or the embedding's burst and then all on another stage.
        more = self.v - 2
        inner_forward = largest(middle.forward, last.forward)
        inner_backward = largest(middle.backward, last.backward)
        self.entry = self.down + largest(
            forward.outermost_s + more * self.forward_pass,
            self.p * first.whole_forward + (more * self.p + 1) * inner_forward - first.forward,
        )
        self.exit = self.up + largest(
            backward.outermost_s + more * self.backward_pass,
            self.p * first.whole_backward + (more * self.p + 1) * inner_backward - first.backward,
        )

    def _away(self, neighbour: Seconds, slow_sends: Seconds) -> Seconds:
        """Return the most that fits between two bursts elsewhere than on the stage that has them.

        On its neighbour, at the cost of a unit and two sends, or, with slow sends, on the way
        through one chunk after the other.
        """
        return largest((self.gap - 1) * neighbour + 2 * self.send, slow_sends)

    def longest(self) -> Seconds:
        return largest(
            self._over_last(),
            choose(self.p > 1, largest(self._over_first(), self._over_ends()), -inf),
            self._over_middle(),
            self._over_link(),
        )

    def _over_last(self) -> Seconds:
        """Return the chain that stays on the last stage, or near it between the bursts."""
        gap = largest(self.gap * (self.last.forward + self.last.backward), self.away_from_last)
        return self.entry + self.groups * self.p * self.head + (self.groups - 1) * gap + self.exit

    def _over_middle(self) -> Seconds:
        """Return the chain that stays next to the last stage, and comes and goes over it or not."""
        forward, backward = self.middle.forward, self.middle.backward
        over_last = self.head + self.send
        units = self.m * self.v - self.gap - 3
        chain = (
            self.entry
            + largest(over_last, 2 * forward - self.send)
            + units * (forward + backward)
            + largest(over_last, 2 * backward - self.send)
            + self.exit
        )
        return choose((self.p > 2) & (units > 0), chain, -inf)

    def _over_link(self) -> Seconds:
        """Return the chain of sends next to the last stage, one after the other on their stream."""
        sends = (2 * self.m * self.v - 3) * self.send
        return choose(self.p > 2, self.down + sends + self.up - self.middle.backward, -inf)

    def _over_ends(self) -> Seconds:
        """Return the chains of a single group: all of the first stage's forwards, or backwards."""
        p, first = self.p, self.first
        forward = p * first.whole_forward + (self.v - 1) * self.forward_pass
        backward = p * first.whole_backward + (self.v - 1) * self.backward_pass
        chain = self.head + largest(
            forward + self.down - first.forward + self.exit,
            backward + self.up - first.backward + self.entry,
        )
        return choose(self.groups == 1, chain, -inf)

    def _over_first(self) -> Seconds:
        """Return the chain that stays on the first stage, or near it between the bursts.

        The stage runs by itself from its first backward to its last forward. Before that, it fills
        up by itself, or waits for the first backward, or the chain is still on the last stage; the
        same, mirrored, after that.
        """
        p, v, first, last = self.p, self.v, self.first, self.last
        pair = first.forward + first.backward
        filled = self.gap * pair
        gap = largest(0.0, self.away_from_first - filled)
        alone = (self.m * v - (v + 1) * p + 1) * pair + (self.groups - 1) * gap
        bursts = (self.m - 2 * p + 1) * (first.extra_forward + first.extra_backward)
        before = largest(
            (2 * p - 1) * first.whole_forward + (v - 1) * self.forward_pass,
            self.entry + self.head + self.up - first.backward,
        )
        after = largest(
            (2 * p - 1) * first.whole_backward + (v - 1) * self.backward_pass,
            self.exit + self.head + self.down - first.forward,
        )
        burst = p * (last.extra_forward + last.extra_backward) - filled - gap
        last_pair = last.forward + last.backward
        pairs = (v * p - 2) * last_pair + self.send
        more = (self.gap + 1) * last_pair
        few = p * last_pair + self.send - pair + filled
        from_last = (self.entry + burst - first.extra_forward) + largest(
            pairs + last.forward + first.forward,
            more + self.up - first.backward,
            few + last.forward - first.backward,
        )
        to_last = (self.exit + burst - first.extra_backward) + largest(
            pairs + last.backward + first.backward,
            more + self.down - first.forward,
            few + last.backward - first.forward,
        )
        ends = largest(
            before + after,
            from_last + after,
            before + to_last,
            choose(self.groups > 2, from_last + to_last, -inf),
        )
        return choose(self.groups > 1, alone + bursts + ends, -inf)
