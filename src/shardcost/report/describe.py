"""Models, clusters and networks shown: as plain data for JSON and as text for a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

from shardcost import catalog
from shardcost.cluster import Cluster, Network, Source
from shardcost.machine import Machine
from shardcost.machine.provenance import provenance_of
from shardcost.model import (
    AnyAttention,
    Attention,
    Block,
    Experts,
    LatentAttention,
    Model,
    StateSpace,
)
from shardcost.report.text import heading, paragraph, paragraphs, table
from shardcost.units import format_bytes, format_count, format_flops, format_rate


def as_data(noun: Any) -> Any:
    """Return a noun as plain data: its fields, those of the nouns inside it, and so on."""
    if is_dataclass(noun):
        named = {"kind": noun.kind} if hasattr(noun, "kind") else {}
        return named | {each.name: as_data(getattr(noun, each.name)) for each in fields(noun)}
    if isinstance(noun, Source):
        return noun._asdict()
    if isinstance(noun, tuple):
        return [as_data(each) for each in noun]
    return {k: as_data(v) for k, v in noun.items()} if isinstance(noun, Mapping) else noun


def attributes(noun: Any, names: str) -> dict[str, Any]:
    """Return attributes by name; ``key=attribute`` where the key is another.

    >>> attributes(1 + 2j, "real imaginary=imag")
    {'real': 1.0, 'imaginary': 2.0}
    """
    pairs = (name.partition("=") for name in names.split())
    return {key: getattr(noun, attribute or key) for key, _, attribute in pairs}


def plain(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return data with NumPy's numbers turned into Python's, all the way down."""
    return {str(key): _plain(value) for key, value in data.items()}


def number(value: Any) -> int | float:
    """Return a whole number as int."""
    return int(value) if float(value).is_integer() else float(value)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return plain(value)
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return value.item() if hasattr(value, "item") else value


def model_as_data(model: Model) -> dict[str, Any]:
    """Return a model as plain data, with what is counted from its shape."""
    return {
        **as_data(model),
        **attributes(model, "num_layers parameters active_parameters allreduces_per_layer"),
        **attributes(model, "cache_elements_per_token mtp_parameters"),
        "hugging_face": _ids(model),
    }


def model_as_text(model: Model) -> str:
    """Return a model for a terminal: the counts, then each kind of layer."""
    tied = f"{'tied' if model.tied_embeddings else 'untied'} embedding and head"
    parallel = "; attention and MLP in parallel" if model.allreduces_per_layer == 1 else ""
    split = f"tensor parallel{parallel}"
    active = "every weight"
    if model.active_parameters != model.parameters:
        tables = ("neither embedding table", "the output head", "both embedding tables")
        active = f"by its authors' count, with {tables[model.active_embedding_tables]}"
    parts = {
        "experts": model.expert_dtype,
        "attention": model.attention_dtype,
        "KV cache": model.cache_dtype,
    }
    others = (f"{part} {dtype}" for part, dtype in parts.items() if dtype is not None)
    counts = [
        ("parameters", format_count(model.parameters), f"{model.parameters:,}, {tied}"),
        ("active per token", format_count(model.active_parameters), active),
        ("layers", f"{model.num_layers}", ""),
        ("hidden size", f"{model.hidden_size:,}", "elements"),
        ("vocabulary", f"{model.vocab_size:,}", "tokens"),
        ("weights", model.weight_dtype, ", ".join(("dtype", *others))),
        ("context", f"{model.context_tokens:,}" if model.context_tokens else "-", "tokens"),
        ("KV cache", f"{model.cache_elements_per_token:,}", "elements per token, all layers"),
        ("all-reduces per layer", f"{model.allreduces_per_layer}", f"forward, {split}"),
    ]
    layers = [
        (
            f"{block.count}",
            " + ".join(map(_attention, block.mixers)) or "-",
            _feed_forward(block),
        )
        for block in model.blocks
    ]
    ids = _ids(model)
    remarks = [
        *(f"Note: {caveat}" for caveat in model.caveats),
        *([f"On Hugging Face: {', '.join(ids)}"] if ids else []),
        f"Source: {model.source}",
    ]
    return "\n\n".join(
        [
            heading(model.name),
            table(("what", "value", "meaning"), counts, right="1"),
            table(("layers", "attention", "feed-forward"), layers, right="0"),
            paragraphs(remarks),
        ]
    )


def _ids(model: Model) -> list[str]:
    """Return a model's ids on Hugging Face, where it is one of the catalog."""
    return catalog.hugging_face(model.name) if model.name in catalog.names("models") else []


def cluster_as_data(cluster: Cluster) -> dict[str, Any]:
    """Return a cluster as plain data, with whose constants hold on it."""
    return {**as_data(cluster), "provenance": provenance_data(cluster)}


