"""Where the models and clusters of a request are looked for: the catalog, or what was pasted.

Never on disk: a text that looks like a path is a name that the catalog does not have.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shardcost.cluster import Cluster
from shardcost.errors import UsageError
from shardcost.formats.hf_config import model_of_file
from shardcost.formats.request_traces import RequestTrace, of_text
from shardcost.machine.libraries import profile_of_text
from shardcost.model import Model
from shardcost.software import Software


class Pasted:
    """Finds the models and clusters that one request names."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        self.config, self.profile = given.get("config"), given.get("profile")
        files = ("model", "config", self.config), ("on", "profile", self.profile)
        for name, other, file in files:
            if file is not None and given.get(name) is not None:
                raise UsageError(f"{name} and {other} exclude each other; give one")

    def model(self, text: str | None) -> Model:
        """Return the pasted model, or one of the catalog."""
        if self.config is not None:
            return model_of_file(self.config)
        if text is None:
            raise UsageError("missing MODEL (`shardcost models` lists them)")
        return Model.named(text)

    def cluster(self, text: str | None, network: str | None = None) -> Cluster:
        """Return the pasted cluster, or one of the catalog."""
        if self.profile is not None and text is None:
            return profile_of_text(self.profile, network)
        if text is None:
            raise UsageError("missing --on CLUSTER (`shardcost clusters` lists them)")
        return Cluster.named(text, network)

    def software(self, text: str) -> Software:
        """Return a framework or engine of the catalog."""
        return Software.named(text)

    def trace(self, text: str) -> RequestTrace:
        """Return the pasted requests."""
        return of_text(text)
