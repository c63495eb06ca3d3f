"""Constants of kernels that a profile brings along: its tables ``[[kernels]]``.

Each is one section of a table of the catalog, in the catalog's own form, with what it rests on and,
where points were many, the residual that the formula leaves. A profile is a file from outside: a
section must have the constants that the catalog's section of that name has, and each must be a
number of the size that such a constant can have.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import isfinite
from typing import Any, Final, cast

from shardcost import catalog
from shardcost.cluster import Cluster
from shardcost.errors import BadTypeError, BadValueError, FormatError, ShardcostError, shown
from shardcost.machine.kernels import Fit, KernelTable, Section, nearest_systems
from shardcost.machine.residual import Residual

FORMS: Final[Mapping[tuple[KernelTable, str], tuple[str, ...]]] = {
    ("gemm", "bf16"): ("bf16",),
    ("gemm", "fp8"): ("fp8",),
    ("attention", "prefill"): ("prefill",),
    ("attention", "decode"): ("flash_decode", "decode"),
    ("elementwise", "elementwise"): ("elementwise",),
    ("elementwise", "layer_rms_norm"): ("layer_rms_norm",),
    ("elementwise", "layer_silu_mul"): ("layer_silu_mul",),
}
"""The sections that a profile may have, each with sections of the catalog whose form it has."""
_COORDINATES: Final = {
    "gemm": 3, "prefill": 4, "decode": 4, "elementwise": 1, "layer": 2,
}  # fmt: skip
"""Of a residual, by table or section."""
_MOST: Final = 1e6
_LEAST_SHARE: Final = 1e-6
_MOST_TILES: Final = 16
_MOST_SIDE: Final = 4096
_MOST_ENTRIES: Final = 32
_KEYS: Final = ("table", "section", "constants", "fit", "residual")


def profile_sections(cluster: Cluster) -> dict[tuple[KernelTable, str], Section]:
    """Return the sections that a cluster's own profile brings along."""
    if not cluster.profile:
        return {}
    import tomllib

    content, file = tomllib.loads(cluster.profile), f"profile {cluster.name}"
    entries = content.get("kernels", [])
    if not isinstance(entries, list) or not all(isinstance(each, Mapping) for each in entries):
        raise FormatError(file, f"kernels must be tables, got {shown(entries)}")
    if len(entries) > _MOST_ENTRIES:
        raise FormatError(file, f"has {len(entries)} tables [[kernels]], at most {_MOST_ENTRIES}")
    found: dict[tuple[KernelTable, str], Section] = {}
    for entry in entries:
        try:
            key, section = _section(cluster, entry)
        except ShardcostError as error:
            raise FormatError.within(file, error) from None
        if key in found:
            raise FormatError(file, f"has the kernels {key[0]} {key[1]} twice")
        found[key] = section
    return found


def form_of(cluster: Cluster, table: KernelTable, name: str) -> tuple[Mapping[str, Any], str]:
    """Return the constants of the nearest measured device that a section has the form of."""
    return next(_forms(cluster, table, name))


def _forms(cluster: Cluster, table: KernelTable, name: str) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield, for each form that a section may have, the nearest device's constants and its name."""
    for wanted in FORMS[table, name]:
        for system in nearest_systems(cluster.device, catalog.names(table)):
            content = catalog.raw(table, system).get(wanted)
            if content is not None:
                yield {each: value for each, value in content.items() if each != "fit"}, system
                break


def _section(cluster: Cluster, entry: Mapping[str, Any]) -> tuple[tuple[KernelTable, str], Section]:
    for needed in ("table", "section", "constants", "fit"):
        if needed not in entry:
            raise BadValueError("kernels", ", ".join(map(str, entry))[:80], f"with {needed} too")
    unknown = next((name for name in entry if name not in _KEYS), None)
    if unknown is not None:
        raise BadValueError("key of kernels", unknown, f"one of {', '.join(_KEYS)}")
    key = cast("tuple[KernelTable, str]", (entry["table"], entry["section"]))
    if not all(isinstance(each, str) for each in key) or key not in FORMS:
        known = ", ".join(" ".join(each) for each in FORMS)
        raise BadValueError("kernels", shown(list(key)), f"a table and section: {known}")
    constants = _constants(cluster, key, entry["constants"])
    return key, Section(
        system=cluster.system,
        name=key[1],
        constants=constants,
        fit=_fit(entry["fit"]),
        inherited_from=None,
        residual=_residual(key, entry.get("residual")),
    )


