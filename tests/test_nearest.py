"""The nearest layout that runs does run, keeps what was changed last, and says what it changes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardcost import Cluster, Decode, Layout, Model, Train, estimate
from shardcost.catalog import names
from shardcost.search.nearest import nearest
from shardcost.workload import Workload

TRAIN = Train(global_batch=64, sequence_length=4096)
DECODE = Decode(batch=64, context_tokens=4096)


@pytest.mark.parametrize(
    ("model", "wanted", "gpus", "kept", "words"),
    [
        ("llama3-70b", {"tp": 8}, 4, ["gpus"], "tp4"),
        ("llama3-70b", {"tp": 8, "dp": 1}, 12, ["gpus"], "tp4pp3"),
        ("llama3-70b", {"tp": 8}, 2048, ["gpus"], "tp8pp4dp64, ib_8x400g"),
        ("llama3-70b", {"tp": 8, "pp": 2}, 8, ["pp"], "tp4pp2"),
        ("llama3-70b", {"tp": 16}, 8, ["tp"], "16 GPUs, tp16, ib_8x400g"),
        ("llama3-70b", {"tp": 3}, 6, [], "tp2pp3"),
        ("mixtral-8x7b", {"tp": 8, "ep": 8}, 2, ["gpus"], "tp2ep2"),
    ],
)
def test_degrees_give_way_to_what_was_changed(
    model: str, wanted: dict[str, Any], gpus: int, kept: list[str], words: str
) -> None:
    cluster = Cluster.named("h100_sxm")
    found = nearest(Model.named(model), cluster, wanted, gpus, DECODE, kept=kept)
    assert found is not None
    assert found.words(gpus) == words
    assert estimate(model, Cluster.named("h100_sxm", "ib_8x400g"), found.layout, DECODE).time_s > 0


@pytest.mark.parametrize(
    ("model", "on", "words"),
    [
        ("llama3-70b", "h100_sxm", "32 GPUs, tp8pp4, ib_8x400g"),
        ("llama3-70b", "mi300x", ""),
        ("deepseek-v3", "h800_sxm", "256 GPUs, tp8ep256dp32, ZeRO 3, ib_8x400g"),
    ],
)
def test_what_must_fit_does(model: str, on: str, words: str) -> None:
    found = nearest(Model.named(model), Cluster.named(on), {"tp": 8}, 8, TRAIN, fits=True)
    assert found is not None
    assert found.words(8) == words
    cluster = Cluster.named(on, found.network or None)
    assert estimate(model, cluster, found.layout, TRAIN).memory.fits()


def test_every_machine_has_a_usual_network_of_the_catalog() -> None:
    for name in names("clusters"):
        usual = Cluster.named(name).usual_network
        assert usual in names("networks"), name


def test_there_is_none_without_a_network_or_for_a_batch_that_no_layout_divides() -> None:
    model, cluster = Model.named("llama3-70b"), Cluster.named("h100_sxm")
    alone = replace(cluster, usual_network=None)
    assert nearest(model, alone, {"tp": 16}, 16, DECODE, kept=["tp"]) is None
    assert nearest(model, cluster, {"tp": 8}, 9973, DECODE, kept=["gpus"]) is None


@settings(max_examples=60, deadline=None)
@given(
    wanted=st.fixed_dictionaries(
        {name: st.sampled_from([1, 2, 3, 4, 8]) for name in ("tp", "cp", "pp", "ep")}
    ),
    gpus=st.integers(1, 96),
    kept=st.sampled_from([["gpus"], ["tp"], ["pp"], []]),
    work=st.sampled_from([TRAIN, DECODE]),
)
def test_what_is_found_runs_and_keeps_what_it_must(
    wanted: dict[str, int], gpus: int, kept: list[str], work: Workload
) -> None:
    cluster = Cluster.named("h100_sxm")
    found = nearest(Model.named("mixtral-8x7b"), cluster, wanted, gpus, work, kept=kept)
    if found is None:
        return
    joined = Cluster.named("h100_sxm", found.network or None)
    assert estimate("mixtral-8x7b", joined, found.layout, work).time_s > 0
    for name in kept:
        now = found.layout.devices if name == "gpus" else getattr(found.layout, name)
        assert now == (gpus if name == "gpus" else wanted[name])
    fields = {**wanted, **found.patch}
    assert Layout(**{n: fields[n] for n in wanted}, dp=found.layout.dp) == found.layout