def provenance_data(cluster: Cluster | Machine) -> list[dict[str, Any]]:
    """Return what of a machine is measured, inherited or assumed, as plain data."""
    return [each._asdict() for each in provenance_of(cluster)]


def cluster_as_text(cluster: Cluster) -> str:
    """Return a cluster for a terminal: each figure with its source, then whose constants hold."""
    device, tier = cluster.device, cluster.tiers[0]
    figures = [
        ("GPUs per node", f"{cluster.gpus_per_node}", "gpus_per_node"),
        ("memory", format_bytes(device.memory_bytes), "device.memory_bytes"),
        ("memory bandwidth", format_rate(device.memory_bytes_per_s), "device.memory_bytes_per_s"),
        ("CUs" if device.vendor == "amd" else "SMs", f"{device.sms}", "device.sms"),
        *(
            (f"{dtype} dense", format_flops(peak), f"device.peak_flop_per_s.{dtype}")
            for dtype, peak in device.peak_flop_per_s.items()
        ),
        (f"{tier.kind} domain", f"{tier.gpus} GPUs", "tiers.gpus"),
        ("link, per GPU, one way", format_rate(tier.bytes_per_s), "tiers.bytes_per_s"),
    ]
    if device.boost_clock_hz is not None:
        clock = f"{device.boost_clock_hz / 1e6:,.0f} MHz"
        figures.append(("boost clock", clock, "device.boost_clock_hz"))
    if device.l2_cache_bytes is not None:
        figures.append(("L2 cache", format_bytes(device.l2_cache_bytes), "device.l2_cache_bytes"))
    if device.power_w is not None:
        figures.append(("power", f"{device.power_w:g} W", "device.power_w"))
    if device.host_link_bytes_per_s is not None:
        rate = format_rate(device.host_link_bytes_per_s)
        figures.append(("host link, one way", rate, "device.host_link_bytes_per_s"))
    rows = [(label, value, cluster.sources.get(path)) for label, value, path in figures]
    if cluster.network is not None:
        rows += _network_rows(cluster.network)
    origins = [(each.what, each.standing, each.of) for each in provenance_of(cluster)]
    return "\n\n".join(
        [
            _with_sources(f"{cluster.name}: {cluster.title}", rows),
            table(("constants", "are", "of"), origins),
        ]
    )


def network_as_text(network: Network) -> str:
    """Return a network for a terminal: each figure with its source."""
    return _with_sources(f"{network.name}: {network.title}", _network_rows(network))


def _network_rows(network: Network) -> list[tuple[str, str, Source | None]]:
    per_node = network.nics_per_node is not None
    count = network.nics_per_node if per_node else network.nics_per_gpu
    path, label = ("nics_per_node", "per node") if per_node else ("nics_per_gpu", "per GPU")
    rate = format_rate(network.nic_bytes_per_s)
    return [
        (f"ports {label}", f"{count}", network.sources.get(path)),
        ("port, one way", rate, network.sources.get("nic_bytes_per_s")),
    ]


def _with_sources(title: str, figures: Sequence[tuple[str, str, Source | None]]) -> str:
    """Return figures with a number for each source, and the numbered sources below."""
    numbers: dict[str, int] = {}
    rows = []
    for label, value, source in figures:
        remark = ""
        if source is not None:
            number = numbers.setdefault(source.citation, len(numbers) + 1)
            remark = f"[{number}] {source.caveat}"
        rows.append((label, value, remark))
    cited = "\n".join(paragraph(f"[{n}] {citation}", "    ") for citation, n in numbers.items())
    head = ("figure", "nominal", "source and caveat")
    return "\n\n".join([heading(title), table(head, rows, right="1"), cited])


def _attention(attention: AnyAttention) -> str:
    if isinstance(attention, Attention):
        window = f", window {attention.window_tokens:,}" if attention.window_tokens else ""
        return f"{attention.heads} heads x {attention.head_dim}, {attention.kv_heads} KV{window}"
    if isinstance(attention, LatentAttention):
        index = f", top {attention.index_top_k}" if attention.index_heads else ""
        return f"latent {attention.kv_lora_rank}, {attention.heads} heads{index}"
    if isinstance(attention, StateSpace):
        return f"state space {attention.inner_size:,} x {attention.state_size}"
    rule = "" if attention.rule == "delta" else f" ({attention.rule})"
    return f"linear{rule}, {attention.key_heads}/{attention.value_heads} heads"


def _feed_forward(block: Block) -> str:
    part = block.feed_forward
    if part is None:
        return "-"
    if isinstance(part, Experts):
        shared = f", shared {part.shared.width:,}" if part.shared else ""
        latent = f" on {part.latent:,}" if part.latent else ""
        return f"{part.count} experts of {part.expert.width:,}{latent}, top {part.top_k}{shared}"
    return f"{'gated ' if part.gated else ''}{part.width:,}"
