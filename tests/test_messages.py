"""A step's messages: they add up to the estimate's communication, group by group."""

from __future__ import annotations

import json
from collections import defaultdict

import numpy as np
import pytest
from cases import DECODE, estimated

from shardcost import Estimate, Layout, estimate
from shardcost.collectives.library_time import collective_time
from shardcost.errors import BadTypeError
from shardcost.estimate.messages import messages
from shardcost.report.estimate_data import messages_as_data

MESSAGES = [
    "decode",
    "decode, vllm",
    "decode, tokenweave",
    "decode, experts",
    "prefill, stages",
    "train",
    "train, one stage",
    "train, interleaved",
    "train, ZeRO 3 and contexts",
    "train, copies of shards",
    "train, experts in stages",
    "train, recomputed",
]


@pytest.fixture(params=MESSAGES)
def found(request: pytest.FixtureRequest) -> Estimate:
    """Return the estimate of each case."""
    return estimated(request.param)


def test_messages_add_up_to_the_communication_of_each_group(found: Estimate) -> None:
    sums: dict[str, float] = defaultdict(float)
    for each in messages(found):
        assert each.total_s == each.count * each.time_s
        sums[each.group] += each.total_s
    for group, seconds in found.comm_s.items():
        assert sums.pop(group, 0.0) == pytest.approx(seconds, rel=1e-12)
    assert not sums


def test_messages_are_different_ones_the_heaviest_first(found: Estimate) -> None:
    listed = messages(found)
    totals = [each.total_s for each in listed]
    assert totals == sorted(totals, reverse=True)
    assert len({(m.name, m.group, m.collective, m.size_bytes, m.ranks) for m in listed}) == len(
        listed
    )
    assert all(each.ranks > 1 and each.count > 0 and each.time_s > 0 for each in listed)


def test_one_message_is_what_the_command_on_collectives_predicts() -> None:
    found = estimate("llama3-70b", "h100_sxm", Layout(tp=8), DECODE)
    first = messages(found)[0]
    asked = collective_time(
        first.collective, first.size_bytes, "h100_sxm", first.ranks, library=first.library
    )
    assert first.size_bytes == 64 * 8192 * 2  # sequences x hidden x bf16
    assert first.time_s == pytest.approx(asked.time_s)
    assert (first.algorithm, first.protocol) == (asked.algorithm, asked.protocol)


def test_counts_are_those_of_the_layers() -> None:
    listed = messages(estimate("llama3-70b", "h100_sxm", Layout(tp=8), DECODE))
    by_name = {each.name: each.count for each in listed}
    assert by_name["all-reduce (attn out)"] == by_name["all-reduce (MLP down)"] == 80
    assert by_name["all-gather (logits)"] == 1


def test_multimem_is_named_as_what_runs() -> None:
    found = estimate("llama3-70b", "h100_sxm", Layout(tp=8), DECODE, software="tokenweave")
    listed = [each for each in messages(found) if each.collective == "all_reduce"]
    assert {each.library for each in listed} == {"multimem"}


def test_one_device_sends_nothing() -> None:
    assert messages(estimate("llama3-8b", "h100_sxm", Layout(), DECODE)) == ()


def test_arrays_of_layouts_are_refused() -> None:
    many = estimate("llama3-70b", "h100_sxm", Layout(tp=np.array([4, 8])), DECODE)
    with pytest.raises(BadTypeError, match="one layout, not an array"):
        messages(many)


def test_the_data_is_plain(found: Estimate) -> None:
    data = messages_as_data(found)
    assert json.loads(json.dumps(data, allow_nan=False)) == data
    assert set(data["messages"][0]) >= {
        *("name", "group", "collective", "size_bytes", "ranks", "nodes", "count"),
        *("time_s", "algorithm", "protocol", "library"),
    }
