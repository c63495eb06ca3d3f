"""``shardcost models``, ``clusters`` and ``software``: what the catalog holds, or one in full."""

from __future__ import annotations

import re
from argparse import Namespace
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from shardcost import catalog, resolve
from shardcost.catalog import user_files
from shardcost.catalog.template import file_of, template
from shardcost.cli import options
from shardcost.cluster import Cluster, Network
from shardcost.errors import UnknownNameError, UsageError
from shardcost.files import read_text
from shardcost.model import Model
from shardcost.records import NamedTuple
from shardcost.report import describe
from shardcost.report.text import paragraph, table
from shardcost.software import Software
from shardcost.units import format_bytes, format_count, format_rate, format_time


class Listing(NamedTuple):
    """A command that lists a part of the catalog, or shows one noun of it."""

    name: str
    description: str
    named: str
    """Help of the argument that names one."""
    examples: tuple[str, ...]
    noun: Callable[[str], Any]
    as_data: Callable[[Any], Any]
    as_text: Callable[[Any], str]
    list_data: Callable[[Sequence[str] | None], dict[str, Any]]
    """Of those with some names, or of all."""
    list_text: Callable[[Sequence[str] | None], str]
    matching: Callable[[str], list[str]] = lambda _: []
    """Names that have a text at the start of a word, where several do."""
    template: Callable[[str | None], str] | None = None
    """A file to begin with, of one or of none."""

    def parser(self) -> options.Parser:
        """Return the parser of this command."""
        examples = (f"  shardcost {self.name} {words}".rstrip() + "\n" for words in self.examples)
        parser = options.Parser(self.name, self.description, "".join(examples))
        parser.add_argument("name", nargs="?", help=self.named)
        if self.template is not None:
            parser.add_argument(
                "--template",
                action="store_true",
                help="print a commented hardware file; with a name, that machine's file",
            )
        return parser

    def run(self, given: Namespace) -> int:
        """Print one noun, or the list, or a file to begin with."""
        if self.template is not None and given.template:
            if given.json:
                raise UsageError("--template and --json exclude each other: a file is TOML")
            print(self.template(given.name), end="")
            return 0
        chosen = None if given.name is None else self.matching(given.name)
        if given.name is None or chosen:
            return options.print_report(
                given, lambda: self.list_data(chosen), lambda: self.list_text(chosen)
            )
        noun = self.noun(given.name)
        return options.print_report(given, lambda: self.as_data(noun), lambda: self.as_text(noun))


def _matching(folder: catalog.Folder) -> Callable[[str], list[str]]:
    """Return what finds the names that have a text at the start of a word.

    Of a text that is a name itself, or is in no or one name only, it finds none.
    """

    def begins(name: str, part: str) -> bool:
        words = re.split("[-_]", name)
        ends = (catalog.folded("".join(words[k:])) for k in range(len(words)))
        return any(end.startswith(part) for end in ends)

    def matching(text: str) -> list[str]:
        part = catalog.folded(text)
        found = [name for name in catalog.all_names(folder) if part and begins(name, part)]
        exact = any(catalog.folded(name) == part for name in found)
        return [] if exact or len(found) == 1 else found

    return matching


def _models(chosen: Sequence[str] | None) -> list[Model]:
    return [catalog.model_named(name) for name in chosen or catalog.all_names("models")]


def _model_table(chosen: Sequence[str] | None) -> str:
    rows = []
    for model in _models(chosen):
        kinds = [part.kind for block in model.blocks for part in block.mixers]
        rows.append(
            (
                model.name,
                f"{model.num_layers}",
                f"{model.hidden_size:,}",
                format_count(model.parameters),
                format_count(model.active_parameters),
                " + ".join(dict.fromkeys(kind.removesuffix(" attention") for kind in kinds)),
            )
        )
    head = ("model", "layers", "hidden", "parameters", "active", "attention")
    return table(head, rows, right="1234")


models: Final = Listing(
    "models",
    "The models in the catalog, or one of them in full.",
    "a model: show its shape, counts and source; or a word of several names: list those",
    ("", "deepseek-v3", "llama3", "--json"),
    resolve.model,
    describe.model_as_data,
    describe.model_as_text,
    lambda chosen: {"models": [describe.model_as_data(model) for model in _models(chosen)]},
    _model_table,
    _matching("models"),
)


def _software(chosen: Sequence[str] | None) -> tuple[Software, ...]:
    return tuple(catalog.software_named(name) for name in chosen or catalog.all_names("software"))


