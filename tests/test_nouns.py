"""The four nouns: they check themselves, take arrays, and compare."""

from __future__ import annotations

import copy
import pickle
from dataclasses import FrozenInstanceError
from typing import Any

import numpy as np
import pytest

from shardcost import (
    BadTypeError,
    BadValueError,
    Cluster,
    Decode,
    Device,
    FormatError,
    Layout,
    MissingExtraError,
    Model,
    Network,
    Prefill,
    Tier,
    Train,
    UnknownNameError,
)
from shardcost.cluster import Source
from shardcost.errors import InfeasibleError
from shardcost.model import (
    Attention,
    Block,
    Experts,
    FeedForward,
)


def small_model(**changes: Any) -> Model:
    attention = Attention(heads=8, kv_heads=2, head_dim=16)
    block = Block(count=4, attention=attention, feed_forward=FeedForward(width=512, gated=True))
    values: dict[str, Any] = {
        "name": "m",
        "hidden_size": 128,
        "vocab_size": 1000,
        "blocks": [block],
    }
    return Model(**values | changes)


def small_device(**changes: Any) -> Device:
    values: dict[str, Any] = {
        "name": "d",
        "vendor": "v",
        "architecture": "a",
        "peak_flop_per_s": {"bf16": 1e15},
        "memory_bytes": 80 * 2**30,
        "memory_bytes_per_s": 3e12,
        "sms": 100,
    }
    return Device(**values | changes)


def small_cluster(kind: str = "nvswitch", gpus: int = 8, **changes: Any) -> Cluster:
    tier = Tier(name="t", kind=kind, gpus=gpus, bytes_per_s=420e9)
    values: dict[str, Any] = {
        "name": "c",
        "title": "C",
        "device": small_device(),
        "gpus_per_node": 8,
        "tiers": [tier],
    }
    return Cluster(**values | changes)


def test_parameters_are_counted_from_the_shape() -> None:
    # By hand: q and o 128 x 128, k and v 128 x 32, three 128 x 512, two norms; two tables; a norm.
    layer = 2 * 128 * 128 + 2 * 128 * 32 + 3 * 128 * 512 + 2 * 128
    assert small_model().parameters == 4 * layer + 2 * 1000 * 128 + 128
    assert small_model(tied_embeddings=True).parameters == 4 * layer + 1000 * 128 + 128
    assert small_model().active_parameters == small_model().parameters
    assert small_model().num_layers == 4


def test_active_parameters_follow_the_authors_convention() -> None:
    part = FeedForward(width=64, gated=True)
    block = Block(
        count=4,
        attention=Attention(heads=8, kv_heads=2, head_dim=16),
        feed_forward=Experts(count=16, top_k=2, expert=part, shared=part),
    )
    idle = 4 * 14 * 3 * 128 * 64
    for tables in (0, 1, 2):
        model = small_model(blocks=[block], active_embedding_tables=tables)
        assert model.parameters - model.active_parameters == idle + (2 - tables) * 1000 * 128


def test_parallel_blocks_need_one_allreduce() -> None:
    assert small_model().allreduces_per_layer == 2
    assert Model.named("gpt-neox-20b").allreduces_per_layer == 1
    assert Model.named("falcon-40b").allreduces_per_layer == 1


def test_cache_per_token() -> None:
    assert small_model().cache_elements_per_token == 4 * 2 * 2 * 16
    assert Model.named("deepseek-v3").cache_elements_per_token == 61 * (512 + 64)


def test_sizes_may_be_arrays() -> None:
    hidden = np.array([128, 256, 512])
    many = small_model(hidden_size=hidden).parameters
    one_by_one = [small_model(hidden_size=int(h)).parameters for h in hidden]
    assert np.asarray(many).tolist() == one_by_one
    layout = Layout(tp=np.array([1, 2, 4]), dp=np.array([[8], [16]]))
    assert np.asarray(layout.devices).tolist() == [[8, 16, 32], [16, 32, 64]]
    tokens = Train(global_batch=np.array([1, 2]), sequence_length=4096).tokens
    assert np.asarray(tokens).tolist() == [4096, 8192]


