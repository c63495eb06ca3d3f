"""An estimate as what one would type to get it again: a command line, and Python.

What is not in the catalog is on the reader's disk: a pasted model stands there as ``config.json``,
a cluster file or profile as ``profile.toml``.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, Final

from shardcost.catalog import Folder, all_names, has_network
from shardcost.catalog.figures import changes_of
from shardcost.checks import Noun
from shardcost.cluster import Cluster
from shardcost.estimate.result import Estimate
from shardcost.model import Model
from shardcost.option import Option, flag
from shardcost.options import LAYOUT, WORKLOAD
from shardcost.software import default_software
from shardcost.workload import Decode, Prefill, Workload

MODEL_FILE: Final = "config.json"
CLUSTER_FILE: Final = "profile.toml"
NETWORK_FILE: Final = "network.toml"
SOFTWARE_FILE: Final = "software.toml"
_FIGURES: Final = "print(result.time_s, result.tokens_per_s_per_gpu, result.memory_bytes)"


def command_of(result: Estimate) -> str:
    """Return the command line that prints an estimate.

    >>> from shardcost import Decode, Layout, estimate
    >>> step = Decode(batch=64, context_tokens=4096)
    >>> command_of(estimate("llama3-70b", "h100_sxm", Layout(tp=8), step))
    'shardcost estimate llama3-70b --on h100_sxm --tp 8 --decode --batch 64 --context-tokens 4096'
    """
    return shlex.join(("shardcost", "estimate", *words_of(result)))


def words_of(result: Estimate) -> list[str]:
    """Return the model and the options that describe an estimate."""
    words = [result.model.name if is_known(result.model) else MODEL_FILE]
    words += ["--on", result.cluster.name if is_named(result.cluster) else CLUSTER_FILE]
    network, software = result.cluster.network, result.software
    if network is not None:
        words += ["--network", network.name if has_network(network.name) else NETWORK_FILE]
    for name, value in changed_figures(result.cluster).items():
        words += ["--set", f"{name}={value}"]
    if software.name != default_software(result.workload.phase, [result.cluster.device.vendor]):
        is_preset = software.name in all_names("software")
        words += ["--software", software.name if is_preset else SOFTWARE_FILE]
    words += option_words(LAYOUT, result.layout)
    words.append(flag(result.workload.phase))
    words += option_words(WORKLOAD, _asked(result))
    return words


def python_of(result: Estimate) -> str:
    """Return Python that prints the main figures of an estimate."""
    model, cluster, work = result.model, result.cluster, _asked(result)
    kind = type(work).__name__
    where = repr(cluster.name) if is_named(cluster) else f"Cluster.from_file({CLUSTER_FILE!r}"
    network = ""
    if cluster.network is not None:
        network = f", {_argument('networks', cluster.network.name, NETWORK_FILE)}"
    if not is_named(cluster):
        where += f"{network})"
    elif network:
        where = f"Cluster.named({where}{network})"
    changes = changed_figures(cluster)
    if changes:
        named = where if "Cluster." in where else f"Cluster.named({where})"
        where = f"{named}.with_figures({changes!r})"
    what = repr(model.name) if is_known(model) else f"Model.from_hf({MODEL_FILE!r})"
    arguments = [what, where, _called("Layout", result.layout), _called(kind, work)]
    if result.software.name != default_software(work.phase, [cluster.device.vendor]):
        arguments.append(_argument("software", result.software.name, SOFTWARE_FILE))
    nouns = ("Cluster", "Model", "Network", "Software")
    needed = {name for name in nouns if any(name in text for text in arguments)}
    imported = ", ".join(sorted({*needed, "Layout", kind, "estimate"}, key=str.swapcase))
    lines = [f"from shardcost import {imported}", "", "result = estimate("]
    return "\n".join([*lines, *(f"    {text}," for text in arguments), ")", _FIGURES, ""])


def _asked(result: Estimate) -> Workload:
    """Return the workload without the number formats that follow from model and engine."""
    work: Any = result.workload
    if not isinstance(work, Prefill | Decode):
        return result.workload
    given: Any = dict.fromkeys(work.formats)
    bare: Any = replace(work, **given)
    narrow = result.software.narrow_cache
    own = bare.in_formats_of(result.model, narrow_cache=narrow)
    base = bare if work.dtype == own.dtype else replace(bare, dtype=work.dtype)
    implied = base.in_formats_of(result.model, narrow_cache=narrow).formats
    stated = {name: value for name, value in work.formats.items() if value != implied[name]}
    asked: Workload = replace(base, **stated)
    return asked


def changed_figures(cluster: Cluster) -> dict[str, str]:
    """Return the figures that are not the catalog's, by name, as ``--set`` takes them."""
    return {
        change.figure.name: change.figure.exact(change.after)
        for change in changes_of(cluster)
        if change.after is not None
    }


def is_known(model: Model) -> bool:
    """Return whether the catalog has a model under its name."""
    return model.name in all_names("models") and Model.named(model.name) == model


def is_named(cluster: Cluster) -> bool:
    """Return whether the catalog has a cluster under its name."""
    return not cluster.profile and cluster.name in all_names("clusters")


def _argument(folder: Folder, name: str, file: str) -> str:
    """Return the argument for a network or software: its name, or its file."""
    noun = folder.removesuffix("s")
    known = has_network(name) if folder == "networks" else name in all_names(folder)
    value = repr(name) if known else f"{noun.title()}.from_file({file!r})"
    return f"{noun}={value}"


def option_words(rows: Iterable[Option], noun: Noun) -> Iterator[str]:
    """Yield the options that set the fields of a noun which are not the default."""
    chosen = noun.chosen()
    for option in rows:
        if type(noun) in option.nouns and option.field_of(type(noun)).name in chosen:
            value = chosen[option.field_of(type(noun)).name]
            yield from [option.flag] if value is True else [option.flag, str(value)]


def _called(kind: str, noun: Noun) -> str:
    return f"{kind}({', '.join(f'{name}={value!r}' for name, value in noun.chosen().items())})"
