"""Which constants kernels of latent attention run by: their own, those of one like them, or of any.

The table ``mla`` of the catalog has sections of three kinds for each measured device:
``kernel-phase-form-cache`` of an attention kernel by the number format of the cache,
``kernel-products-format`` of a kernel of the absorption products, and ``library-module-format`` of
the projections around attention by the number format of their weights. Beside them stand sections
of families (`family_of`). Which family a kernel is of, how its kernels cut their work and what an
engine runs by default are data of ``tuner/mla.toml``.

A device nobody measured inherits from the nearest one of its architecture and generation, else from
the family over all measured devices (``tuner/mla_pooled.toml``). The small kernels of a module wait
for the host: its constants come from a device beside a CPU of the same kind, where there is one.
"""

from __future__ import annotations

from typing import Final

from shardcost import catalog
from shardcost.catalog import tuner_table
from shardcost.cluster import Device
from shardcost.dtypes import weight_format
from shardcost.errors import BadValueError
from shardcost.machine.dispatch import is_rack
from shardcost.machine.families import Sections, defaults, family_by_word, holds_for, resolved
from shardcost.machine.kernels import KernelConstants, Section
from shardcost.records import NamedTuple

_NARROW_BYTES: Final = 1.5
"""Below which an element of the cache counts as 8 bits wide."""
PHASES: Final = ("prefill", "decode")
FORMS: Final = ("expanded", "absorbed")


class Wanted(NamedTuple):
    """The sections that hold for a kernel: their names, the best first, and where to look."""

    names: tuple[str, ...]
    """Of the kernel itself, then of its family …"""
    fallbacks: tuple[str, ...]
    """… then of those that are farther, over all devices only."""
    by_host: bool = False
    """Whether the host's CPU matters more than how near the devices are."""


class Structure(NamedTuple):
    """How the kernels of a family cut their work."""

    tile_rows: int
    packs_heads: bool
    """A block's rows are of all heads, which share the key; else of one head."""
    splits: str
    """Of the context of a request over blocks: ``none``, ``filled`` or ``fixed``."""


def cache_format(dtype: str) -> str:
    """Return the sections' name of a cache's number format: by whether it is narrow.

    >>> cache_format("int8"), cache_format("float16")
    ('fp8', 'bf16')
    """
    return "fp8" if weight_format(dtype).weight_bytes < _NARROW_BYTES else "bf16"


def family_of(kernel: str, library: str, phase: str, form: str, device: Device) -> str:
    """Return the family that an attention kernel is of; unknown names are a library's usual one.

    >>> from shardcost.cluster import Cluster
    >>> h100 = Cluster.named("h100_sxm").device
    >>> family_of("FLASH_ATTN_MLA", "vllm", "decode", "absorbed", h100)
    'flash_attention'
    >>> family_of("default", "trtllm", "decode", "absorbed", h100)
    'flashmla'
    """
    given = {"library": library, "phase": phase, "form": form}
    entries = (
        entry
        for entry in tuner_table("mla")["family"]
        if all(entry.get(name, value) == value for name, value in given.items())
        and holds_for(entry, device)
    )
    family = family_by_word(kernel, entries)
    if family is None:
        raise BadValueError("kernel", kernel, "of a family")  # the last entry holds for all
    return family


def section_phase(library: str, phase: str, form: str) -> str:
    """Return the phase whose kernel runs: some engines give short prompts to decode kernels.

    >>> section_phase("vllm", "prefill", "absorbed"), section_phase("sglang", "prefill", "absorbed")
    ('decode', 'prefill')
    """
    decodes = form == "absorbed" and library in tuner_table("mla")["decodes_prompts"]
    return "decode" if decodes else phase


def structure_of(family: str, phase: str, form: str) -> Structure:
    """Return how the kernels of a family cut their work in one phase and form."""
    return Structure(**tuner_table("mla")["structure"][family][f"{phase}_{form}"])


def widened_bytes(kernel: str, kv_dtype: str) -> float:
    """Return what widening an element of the cache moves, of kernels that do so; else 0."""
    table = tuner_table("mla")["widening"]
    return float(table.get(kernel, 0.0)) if cache_format(kv_dtype) == "fp8" else 0.0