def test_a_mask_says_which_layouts_are_impossible() -> None:
    layouts = Layout(ep=np.array([1, 2, 3]), dp=4, virtual_stages=np.array([[1], [2]]))
    broken = {rule.text: where.tolist() for rule, _, where in layouts.broken_rules()}
    assert broken["ep must divide tp x cp x dp"] == [False, False, True]
    assert broken["virtual stages need pp above 1"] == [[False], [True]]
    with pytest.raises(InfeasibleError, match="ep must divide tp x cp x dp") as error:
        Layout(ep=3, dp=4)
    again = pickle.loads(pickle.dumps(error.value))
    assert again.reason == error.value.reason
    assert str(again) == str(error.value)


def test_workloads_count_their_tokens() -> None:
    assert Prefill(batch=4, prompt_tokens=1024).tokens == 4096
    assert Decode(batch=64, context_tokens=4096).tokens == 64
    assert [w.phase for w in (Train, Prefill, Decode)] == ["train", "prefill", "decode"]


def test_layouts_name_themselves() -> None:
    assert Layout(tp=8, pp=4, virtual_stages=2).short() == "tp8pp4vp2"
    assert Layout().short() == "tp1"


BAD: list[tuple[Any, dict[str, Any], type[Exception], str]] = [
    (Layout, {"tp": 0}, BadValueError, r"Layout\.tp must be a whole number of at least 1, got 0"),
    (Layout, {"tp": True}, BadTypeError, r"Layout\.tp"),
    (Layout, {"tp": 2.0}, BadTypeError, r"Layout\.tp"),
    (Layout, {"tp": np.array([1, 0])}, BadValueError, r"Layout\.tp .* every cell, got 0"),
    (Layout, {"tp": np.array([1.5])}, BadTypeError, r"Layout\.tp"),
    (Layout, {"sequence_parallel": 1}, BadTypeError, r"True or False, got 1"),
    (Layout, {"recompute": "ful"}, UnknownNameError, r"did you mean full"),
    (Layout, {"zero": 4}, BadValueError, "a ZeRO stage from 0 to 3"),
    (small_device, {"peak_flop_per_s": {"bf17": 1.0}}, UnknownNameError, "did you mean bf16"),
    (small_device, {"memory_bytes": 10**400}, BadValueError, "a finite number above 0"),
    (small_device, {"memory_bytes": "80"}, BadTypeError, "a finite number above 0"),
    (small_device, {"memory_bytes": np.array([0.0])}, BadValueError, "every cell, got 0"),
    (Layout, {"virtual_stages": 2}, BadValueError, r"virtual stages need pp above 1"),
    (Train, {"global_batch": 1, "sequence_length": -1}, BadValueError, r"Train\.sequence_length"),
    (Train, {"global_batch": 1, "sequence_length": 1, "dtype": "b16"}, UnknownNameError, "bf16"),
    (Decode, {"batch": 1, "context_tokens": None}, BadTypeError, r"Decode\.context_tokens"),
    (Attention, {"heads": 8, "kv_heads": 3, "head_dim": 1}, BadValueError, "a divisor of 8 heads"),
    (small_model, {"name": ""}, BadValueError, r"Model\.name"),
    (small_model, {"name": 1}, BadTypeError, r"Model\.name"),
    (small_model, {"blocks": []}, BadValueError, r"at least one Block"),
    (small_model, {"blocks": [1]}, BadTypeError, r"a tuple of Block"),
    (small_model, {"active_embedding_tables": 3}, BadValueError, "0, 1 or 2"),
    (small_cluster, {"device": None}, BadTypeError, "of class Device"),
    (small_cluster, {"sources": [1]}, BadTypeError, "a mapping"),
    (small_cluster, {"sources": {"a": "b"}}, BadTypeError, r"Cluster.sources\['a'\]"),
    (small_cluster, {"kind": "wormhole"}, UnknownNameError, "Tier.kind"),
    (
        Network,
        {"name": "n", "title": "N", "kind": "k", "nic_bytes_per_s": 0},
        BadValueError,
        "above 0",
    ),
    (
        Network,
        {"name": "n", "title": "N", "kind": "k", "nic_bytes_per_s": 1},
        BadValueError,
        "one None",
    ),
]


