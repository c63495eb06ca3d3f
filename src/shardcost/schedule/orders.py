"""In which order a pipeline stage works: the lists that tell the schedules apart.

A schedule is data: for each stage the sequence of its forwards (F), backwards (B) and, where they
are apart, weight gradients (W), each of one micro-batch and model chunk. When they run follows
from the order and from who waits for whom.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

Op: TypeAlias = tuple[str, int, int]
"""Kind (F, B or W), model chunk, micro-batch."""


def order(
    schedule: str, stage: int, stages: int, micro_batches: int, virtual_stages: int
) -> list[Op]:
    """Return what a stage does, in order.

    >>> "".join(kind for kind, _, _ in order("1f1b", 1, 4, 4, 1))
    'FFFBFBBB'
    >>> "".join(kind for kind, _, _ in order("zero_bubble", 1, 4, 4, 1))
    'FFFBFBWBWBWW'
    """
    if schedule == "interleaved" and virtual_stages > 1:
        return _interleaved(stage, stages, micro_batches, virtual_stages)
    if schedule == "zero_bubble":
        return list(_zero_bubble(stage, stages, micro_batches))
    return _one_forward_one_backward(
        [("F", 0, each) for each in range(micro_batches)],
        [("B", 0, each) for each in range(micro_batches)],
        stages - 1 - stage,
    )


def _one_forward_one_backward(forwards: list[Op], backwards: list[Op], warm_up: int) -> list[Op]:
    """Return `warm_up` forwards, then one forward and one backward in turn, then the rest.

    Narayanan et al., PipeDream, 2019 (arXiv:1806.03377); with a flush at the end of each step,
    Narayanan et al., 2020 (arXiv:2006.09503).
    """
    warm_up = min(warm_up, len(forwards))
    done = forwards[:warm_up]
    for pair in zip(forwards[warm_up:], backwards, strict=False):
        done += pair
    return done + backwards[len(forwards) - warm_up :]


def _interleaved(stage: int, stages: int, micro_batches: int, virtual_stages: int) -> list[Op]:
    """Return the order of Narayanan et al., 2021 (arXiv:2104.04473), section 2.2.

    Groups of as many micro-batches as there are stages go through one chunk after the other.
    """
    groups = range(0, micro_batches, stages)
    forwards = [
        ("F", chunk, first + each)
        for first in groups
        for chunk in range(virtual_stages)
        for each in range(stages)
    ]
    backwards = [("B", virtual_stages - 1 - chunk, each) for _, chunk, each in forwards]
    warm_up = 2 * (stages - 1 - stage) + (virtual_stages - 1) * stages
    return _one_forward_one_backward(forwards, backwards, warm_up)


def _zero_bubble(stage: int, stages: int, micro_batches: int) -> Iterator[Op]:
    """Return the order ZB-H1 of Qi et al., 2023 (arXiv:2401.10241).

    As 1F1B, but the weight gradients lag by as many micro-batches as stages lie before this one,
    so that no stage keeps more alive than the first does under 1F1B.
    """
    warm_up = min(stages - 1 - stage, micro_batches)
    for each in range(warm_up):
        yield "F", 0, each
    for each in range(micro_batches):
        if each + warm_up < micro_batches:
            yield "F", 0, each + warm_up
        yield "B", 0, each
        if each >= stage:
            yield "W", 0, each - stage
    for each in range(max(0, micro_batches - stage), micro_batches):
        yield "W", 0, each
