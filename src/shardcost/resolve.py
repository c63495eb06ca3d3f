"""What a caller names, as nouns: the one rule by which a text is a name or a file.

A model is named by the catalog's name, an alias or an id on Hugging Face, or it is a file: a
``config.json``, the folder that holds one, or a ``.toml``. Clusters, networks and software are
names or ``.toml`` files, calibrated profiles among them. The command line and the functions of the
package ask here. The page does not: no text of a request becomes a path.
"""

from __future__ import annotations

import os
from dataclasses import replace
from os import PathLike, path
from typing import TYPE_CHECKING, TypeAlias, overload

from shardcost import catalog
from shardcost.catalog.user_files import VARIABLE
from shardcost.cluster import Cluster, Network
from shardcost.errors import BadTypeError, BadValueError, FormatError, UnknownNameError
from shardcost.model import Model
from shardcost.software import Software

if TYPE_CHECKING:
    from shardcost.machine import Machine

GivenModel: TypeAlias = Model | str | PathLike[str]
GivenCluster: TypeAlias = Cluster | str | PathLike[str]
GivenNetwork: TypeAlias = Network | str | PathLike[str] | None
GivenSoftware: TypeAlias = Software | str | PathLike[str]


def model(given: GivenModel) -> Model:
    """Return a model that is given by its name, by its id on Hugging Face, or as a file.

    >>> model("deepseek-ai/DeepSeek-R1").name
    'deepseek-v3'
    """
    if isinstance(given, Model):
        return given
    text = _text("model", given, "a Model, the name of one or a file")
    if not text:
        raise BadValueError("model", text, "a name of the catalog or a path")
    if text.endswith(".toml"):
        return Model.from_file(text)
    if not (text.endswith(".json") or path.isfile(f"{text}/config.json")):  # noqa: PTH113
        try:
            return Model.named(text)
        except UnknownNameError:
            _check_is_no_file(text, "a config.json, the folder that has it, or a .toml file")
            # Of a folder, what it lacks is the better answer.
            if not path.isdir(text):  # noqa: PTH112
                raise
    from pathlib import Path

    from shardcost.formats.hf_config import model_of_file

    return model_of_file(Path(text))


def caveats_of(model: Model) -> tuple[str, ...]:
    """Return the caveats of a model of a user's file; the catalog's are documented there."""
    known = model.name in catalog.names("models")
    return () if known and catalog.model_named(model.name) == model else model.caveats


@overload
def cluster(given: GivenCluster, network: GivenNetwork = None) -> Cluster: ...
@overload
def cluster(given: GivenCluster | Machine, network: GivenNetwork = None) -> Cluster | Machine: ...
def cluster(given: GivenCluster | Machine, network: GivenNetwork = None) -> Cluster | Machine:
    """Return a cluster that is given by its name or as a file, joined by a network if one is.

    >>> cluster("tpu_v5p:4x4x8").tiers[0].gpus, cluster("h100", "ib_8x400g").network.name
    (128, 'ib_8x400g')

    Args:
        given: A cluster, its name (with a slice of its torus), a hardware file or a profile. A
            `Machine` is returned as it is.
        network: What joins its nodes instead of the network that it has.
    """
    if network is None and isinstance(given, Cluster):
        return given
    if not isinstance(given, Cluster | str | PathLike):
        from shardcost.machine import Machine  # which a command about one formula does without

        if not isinstance(given, Machine):
            raise BadTypeError("cluster", given, "a Cluster, the name of one or a file")
        if network is not None:
            raise BadValueError("network", network, "left out: a Machine has one, or none, already")
        return given
    file = isinstance(network, str | PathLike) and catalog.is_file(str(network))
    if not isinstance(network, str | Network | None) and not file:
        raise BadTypeError("network", network, "a Network, the name of one or a file")
    joined = network if isinstance(network, str | Network) and not file else None
    if isinstance(given, Cluster):
        found = given if joined is None else _joined(given, joined)
    elif catalog.is_file(str(given)):
        from shardcost.machine.libraries import profile_in

        found = profile_in(str(given), joined)
    else:
        try:
            found = Cluster.named(str(given), joined)
        except UnknownNameError:
            _check_is_no_file(str(given), "a .toml file")
            raise
    if not file:
        return found
    architecture = found.device.architecture
    return replace(found, network=catalog.network_in_file(str(network), architecture))


def _joined(cluster: Cluster, network: str | Network) -> Cluster:
    """Return a cluster with another network; joined once, as presets are built once."""
    if isinstance(network, Network) and network.has_arrays:
        return replace(cluster, network=network)
    key = ("joined", network, os.environ.get(VARIABLE))
    if key not in cluster.memo:
        if isinstance(network, str):
            network = catalog.network_named(network, cluster.device.architecture)
        cluster.memo[key] = replace(cluster, network=network)
    found: Cluster = cluster.memo[key]
    return found


def software(given: GivenSoftware) -> Software:
    """Return a framework or engine that is given by its name or as a file."""
    if isinstance(given, Software):
        return given
    text = _text("software", given, "a Software, the name of one or a file")
    return Software.from_file(text) if catalog.is_file(text) else Software.named(text)


def _check_is_no_file(text: str, read: str) -> None:
    """Raise for a file that is not of the kind that is read."""
    if path.isfile(text):  # noqa: PTH113
        raise FormatError(text, f"is not read here: give {read}; or a name of the catalog")


def _text(argument: str, given: object, rule: str) -> str:
    if not isinstance(given, str | PathLike):
        raise BadTypeError(argument, given, rule)
    return str(given)