def _constants(cluster: Cluster, key: tuple[KernelTable, str], given: Any) -> dict[str, Any]:
    """Return constants that have the form of a section of the catalog."""
    table, name = key
    if not isinstance(given, Mapping):
        raise BadTypeError(f"constants of {table} {name}", given, "a table")
    errors = []
    for form, _ in _forms(cluster, table, name):
        try:
            return _like(form, given, f"{table} {name}")
        except ShardcostError as error:
            errors.append(error)
    raise errors[0]


def _like(form: Mapping[str, Any], given: Mapping[str, Any], place: str) -> dict[str, Any]:
    for name in form:
        if name not in given:
            raise BadValueError(
                f"constants of {place}", sorted(map(str, given)), f"with {name} too"
            )
    found: dict[str, Any] = {}
    for name, value in given.items():
        if name not in form:
            raise BadValueError(f"constant of {place}", name, f"one of {', '.join(form)}")
        if isinstance(form[name], Mapping):
            if not isinstance(value, Mapping):
                raise BadTypeError(f"{name} of {place}", value, "a table")
            found[name] = _like(form[name], value, f"{place} {name}")
        elif name == "tiles":
            found[name] = _tiles(value)
        else:
            found[name] = _figure(f"{name} of {place}", value, zero=form[name] == 0)
    return found


def _figure(name: str, value: Any, *, zero: bool) -> float:
    """Return a constant; 0 only where the catalog's is 0 as well, or adds nothing."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadTypeError(name, value, "a number")
    least = (
        0.0 if zero or name.split(" ", maxsplit=1)[0].endswith(("_us", "_loss")) else _LEAST_SHARE
    )
    most = 1.0 if "_share" in name.split(" ", maxsplit=1)[0] else _MOST
    if not (isfinite(value) and least <= value <= most):
        raise BadValueError(name, value, f"from {least:g} to {most:g}")
    return float(value)


def _tiles(value: Any) -> list[list[int]]:
    sound = (
        isinstance(value, list)
        and 1 <= len(value) <= _MOST_TILES
        and all(
            isinstance(tile, list)
            and len(tile) == 3
            and all(type(side) is int and 1 <= side <= _MOST_SIDE for side in tile)
            for tile in value
        )
    )
    if not sound:
        rule = f"up to {_MOST_TILES} lists of rows, columns and splits"
        raise BadValueError("tiles", shown(value), rule)
    return cast("list[list[int]]", value)


def _fit(given: Any) -> Fit:
    if not isinstance(given, Mapping):
        raise BadTypeError("fit", given, "a table")
    unknown = next((name for name in given if name not in Fit._fields), None)
    if unknown is not None:
        raise BadValueError("key of fit", unknown, f"one of {', '.join(Fit._fields)}")
    texts = {name: given.get(name, "") for name in ("source", "measured_with")}
    for name, text in texts.items():
        if not isinstance(text, str):
            raise BadTypeError(f"{name} of the fit", text, "text")
    figures: dict[str, Any] = {}
    for name in ("rows", "median_pct", "p90_pct"):
        if name not in given:
            raise BadValueError("fit", sorted(map(str, given)), f"with {name} too")
        figures[name] = _figure(f"{name} of the fit", given[name], zero=True)
    rows = int(figures.pop("rows"))
    return Fit(source=texts["source"], rows=rows, measured_with=texts["measured_with"], **figures)


def _residual(key: tuple[KernelTable, str], given: Any) -> Residual | None:
    if given is None:
        return None
    names = ("points", "weights", "scales")
    if not isinstance(given, Mapping) or set(given) != set(names):
        raise BadValueError("residual", shown(given), f"a table of {', '.join(names)}")
    residual = Residual(**given)
    wanted = coordinates_of(key)
    if len(residual.scales) != wanted:
        rule = f"{wanted} for {' '.join(key)}"
        raise BadValueError("coordinates of a residual", len(residual.scales), rule)
    return residual


def coordinates_of(key: tuple[KernelTable, str]) -> int:
    """Return how many sizes the residual of a section is a function of."""
    table, name = key
    return _COORDINATES.get(name) or _COORDINATES.get(table if table == "gemm" else "layer", 1)
