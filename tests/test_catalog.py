"""The catalog: complete, consistent, sourced, and strict about what its files may say."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from stated import as_stated

from shardcost import (
    Cluster,
    FormatError,
    Model,
    Network,
    UnknownNameError,
    catalog,
    collective_time,
)
from shardcost.catalog import build
from shardcost.catalog.build import network_from
from shardcost.catalog.network_names import stated_network
from shardcost.errors import BadTypeError

MODELS = """gpt2-xl gpt3-175b megatron-22b megatron-530b megatron-1t llama2-7b llama2-13b llama2-70b
llama3-8b llama3-70b llama3-405b mistral-7b mistral-large mixtral-8x7b mixtral-8x22b qwen2.5-7b
qwen2.5-32b qwen2.5-72b qwen3-8b qwen3-32b qwen3-235b-a22b deepseek-v3 deepseek-v3.2 kimi-k2 glm-5
minimax-m2.5 gpt-oss-120b llama4-scout gpt-neox-20b falcon-40b kimi-k2-thinking kimi-linear-48b-a3b
qwen3-30b-a3b qwen3-coder-480b-a35b qwen3-next-80b-a3b qwen3.5-35b-a3b qwen3.5-397b-a17b gpt-oss-20b
glm-4.5 glm-4.5-air glm-4.6 minimax-m1 llama4-maverick ernie-4.5-300b-a47b hunyuan-a13b
longcat-flash nemotron-3-nano-30b-a3b nemotron-3-super nemotron-h-56b dbrx grok-1
falcon-h1-34b jamba-1.5-large granite-4.0-h-small dots.llm1 ling-1t step-3 phi-3.5-moe
olmoe-1b-7b gemma3-27b mistral-small-24b phi-4 command-a nemotron4-340b seed-oss-36b""".split()
CLUSTERS = """a100_sxm arc_b60 b200_sxm b300_sxm gb200_nvl72 gb300_nvl72 gh200_quad h100_sxm
h200_sxm l40s mi300x mi355x rtx4090 rtx_pro_6000 v100_cube v100_dgx2""".split()
KERNELS: tuple[catalog.Folder, ...] = ("gemm", "attention", "elementwise", "experts", "mla")
NETWORKS = """efa_1x100g efa_8x400g ib ib_1x400g_per_gpu ib_1x800g_per_gpu ib_8x100g ib_8x200g
ib_8x400g opa_4x100g roce_16x100g roce_8x400g slingshot_1x200g slingshot_4x200g tcp tcpx_4x200g
tcpxo_8x200g""".split()


def test_nothing_promised_is_missing() -> None:
    assert set(MODELS) <= set(catalog.names("models"))
    assert set(CLUSTERS) <= set(catalog.names("clusters"))
    assert set(NETWORKS) <= set(catalog.names("networks"))


def test_every_measured_system_is_here(evidence: Path) -> None:
    for file in sorted((evidence / "measured").glob("*.csv")):
        with file.open(newline="") as rows:
            for row in csv.DictReader(rows):
                if row.get("cluster"):
                    Cluster.named(row["cluster"], row.get("network") or None)


@pytest.mark.parametrize("name", catalog.names("models"))
def test_parameters_are_what_the_authors_state(name: str) -> None:
    stated = dict(catalog.contents("models"))[name]
    model = Model.named(name)
    assert model.parameters == pytest.approx(stated["parameters_stated_billion"] * 1e9, rel=0.02)
    if "active_parameters_stated_billion" in stated:
        assert model.active_parameters == as_stated(stated["active_parameters_stated_billion"])
    elif model.most_experts == 0:
        assert model.active_parameters == model.parameters


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("gpt2-xl", 1_557_611_200),
        ("llama2-7b", 6_738_415_616),
        ("llama2-70b", 68_976_648_192),
        ("llama3-8b", 8_030_261_248),
        ("llama3-70b", 70_553_706_496),
        ("llama3-405b", 405_853_388_800),
        ("mistral-7b", 7_241_732_096),
        ("mixtral-8x7b", 46_702_792_704),
        ("qwen2.5-7b", 7_615_616_512),
        ("gpt-neox-20b", 20_554_567_680),
    ],
)
def test_parameters_equal_the_released_weights(name: str, parameters: int) -> None:
    assert Model.named(name).parameters == parameters


@pytest.mark.parametrize("name", catalog.names("clusters"))
def test_clusters_are_plausible_and_sourced(name: str) -> None:
    cluster = Cluster.named(name)
    peaks = cluster.device.peak_flop_per_s
    assert peaks.get("bf16", peaks.get("fp16", 0)) >= peaks.get("tf32", 0)
    assert peaks.get("fp8", 1e99) >= peaks.get("bf16", 0)
    assert 2**33 < cluster.device.memory_bytes < 2**39
    assert 10e9 < cluster.tiers[0].bytes_per_s < 1e12
    assert cluster.tiers[0].bytes_per_s < cluster.device.memory_bytes_per_s
    for figure in ("device.memory_bytes", "tiers.bytes_per_s", "tiers.gpus"):
        assert cluster.why(figure).citation


@pytest.mark.parametrize("name", catalog.names("networks"))
def test_networks_are_plausible_and_sourced(name: str) -> None:
    network = Network.named(name)
    assert 10e9 < network.node_bytes_per_s(8) <= 800e9
    assert network.sources["nic_bytes_per_s"].citation


@pytest.mark.parametrize("shelf", ["models", "clusters", "networks"])
def test_names_and_aliases_do_not_collide(shelf: catalog.Folder) -> None:
    seen: dict[str, str] = {}
    for name, content in catalog.contents(shelf):
        assert content["name"] == name
        for each in [name, *content["aliases"], *content.get("hugging_face", [])]:
            folded = each.lower().replace("-", "").replace("_", "").replace(" ", "")
            assert seen.setdefault(folded, name) == name, each


@pytest.mark.parametrize("written", ["H100_SXM", "h100-sxm", "H100 sxm", "h100", "DGX-H100"])
def test_separators_case_and_aliases(written: str) -> None:
    assert Cluster.named(written).name == "h100_sxm"


def test_models_by_alias() -> None:
    assert Model.named("meta-llama/Meta-Llama-3-70B").name == "llama3-70b"
    assert Model.named("LLAMA_3.1_70B").name == "llama3-70b"


def test_a_wrong_name_suggests_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="did you mean llama3-70b"):
        Model.named("lama3-70b")
    with pytest.raises(UnknownNameError, match="`shardcost clusters` lists them"):
        Network.named("ib_8x401")
    with pytest.raises(UnknownNameError, match="known: "):
        Cluster.named("zzzzzzzz")
    with pytest.raises(BadTypeError, match="model must be a name"):
        Model.named(3)  # type: ignore[arg-type]


def content_of(shelf: catalog.Folder, name: str) -> dict[str, Any]:
    import copy

    return copy.deepcopy(dict(catalog.contents(shelf))[name])


def broken_cluster(path: str, value: Any) -> dict[str, Any]:
    content = content_of("clusters", "h100_sxm")
    *tables, key = path.split(".")
    table = content
    for each in tables:
        table = table[each]
    if value is ...:
        del table[key]
    else:
        table[key] = value
    return content


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("colour", "green", "unknown key colour"),
        ("device.memory_gb", 80, "unknown key memory_gb"),
        ("device.peak_dense_tflops.bf17", {"value": 1}, r"bf17 must be \{ value, source"),
        ("link.latency_us", 1, "unknown key latency_us"),
        ("link.kind", ..., "kind is missing"),
        ("device.memory_gib", {"value": 80}, r"must be \{ value, source, caveat \}"),
        ("device.memory_gib", {"value": 80, "source": "hearsay"}, "a source that"),
        ("device.memory_gib", {"value": -80, "source": "dgx_h100"}, "above 0"),
        ("gpus_per_node", {"value": 1.5, "source": "dgx_h100"}, "a whole number"),
        ("device", ..., "device is missing"),
    ],
)
def test_cluster_files_are_held_to_their_form(path: str, value: Any, message: str) -> None:
    with pytest.raises(FormatError, match=message) as caught:
        build.cluster_from(broken_cluster(path, value), "x.toml", None)
    assert str(caught.value).startswith("x.toml: ")


def test_network_files_are_held_to_their_form() -> None:
    content = content_of("networks", "ib_8x400g")
    with pytest.raises(FormatError, match="unknown key mtu"):
        build.network_from(content | {"mtu": 9000}, "x.toml")
    del content["nics_per_node"]
    with pytest.raises(FormatError, match="one number and one None"):
        build.network_from(content, "x.toml")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden": 1}, "unknown key hidden"),
        ({"hidden_size": "8192"}, "hidden_size must be"),
        ({"block": []}, "at least one Block"),
        ({"block": [{"count": 1}]}, "given attention, a feed-forward part or both"),
        ({"block": [{"attention": {"kind": "psychic"}}]}, "attention.kind must be one of"),
        ({"block": [{"feed_forward": {}, "experts": {}}]}, "either feed_forward or experts"),
        (
            {
                "block": [
                    {"attention": {"kind": "softmax"}, "feed_forward": {"width": 1, "gated": True}}
                ]
            },
            "is missing",
        ),
    ],
)
def test_model_files_are_held_to_their_form(change: dict[str, Any], message: str) -> None:
    with pytest.raises(FormatError, match=message):
        build.model_from(content_of("models", "llama3-8b") | change, "x.toml")


def test_every_fitted_constant_is_explained() -> None:
    text = (Path(__file__).parents[1] / "docs/catalog.md").read_text(encoding="utf-8")
    generic = re.compile(
        r"(ll|ll128|simple|p2p|p2p_ll|nvls|one_shot|two_shot|multicast)"
        r"_(base_us|hop_us|gb_per_s)"
    )

    def keys(table: Any) -> Iterator[str]:
        for key, value in table.items():
            if isinstance(value, dict):
                yield from keys(value)
            else:
                yield key

    used = {key for shelf in KERNELS for _, file in catalog.contents(shelf) for key in keys(file)}
    for _, file in catalog.contents("collectives"):
        used |= {key for library in file["library"] for key in library["constants"]}
    known = {key for key in used if f"`{key}`" in text or generic.fullmatch(key)}
    of_the_fit = {"source", "measured_with", "rows", "median_pct", "p90_pct", "system"}
    assert used - known - of_the_fit == set()


@pytest.mark.parametrize("shelf", KERNELS)
def test_every_fit_says_what_was_timed(shelf: catalog.Folder) -> None:
    for name, file in catalog.contents(shelf):
        for section in (table for table in file.values() if isinstance(table, dict)):
            assert section["fit"]["measured_with"], name


@pytest.mark.parametrize(
    ("name", "kind", "node_gbit", "called"),
    [
        ("roce_4x100g", "roce", 400, "roce_4x100g"),
        ("IB-8x800G", "infiniband", 6400, "ib_8x800g"),
        ("efa_32x100g", "efa", 3200, "efa_32x100g"),
        ("opa_2x100g", "omnipath", 200, "opa_2x100g"),
        ("roce_2x200g_per_gpu", "roce", 3200, "roce_2x200g_per_gpu"),
        ("ndr_per_gpu", "infiniband", 3200, "ib_1x400g_per_gpu"),
    ],
)
def test_a_name_states_a_network(name: str, kind: str, node_gbit: int, called: str) -> None:
    network = Network.named(name)
    assert (network.kind, network.name) == (kind, called)
    assert network.node_bytes_per_s(8) == node_gbit / 8 * 1e9
    assert Cluster.named("h100_sxm", name).network == network


def test_a_name_states_what_its_preset_does() -> None:
    for name in catalog.names("networks"):
        content = stated_network(name)
        if content is not None:
            stated, preset = network_from(content, name), Network.named(name)
            for field in ("name", "kind", "nic_bytes_per_s", "nics_per_node", "nics_per_gpu"):
                assert getattr(stated, field) == getattr(preset, field), name


@pytest.mark.parametrize("name", ["roce_0x100g", "roce_8x400", "wifi_1x1g", "ib_8x400gb", "8x400g"])
def test_names_that_state_no_network_are_told_how_one_does(name: str) -> None:
    with pytest.raises(UnknownNameError, match="KIND_PORTSxRATEg") as caught:
        Network.named(name)
    assert "\n" not in str(caught.value)


def test_a_stated_network_inherits_from_its_kind_and_says_so() -> None:
    result = collective_time("all_reduce", 2**20, "h100_sxm", 16, network="roce_4x100g")
    assert any("network roce_4x100g; constants inherited from roce" in n for n in result.notes)


ASSUMED = {
    "tpu_v4": ["device.host_link_bytes_per_s"],
    "tpu_v5p": ["device.host_link_bytes_per_s", "device.peak_flop_per_s.int8"],
    "tpu7x": ["device.sms", "tiers.shape"],
    "l40s_peers": ["tiers.peer_access", "tiers.peer_gpus"],
    "mi250": ["tiers.bytes_per_s"],
    "rtx3090": ["gpus_per_node", "tiers.gpus", "tiers.peer_access"],
    "w7900": ["tiers.peer_access"],
}


@pytest.mark.parametrize("name", ASSUMED)
def test_what_is_assumed_cites_no_vendor(name: str) -> None:
    sources = Cluster.named(name).sources
    assert all(sources[path].citation.startswith("assumed: ") for path in ASSUMED[name])


def test_no_caveat_takes_back_a_citation() -> None:
    """A figure that is assumed as a whole has that as its source, not as its caveat."""
    for name in catalog.names("clusters"):
        for path, source in Cluster.named(name).sources.items():
            outright = source.caveat.startswith("assumed") or source.caveat.endswith(": assumed")
            assert not outright or source.citation.startswith("assumed: "), (name, path)
