"""Failures and checkpoints in closed form: the expected time of a run that may fail.

Failures come at random, independently of the past, with mean time `mtbf_s` between them. A run
trains for `work_s`, then saves a checkpoint, for which it waits `save_s`, and so on. After a
failure it needs `restart_s`, in which it may fail again, and goes on from the last checkpoint. A
checkpoint that is written while training goes on counts `write_s` after it was taken. The time that
one such cycle is expected to take is then exactly::

    mtbf exp((restart + write) / mtbf) (exp((work + save) / mtbf) - 1)

Without `write` it is equation 20 of Daly (A higher order estimate of the optimum checkpoint
interval for restart dumps, Future Generation Computer Systems 22, 2006), who has the interval that
makes it least as a series, too; its first term is Young's (A first order approximation to the
optimum checkpoint interval, Communications of the ACM 17(9), 1974). A write in the background acts
like a longer restart: of the time in which a failure costs the whole last cycle, both are a part.

All functions take plain or traced numbers (`shardcost.traced`), in seconds.
"""

from __future__ import annotations

from math import inf
from typing import Any, Final

from shardcost.arrays import exp, expm1, sqrt

DALY: Final = "Daly 2006, Future Generation Computer Systems 22(3)"
_MOST: Final = 700.0
"""Above it, an exponential is no finite number."""


def young_interval_s(save_s: Any, mtbf_s: Any) -> Any:
    """Return the first-order optimum of the training between two checkpoints.

    >>> young_interval_s(50, 10_000)
    1000.0
    """
    return sqrt(2 * save_s * mtbf_s)


def daly_interval_s(save_s: Any, mtbf_s: Any) -> Any:
    """Return the optimum of higher order (Daly's equation 37).

    >>> round(daly_interval_s(50, 10_000))
    967
    """
    if save_s >= 2 * mtbf_s:
        return mtbf_s
    ratio = save_s / (2 * mtbf_s)
    return young_interval_s(save_s, mtbf_s) * (1 + sqrt(ratio) / 3 + ratio / 9) - save_s


def cycle_s(work_s: Any, save_s: Any, mtbf_s: Any, delay_s: Any) -> Any:
    """Return the expected time of training for `work_s` and a checkpoint, with all failures.

    Infinite where it would be beyond all numbers.

    >>> round(cycle_s(1000, 50, 10_000, 600), 1), cycle_s(1000, 50, inf, 600)
    (1175.6, 1050)

    Args:
        work_s: Training between two checkpoints.
        save_s: What a checkpoint keeps the run from training.
        mtbf_s: Mean time between failures of the run.
        delay_s: Restart after a failure, and writing of a checkpoint in the background.
    """
    if mtbf_s == inf:
        return work_s + save_s
    if work_s + save_s + delay_s > _MOST * mtbf_s:
        return inf
    return mtbf_s * exp(delay_s / mtbf_s) * expm1((work_s + save_s) / mtbf_s)


def restart_share(restart_s: Any, mtbf_s: Any) -> Any:
    """Return the share of all time that goes into restarts, those that fail again included."""
    return 0.0 if mtbf_s == inf else 1 - exp(-1 * restart_s / mtbf_s)