def _software_table(chosen: Sequence[str] | None) -> str:
    rows = [
        (
            software.name,
            {("train",): "training", (): "any"}.get(software.phases, "serving"),
            software.library or "vendor's",
            "-" if software.fit is None else f"{software.fit.rows:,}",
            "-" if software.fit is None else f"{software.fit.median_pct:.1f} %",
            software.title,
        )
        for software in _software(chosen)
    ]
    head = ("software", "for", "library", "rows", "error", "what")
    legend = "Library: of collectives; rows: measurements behind the constants; error: median."
    return f"{table(head, rows, right='34')}\n\n{legend}"


def _software_as_text(software: Software) -> str:
    values: dict[str, Any] = describe.as_data(software)
    inside = ("scheduler", "memory")
    shown = {name: value for name, value in values.items() if name not in {"fit", *inside}}
    for part in inside:
        shown |= {f"{part}.{name}": value for name, value in values[part].items()}
    rows = [(name, _shown(name, value)) for name, value in shown.items() if value not in (None, [])]
    fit = paragraph(f"Constants: {software.fit_text}.", "  ")
    return f"{table(('field', 'value'), rows)}\n\n{fit}"


def _shown(name: str, value: Any) -> str:
    """Return the value of a field as a reader writes it."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(value)
    if isinstance(value, float) and name.endswith("_s"):
        return format_time(value)
    return f"{value:g}" if isinstance(value, float) else str(value)


software: Final = Listing(
    "software",
    "The frameworks and engines in the catalog, or one of them in full.",
    "a name or file.toml: show its choices, constants; or a word of several names: list those",
    ("", "vllm", "megatron", "--json"),
    resolve.software,
    describe.as_data,
    _software_as_text,
    lambda chosen: {"software": describe.as_data(_software(chosen))},
    _software_table,
    _matching("software"),
)


def _cluster_or_network(name: str) -> Cluster | Network:
    """Return the cluster of that name, else the network, else an error that knows both."""
    if catalog.is_file(name):
        content = user_files.parsed(read_text(Path(name), user_files.MOST_BYTES), name)
        is_network = user_files.kind_of(content) == "networks"
        return Network.from_file(name) if is_network else resolve.cluster(name)
    clusters, networks = catalog.all_names("clusters"), catalog.all_names("networks")
    for find in (catalog.cluster_named, catalog.network_named):
        try:
            return find(name)
        except UnknownNameError:
            continue
    listed = "(`shardcost clusters` lists them)"
    raise UnknownNameError("cluster or network", name, clusters + networks, listed)


def _clusters() -> tuple[Cluster, ...]:
    return tuple(catalog.cluster_named(name) for name in catalog.all_names("clusters"))


def _networks() -> tuple[Network, ...]:
    return tuple(catalog.network_named(name) for name in catalog.all_names("networks"))


def _cluster_tables(_chosen: Sequence[str] | None) -> str:
    rows: list[tuple[str, ...]] = []
    for cluster in _clusters():
        device, tier = cluster.device, cluster.tiers[0]
        peak = max(device.peak_flop_per_s.get(dtype, 0) for dtype in ("bf16", "fp16"))
        rates = (format_rate(tier.bytes_per_s), format_bytes(device.memory_bytes))
        memory_rate = format_rate(device.memory_bytes_per_s)
        domain = (f"{tier.gpus}", tier.kind)
        rows.append((cluster.name, *domain, *rates, memory_rate, f"{peak / 1e12:,.0f}"))
    head = ("cluster", "GPUs", "link", "link rate", "memory", "memory rate", "TFLOP/s")
    clusters, rows = table(head, rows, right="1345"), []
    for network in _networks():
        per_node, per_gpu = f"{network.nics_per_node} per node", f"{network.nics_per_gpu} per GPU"
        ports = per_gpu if network.nics_per_gpu else per_node
        rows.append((network.name, ports, format_rate(network.nic_bytes_per_s), network.title))
    networks = table(("network", "ports", "port rate", "what"), rows, right="12")
    legend = "Nominal rates, per GPU (networks: per port), one direction; dense 16-bit FLOP/s."
    return f"{clusters}\n\n{networks}\n\n{legend}"


clusters: Final = Listing(
    "clusters",
    "The clusters and networks in the catalog, or one of them with the source of each figure.",
    "a cluster or network, by name or file.toml: show sources",
    ("", "h100_sxm", "ib_8x400g --json", "--template", "h100_sxm --template"),
    _cluster_or_network,
    lambda noun: (
        describe.cluster_as_data(noun) if isinstance(noun, Cluster) else describe.as_data(noun)
    ),
    lambda noun: (
        describe.cluster_as_text(noun)
        if isinstance(noun, Cluster)
        else describe.network_as_text(noun)
    ),
    lambda _: {
        "clusters": describe.as_data(_clusters()),
        "networks": describe.as_data(_networks()),
    },
    _cluster_tables,
    template=lambda name: template() if name is None else file_of(resolve.cluster(name)),
)
