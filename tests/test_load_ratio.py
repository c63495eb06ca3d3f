"""Splits of GPUs between prefill and decode: which there are, and which holds most."""

from __future__ import annotations

import pytest

from shardcost import Cluster, Layout, Model, Software
from shardcost.errors import BadValueError, UsageError
from shardcost.load.deployment import Pool
from shardcost.load.engine import Engine
from shardcost.load.ratio import best_ratio, splits_of
from shardcost.load.requests import Lengths, Requests
from shardcost.load.result import Limits


def pool(tp: int = 1, workers: int = 1, on: str = "h100_sxm") -> Pool:
    model, software = Model.named("llama3-8b"), Software.named("trtllm")
    return Pool(Engine(model, Cluster.named(on), Layout(tp=tp), software), workers)


def counts(
    prefill: Pool, decode: Pool, gpus: int, most: int | None = None
) -> list[tuple[int, int]]:
    return [
        (0 if each.prefill is None else each.prefill.workers, each.serving.workers)
        for each in splits_of(prefill, decode, gpus, most)
    ]


def test_every_split_uses_as_many_gpus_as_its_workers_can() -> None:
    assert counts(pool(), pool(), 4) == [(0, 4), (1, 3), (2, 2), (3, 1)]
    assert counts(pool(2), pool(4), 11) == [(0, 2), (1, 2), (2, 1), (3, 1)]
    assert all(each.gpus <= 11 for each in splits_of(pool(2), pool(4), 11))
    assert counts(pool(8), pool(8), 16) == [(0, 2), (1, 1)]


def test_of_many_splits_some_are_tried_with_the_ends_and_the_one_that_is_given() -> None:
    for own in (1, 7, 30, 63):
        tried = [first for first, _ in counts(pool(workers=own), pool(), 64, 6)]
        assert tried == sorted(set(tried))
        assert (len(tried), tried[:2], tried[-1]) == (7, [0, 1], 63)
        assert own in tried
    assert len(counts(pool(workers=9), pool(), 64, 1)) == 2


def test_gpus_that_cannot_be_divided_are_refused() -> None:
    with pytest.raises(BadValueError, match="at least the 6 of one worker of each kind"):
        splits_of(pool(2), pool(4), 5)
    requests = Requests(rate_per_s=1.0, count=10, prompt=Lengths(mean=64), output=Lengths(mean=8))
    with pytest.raises(UsageError, match="h200_sxm and h100_sxm have no GPUs"):
        best_ratio(pool(on="h200_sxm"), pool(), 2, requests)


def test_short_outputs_want_prefill_workers_and_short_prompts_decode_workers() -> None:
    def best(prompt: int, output: int, limits: Limits) -> tuple[int, int, str]:
        first, second = Lengths(mean=prompt), Lengths(mean=output)
        requests = Requests(rate_per_s=1.0, count=150, prompt=first, output=second)
        told: list[tuple[int, int]] = []
        found = best_ratio(
            pool(), pool(), 4, requests, limits=limits, count=150,
            progress=lambda done, total: told.append((done, total)),
        )  # fmt: skip
        assert told == [(1, 4), (2, 4), (3, 4), (4, 4)]
        assert all(split.gpus == 4 for split in found.splits)
        divided = max(found.splits[1:], key=lambda split: split.requests_per_s)
        assert found.best.requests_per_s >= divided.requests_per_s
        assert divided.requests_per_s_per_gpu == divided.requests_per_s / 4
        return divided.prefill_workers, divided.workers, found.splits[1].limit

    assert best(4096, 8, Limits(ttft_s=1.0)) == (3, 1, "TTFT")
    assert best(64, 512, Limits(tpot_s=0.012))[:2] == (1, 3)
