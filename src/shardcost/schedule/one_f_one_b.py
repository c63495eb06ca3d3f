"""1F1B: how long it takes, as the longest chain of operations that wait for each other.

To see the chains, number the turns of a stage: in turn k it runs forward k and then the backward
that the order puts behind it. Under 1F1B stage s is ``p - 1 - s`` forwards ahead, so

- a forward hands on to the next stage in the same turn,
- a backward hands on to the stage before it in the next turn,
- a stage goes on from one turn to the next by itself.

So a chain runs down all stages in turn 0 and, from the last micro-batch on, up again; the ``m - 1``
turns between are spent in loops. A loop over n neighbouring stages takes n turns and contains each
of their forwards and backwards once, and ``2 (n - 1)`` sends. Staying on a stage is the loop n = 1:
the slowest stage sets the pace. But with equal stages the longest loops win by their sends, and
1F1B pays almost two sends per micro-batch even though they are asynchronous.
"""

from __future__ import annotations

from math import inf
from typing import Any

from shardcost.arrays import choose, largest, smallest
from shardcost.schedule.pipeline import Pipeline, full_groups, groups
from shardcost.schedule.work import Seconds


def one_forward_one_backward(pipe: Pipeline) -> Seconds:
    """Return the time of 1F1B with a flush (Narayanan et al., 2020, arXiv:2006.09503).

    Equal stages take ``(m + p - 1)(f + b) + 2 c (m + p - 2 - ceil((m - 1)/p))`` with sends of c.
    The ``turns`` between are filled with loops over all stages, over all but the first, or over
    the inner ones, as few as cover the turns, or with the slowest stage alone. ``loop`` values
    count what a loop has more than turns of middle stages with two sends each.
    """
    p, m = pipe.stages, pipe.micro_batches
    first_f, first_b = pipe.first.whole_forward, pipe.first.whole_backward
    middle_f, middle_b = pipe.middle.forward, pipe.middle.backward
    first, middle = first_f + first_b, middle_f + middle_b
    last = pipe.last.whole_forward + pipe.last.whole_backward
    send = 2 * pipe.send
    turn = middle + send
    once = first + last + (p - 2) * middle + (p - 1) * send
    turns = m - 1
    all_loop = first + last - 2 * middle - send
    last_loop, first_loop = last - turn, first - turn
    most, inner = largest(p - 1, 1), largest(p - 2, 1)
    whole = full_groups(turns, p)
    rest = turns - whole * p
    some = smallest(rest, 1)
    traded = smallest(whole, most - rest)
    gain = largest(
        turns * last_loop,
        groups(turns, most) * last_loop,
        whole * all_loop + largest(rest * last_loop, some * last_loop),
        # Loops without the first stage, as far as they fit into turns that are left over.
        (whole - some * traded) * all_loop + some * (1 + traded) * last_loop,
        choose(turns >= most, last_loop - send * groups(turns - most, inner), -inf),
        choose(
            turns >= p,
            _after_all(turns - p, all_loop, first_loop, last_loop, send, most, inner),
            -inf,
        ),
        choose(
            turns >= p,
            whole * all_loop
            + largest(
                rest * first_loop, some * first_loop, choose(rest <= inner, -some * send, -inf)
            ),
            -inf,
        ),
    )
    # At the start and end a stage has turns without backward or forward. A chain that misses the
    # last stage, or stays on the first, uses them.
    half = largest(first_f, first_b, middle_f, middle_b)
    missing = largest(
        -send * groups(turns - 1, inner),
        choose(
            turns >= p,
            largest(first_loop * groups(turns - 1, most), first_loop * (turns - p + 1)),
            -inf,
        ),
        choose(turns >= p, first_loop - send * groups(turns - p, inner), -inf),
    )
    staying = largest(m - p, 0) * first + smallest(most, turns) * largest(first_f, first_b)
    longest = largest(
        turns * turn + gain,
        choose((turns >= 1) & (p > 2), (turns - 1) * turn + half + missing, -inf),
        choose(p > 1, staying, -inf),
    )
    return once + longest


def _after_all(
    turns: Any,
    all_loop: Seconds,
    first_loop: Seconds,
    last_loop: Seconds,
    send: Seconds,
    most: Any,
    inner: Any,
) -> Seconds:
    """Return the gain of one loop over all stages, and then others that need it to get there."""
    return all_loop + largest(
        turns * first_loop,
        turns * last_loop,
        groups(turns, most) * first_loop,
        -send * groups(turns, inner),
    )