def product_format(kernel: str, dtype: str) -> str:
    """Return the number format in which absorption products multiply, and read their weights."""
    known = tuner_table("mla")["products_in_bf16"]["kernels"]
    return "bf16" if kernel in known else weight_format(dtype).product


def default_kernel(software: str, device: Device, phase: str, kv_dtype: str = "bf16") -> str:
    """Return the attention kernel that an engine runs on a device unless told otherwise.

    Args:
        software: ``vllm``, ``sglang`` or ``trtllm``, or a name that begins so. Others run what
            most engines do on such a device.
        device: Where it runs.
        phase: ``prefill`` or ``decode``.
        kv_dtype: The number format of the cache.
    """
    entry = next(defaults("mla", software, device))  # the last one holds for all
    narrow = f"{phase}_narrow" if cache_format(kv_dtype) == "fp8" else phase
    return str(entry.get(narrow, entry[phase]))


def attention_sections(
    kernel: str, library: str, phase: str, form: str, kv_dtype: str, device: Device
) -> Wanted:
    """Return which sections hold for an attention kernel."""
    phase = section_phase(library, phase, form)
    family = family_of(kernel, library, phase, form, device)
    kind, width = f"{phase}-{form}", cache_format(kv_dtype)
    other = "bf16" if width == "fp8" else "fp8"
    names = (named(kernel, library), family)
    kinds = dict.fromkeys((kind, "decode-absorbed", "prefill-expanded"))
    return Wanted(
        tuple(f"{name}-{kind}-{each}" for each in (width, other) for name in names),
        tuple(f"any-{any_kind}-{each}" for any_kind in kinds for each in (width, other)),
    )


def product_sections(kernel: str, library: str, dtype: str) -> Wanted:
    """Return which sections hold for a kernel of the absorption products."""
    form = product_format(kernel, dtype)
    name = named(kernel, library)
    return Wanted((f"{name}-products-{form}", f"any-products-{form}"), ("any-products-bf16",))


def module_sections(library: str, weight_dtype: str) -> Wanted:
    """Return which sections hold for the projections and small kernels of an engine's module."""
    form = product_of(weight_dtype)
    names = tuple(f"{name}-module-{form}" for name in (library, "any"))
    others = (f"{library}-module-bf16", "any-module-bf16")
    return Wanted(names, others, by_host=True)


def product_of(dtype: str) -> str:
    """Return the sections' name of a number format of projections: by what is multiplied."""
    product = weight_format(dtype).product
    return product if product in {"fp4", "fp8"} else "bf16"


def named(kernel: str, library: str) -> str:
    """Return the name of a kernel in the catalog: with its library where it says nothing."""
    return f"{library}_{kernel}" if kernel in tuner_table("mla")["nameless"] else kernel


def mla_section(on: KernelConstants, wanted: Wanted) -> Section:
    """Return the constants that hold on a device, own or inherited."""
    return resolved(on, "mla", wanted, wanted.names, lambda sections: chosen(sections, wanted))


def chosen(sections: Sections, wanted: Wanted) -> Section:
    """Return the constants that hold, of the sections that would do."""
    own = sections.nearest(wanted.names, _by_host(sections) if wanted.by_host else None)
    if own is not None:
        return own
    for name in wanted.names:
        if name in sections.pooled:
            return sections.over_all(name)
    elsewhere = sections.nearest(wanted.names, sections.systems)
    if elsewhere is not None:  # a family that one system alone was measured with
        return elsewhere
    for name in wanted.fallbacks:
        if name in sections.pooled:
            return sections.over_all(name)
    raise BadValueError("kernel", wanted.names[0], "of a kind that was measured")


def _by_host(sections: Sections) -> list[str]:
    """Return the related systems: the device's own, else those with a CPU of its kind first."""
    clusters = {name: catalog.cluster_named(name) for name in sections.related}
    if any(each.device.name == sections.device.name for each in clusters.values()):
        return sections.related
    here = any(
        each.device.name == sections.device.name and is_rack(each)
        for each in (catalog.cluster_named(name) for name in catalog.names("clusters"))
    )
    return sorted(clusters, key=lambda name: is_rack(clusters[name]) != here)