@pytest.mark.parametrize(("make", "values", "error", "message"), BAD)
def test_bad_values_are_named(
    make: Any, values: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        make(**values)


def test_experts_cannot_exceed_their_number() -> None:
    with pytest.raises(BadValueError, match="at most the 4 experts"):
        Experts(count=4, top_k=5, expert=FeedForward(width=8, gated=False))


def test_nouns_are_frozen_and_compare_by_value() -> None:
    one, same, other = Layout(tp=2), Layout(tp=np.int64(2)), Layout(tp=4)  # type: ignore[arg-type]
    assert one == same
    assert hash(one) == hash(same)
    assert one != other
    assert one != 2
    assert Layout(tp=np.array([1, 2])) == Layout(tp=np.array([1, 2]))
    assert Layout(tp=np.array([1, 2])) != Layout(tp=np.array([1, 4]))
    assert Layout(tp=np.array([1, 2])) != one
    assert hash(Cluster.named("h100")) == hash(Cluster.named("H100-SXM"))
    with pytest.raises(FrozenInstanceError):
        one.tp = 4  # type: ignore[misc]


def test_nouns_and_errors_travel() -> None:
    layout = Layout(tp=8)
    assert copy.deepcopy(layout) == layout
    assert pickle.loads(pickle.dumps(layout)) == layout
    errors = [
        BadValueError("a", 1, "2"),
        BadTypeError("a", 1, "2"),
        UnknownNameError("model", "lama", ["llama"], "hint"),
        FormatError("f", "broken"),
        MissingExtraError("a plot", "matplotlib", "plot"),
    ]
    for error in errors:
        again = pickle.loads(pickle.dumps(error))
        assert type(again) is type(error)
        assert str(again) == str(error)


@pytest.mark.parametrize(
    ("kind", "gpus", "expected"),
    [
        ("nvswitch", 2, 420e9),
        ("pcie", 8, 420e9),
        ("full_mesh", 2, 60e9),  # one of seven links
        ("full_mesh", 8, 420e9),
        ("cube_mesh", 2, 70e9),  # one of six links
        ("cube_mesh", 4, 280e9),
        ("cube_mesh", 5, 140e9),  # the fifth device has two links to the first four
        ("cube_mesh", 8, 420e9),
    ],
)
def test_links_that_a_group_inside_a_domain_can_use(kind: str, gpus: int, expected: float) -> None:
    assert small_cluster(kind).slowest_ring_link(gpus).bytes_per_s == pytest.approx(expected)


def test_groups_beyond_a_domain_use_the_network() -> None:
    slow = Cluster.named("h100_sxm", network="tcp").slowest_ring_link(16)
    assert slow.bytes_per_s == 12.5e9
    assert "tcp" in slow.name
    # 18 hosts of 4 GPUs share the ports of a rack: more than one GPU's links carry.
    rack = Cluster.named("gb200_nvl72", network="ib_1x400g_per_gpu").slowest_ring_link(144)
    assert rack.bytes_per_s == 900e9
    with pytest.raises(BadValueError, match="at most 8, one domain of h100_sxm"):
        Cluster.named("h100_sxm").slowest_ring_link(16)


def test_each_figure_can_be_asked_why() -> None:
    cluster = Cluster.named("h100_sxm")
    assert cluster.why("tiers.bytes_per_s").citation.startswith("NVIDIA H100")
    assert "both directions" in str(cluster.why("tiers.bytes_per_s"))
    assert str(Source("somebody")) == "somebody"
    with pytest.raises(UnknownNameError, match="tiers"):
        cluster.why("tiers.bytes")
    with pytest.raises(UnknownNameError, match="number format of"):
        cluster.device.peak("fp4")
