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

from shardcost.schedule.pipeline import Pipeline, groups
from shardcost.schedule.work import Seconds, chosen, largest, smallest


def zero_bubble(pipe: Pipeline, tails: tuple[Seconds, Seconds, Seconds] = (0, 0, 0)) -> Seconds:
    """Return the time of ZB-H1.

    Args:
        pipe: The pipeline; the first, middle and last stage may differ.
        tails: What the first, a middle and the last stage do after their last weight gradient.
    """
    return _Chains(pipe, tails).longest()


class _Chains:
    """The chains of one pipeline, and what they have in common."""

    def __init__(self, pipe: Pipeline, tails: tuple[Seconds, Seconds, Seconds]) -> None:
        self.p, self.m, self.send = pipe.stages, pipe.micro_batches, pipe.send
        first, middle, last = pipe.first, pipe.middle, pipe.last
        self.first_b, self.last_b, self.b = (
            first.whole_backward,
            last.whole_backward,
            middle.backward,
        )
        self.first_w, self.last_w, self.w = first.whole_weight, last.whole_weight, middle.weight
        self.first_tail, self.tail, self.last_tail = tails
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

    def longest(self) -> Seconds:
        return largest(
            self._over_last(),
            chosen(self.p > 1, self._over_first(), -inf),
            chosen((self.p > 1) & (self.steady > 0), self._over_both(), -inf),
            chosen((self.p > 2) & (self.early > 0), self._over_middle(), -inf),
        )

    def _over_last(self) -> Seconds:
        """Return the chain that works its turns off on the last stage or in loops that reach it."""
        pair = self.pair + 2 * self.send
        early = largest(
            self.early * self.last_pair,
            chosen(self.early > 0, self.last_pair + (self.early - 1) * pair, 0.0),
        )
        return self.down + early + self._looped(self.steady) + self._leaving()

    def _over_first(self) -> Seconds:
        """Return the chain that stays on the first stage once a backward has come back to it."""
        draining = self.early * (self.first_b + self.first_w) + self.first_w + self.first_tail
        return self.down + self.up + self.steady * self.first_turn + draining

    def _over_both(self) -> Seconds:
        """Return the chain that comes back to the first stage and ends on the last."""
        between = largest((self.steady - 1) * self.first_turn, self._looped(self.steady - 1))
        return self.down + self.up + self.first_w + between + self.down + self._leaving()

    def _over_middle(self) -> Seconds:
        """Return the chain over middle stages near the last one, or near the first."""
        return largest(*map(self._over, (1, largest(smallest(self.p - 2, self.early), 1))))

    def _over(self, height: Any) -> Seconds:
        """Return the chain that stays `height` stages above the last one."""
        rise, loops = self.b + self.send, 2 * self.send
        early, steady = self.early - height, self.steady
        missed = self.w - loops
        turns = (
            height * rise
            + (early + steady) * (self.pair + loops)
            - loops * groups(early, self.inner)
            + largest(steady * missed, groups(steady, self.inner) * missed)
            + height * self.b
        )
        staying = largest(0, self.p - self.m - height) * rise + (self.m - steady) * self.w
        rising = (
            largest(0, self.m + height - self.p - steady) * self.w
            + (self.p - 1 - height) * rise
            + (self.first_b - self.b + self.first_w)
        )
        return self.down + turns + largest(staying + self.tail, rising + self.first_tail)

    def _looped(self, turns: Any) -> Seconds:
        """Return the most that turns hold on the last stage, or in loops up from it."""
        above, loops = self.p - 1, 2 * self.send
        some = largest(above, 1)
        over_all = self.first_pair + self.last_pair + (self.p - 2) * self.pair + above * loops
        over_most = self.last_pair + (self.p - 2) * (self.pair + loops) + self.w
        return largest(
            turns * self.last_turn,
            turns // self.p * (over_all + self.first_w) + self._looped_once(turns % self.p),
            turns // some * chosen(self.p > 2, over_most, self.last_turn)
            + self._looped_once(turns % some),
        )

    def _looped_once(self, turns: Any) -> Seconds:
        """Return the most that a few turns hold, in one loop or on the last stage."""
        loop = self.last_pair + (turns - 1) * (self.pair + 2 * self.send) + self.w
        return largest(turns * self.last_turn, chosen(turns > 1, loop, 0.0))

    def _leaving(self) -> Seconds:
        """Return the most that follows the last stage's last backward, on it or further up."""
        rise = self.b + self.send
        few = largest(smallest(self.p - self.m, self.inner), 1)
        return largest(
            smallest(self.p, self.m) * self.last_w + self.last_tail,
            chosen(self.p > 1, self.up + self.first_w + self.first_tail, -inf),
            chosen(
                self.p > 2,
                largest(
                    few * rise + smallest(self.m, self.p - few) * self.w,
                    self.inner * rise + smallest(self.m, 2) * self.w,
                )
                + self.tail,
                -inf,
            ),
        )
