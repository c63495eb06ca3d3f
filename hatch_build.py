"""Build hook: the wheel has the catalog parsed (`src/shardcost/catalog/parsed.py` says why).

The sdist has this file and the TOML files, so that a wheel is the same from it as from a checkout.
An editable install reads the TOML files themselves and gets no store, which an edit would outdate.
"""

from __future__ import annotations

import tempfile
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CatalogHook(BuildHookInterface):  # type: ignore[type-arg]
    """Adds the parsed catalog to a wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Make the store before the wheel is packed."""
        if self.target_name != "wheel" or version == "editable":
            return
        catalog = Path(self.root, "src", "shardcost", "catalog")
        parsed = _module(catalog / "parsed.py")
        files = sorted(catalog.glob("*/*.toml"))
        names = [file.relative_to(catalog).as_posix().removesuffix(".toml") for file in files]
        self._folder = tempfile.TemporaryDirectory()
        store = Path(self._folder.name, parsed.SHIPPED)
        store.write_bytes(parsed.packed(str(catalog), names))
        build_data["force_include"][str(store)] = f"shardcost/catalog/{parsed.SHIPPED}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove the store that was packed."""
        del version, build_data, artifact_path
        if hasattr(self, "_folder"):
            self._folder.cleanup()


def _module(file: Path) -> ModuleType:
    """Return a module by its file: the package is not installed where it is built."""
    spec = spec_from_file_location(file.stem, file)
    if spec is None or spec.loader is None:
        raise ImportError(f"cannot import {file}")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
