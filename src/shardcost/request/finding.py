"""Where models and clusters are looked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from shardcost.cluster import Cluster
    from shardcost.model import Model


class Finder(Protocol):
    """Finds what a text means."""

    def model(self, text: str) -> Model:
        """Return the model that a text names."""

    def cluster(self, text: str, network: str | None = None) -> Cluster:
        """Return the cluster that a text names, its nodes joined by a network."""
