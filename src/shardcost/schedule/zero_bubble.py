"""ZB-H1: how long it takes, as the longest chain of operations that wait for each other.

Qi et al., Zero bubble pipeline parallelism, 2023 (arXiv:2401.10241) split the backward: what the
stage before waits for is computed at once, the weight gradients later, where the stage would wait
anyway. Turns are those of `shardcost.schedule.one_f_one_b`; each ends with a weight gradient, but
for the first ``p - 1`` of them, and after the last backward only weight gradients are left. So

- a loop over n stages contains one weight gradient where staying has n: asynchronous sends are
  hidden as long as two of them take less than a weight gradient;
- equal stages take ``m (f + b + w) + (p - 1) max(f + b - w, f, b)``, and sends on top.
"""

from __future__ import annotations

from math import inf
from typing import Any

from shardcost.arrays import choose, largest, smallest
from shardcost.records import NamedTuple
from shardcost.schedule.pipeline import Pipeline, full_groups, groups
from shardcost.schedule.work import Seconds


class StageEnds(NamedTuple):
    """When the first, the slowest middle and the last stage have computed everything.

    A stage that does not exist has ended before the beginning, at -inf.
    """

    first: Seconds
    middle: Seconds
    last: Seconds


def zero_bubble_ends(pipe: Pipeline) -> StageEnds:
    """Return when the stages end under ZB-H1; under 1F1B it is always the first that ends last."""
    return _Chains(pipe).ends()


class _Chains:
    """The chains of one pipeline, and what they have in common."""

    def __init__(self, pipe: Pipeline) -> None:
        self.p, self.m, self.send = pipe.stages, pipe.micro_batches, pipe.send
        first, middle, last = pipe.first, pipe.middle, pipe.last
        self.first_b, self.last_b = first.whole_backward, last.whole_backward
        self.b = middle.backward
        self.first_w, self.last_w, self.w = first.whole_weight, last.whole_weight, middle.weight
        # One forward and one backward; with a weight gradient, a whole turn.
        self.first_pair = first.whole_forward + self.first_b
        self.last_pair = last.whole_forward + self.last_b
        self.pair = middle.forward + self.b
        self.first_turn = self.first_pair + self.first_w
        self.last_turn = self.last_pair + self.last_w
        self.inner = largest(self.p - 2, 1)
        self.early = smallest(self.p, self.m) - 1
        """Turns after the first without weight gradients …"""
        self.steady = largest(self.m - self.p, 0)
        """… and such with forward, backward and weight gradient."""
        sends = (self.p - 1) * self.send
        self.down = (
            first.whole_forward + last.whole_forward + (self.p - 2) * middle.forward + sends
        ) + self.last_b
        """All forwards of one micro-batch, and its first backward."""
        self.up = self.first_b + (self.p - 2) * self.b + sends
        """The rest of the backwards."""

    def ends(self) -> StageEnds:
        bottom = largest(
            self._over_last(),
            choose((self.p > 1) & (self.steady > 0), self._over_both(), -inf),
        )
        staying, rising = self._over_middle()
        first = largest(bottom + self.up + self.first_w, self._over_first(), rising)
        return StageEnds(
            first=choose(self.p > 1, first, -inf),
            middle=choose(self.p > 2, largest(bottom + self._part_of_the_way(), staying), -inf),
            last=bottom + smallest(self.p, self.m) * self.last_w,
        )

    def _over_last(self) -> Seconds:
        """Return the chain over the last stage or loops that reach it, to its last backward."""
        pair = self.pair + 2 * self.send
        early = largest(
            self.early * self.last_pair,
            choose(self.early > 0, self.last_pair + (self.early - 1) * pair, 0.0),
        )
        return self.down + early + self._looped(self.steady)

    def _over_both(self) -> Seconds:
        """Return the chain that is back on the first stage before it goes where that one goes."""
        between = largest((self.steady - 1) * self.first_turn, self._looped(self.steady - 1))
        return self.down + self.up + self.first_w + between + self.down

    def _part_of_the_way(self) -> Seconds:
        """Return the most that follows the last stage's last backward and ends further up."""
        rise = self.b + self.send
        few = largest(smallest(self.p - self.m, self.inner), 1)
        return largest(
            few * rise + smallest(self.m, self.p - few) * self.w,
            self.inner * rise + smallest(self.m, 2) * self.w,
        )

    def _over_first(self) -> Seconds:
        """Return the chain that stays on the first stage once a backward has come back to it."""
        draining = self.early * (self.first_b + self.first_w) + self.first_w
        return self.down + self.up + self.steady * self.first_turn + draining

    def _over_middle(self) -> tuple[Seconds, Seconds]:
        """Return the chains over middle stages, near the last or near the first.

        One ends there, the other on the first stage.
        """
        low_staying, low_rising = self._over(1)
        high_staying, high_rising = self._over(largest(smallest(self.p - 2, self.early), 1))
        top_staying, top_rising = self._over_top()
        exists = (self.p > 2) & (self.early > 0)
        return (
            choose(exists, largest(low_staying, high_staying, top_staying), -inf),
            choose(exists, largest(low_rising, high_rising, top_rising), -inf),
        )

    def _over_top(self) -> tuple[Seconds, Seconds]:
        """Return the chains over the second stage that reach it with its first weight gradient.

        Those count when there are fewer micro-batches than stages.
        """
        chain = (
            self.down
            + choose(self.m > 2, largest(self.pair, self.last_pair), self.last_pair)
            + (self.p - 2) * (self.b + self.send)
            + (self.m - 2) * (self.b + self.w)
        )
        staying, rising = 2 * self.w, self.send + self.first_b + self.first_w
        few = self.m < self.p
        return choose(few, chain + staying, -inf), choose(few, chain + rising, -inf)

    def _over(self, height: Any) -> tuple[Seconds, Seconds]:
        """Return the chains that stay `height` stages above the last one, and end there or not."""
        rise, loops = self.b + self.send, 2 * self.send
        early, steady = self.early - height, self.steady
        missed = self.w - loops
        turns = (
            self.down
            + height * (rise + self.b)
            + (early + steady) * (self.pair + loops)
            - loops * groups(early, self.inner)
            + largest(steady * missed, groups(steady, self.inner) * missed)
        )
        staying = largest(0, self.p - self.m - height) * rise + (self.m - steady) * self.w
        rising = (
            largest(0, self.m + height - self.p - steady) * self.w
            + (self.p - 1 - height) * rise
            + (self.first_b - self.b + self.first_w)
        )
        return turns + staying, turns + rising

    def _looped(self, turns: Any) -> Seconds:
        """Return the most that turns hold on the last stage, or in loops up from it."""
        above, loops = self.p - 1, 2 * self.send
        some = largest(above, 1)
        over_all = self.first_pair + self.last_pair + (self.p - 2) * self.pair + above * loops
        over_most = self.last_pair + (self.p - 2) * (self.pair + loops) + self.w
        whole, most = full_groups(turns, self.p), full_groups(turns, some)
        return largest(
            turns * self.last_turn,
            whole * (over_all + self.first_w) + self._looped_once(turns - whole * self.p),
            most * choose(self.p > 2, over_most, self.last_turn)
            + self._looped_once(turns - most * some),
        )

    def _looped_once(self, turns: Any) -> Seconds:
        """Return the most that a few turns hold, in one loop or on the last stage."""
        loop = self.last_pair + (turns - 1) * (self.pair + 2 * self.send) + self.w
        return largest(turns * self.last_turn, choose(turns > 1, loop, 0.0))
