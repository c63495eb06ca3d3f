"""Which fitted constants a device's kernels run by: its own, or the nearest measured device's.

The catalog tables ``gemm``, ``attention``, ``elementwise``, ``experts``, ``mla`` and
``linear_attention`` have one file per measured device, named like the cluster that has it. A
section of a file is one set of constants with the rows and the error of its fit. Constants are
shares of the device's datasheet, clock cycles or tile sizes, so that a device nobody measured can
inherit them; `Section.inherited_from` says so. Those of GEMMs and attention that are times or rates
of SMs follow the datasheet by `carried_over`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from math import ceil, log
from typing import Any, Final, Literal

from shardcost import catalog
from shardcost.arrays import largest, log2
from shardcost.checks import anywhere, is_array
from shardcost.cluster import Device
from shardcost.dtypes import BITS, PRODUCTS, canonical_dtype
from shardcost.errors import UnknownNameError
from shardcost.machine.residual import Residual
from shardcost.receipt import Term
from shardcost.records import NamedTuple, dataclass
from shardcost.traced import Traced

KernelTable = Literal["gemm", "attention", "elementwise", "experts", "linear_attention", "mla"]
_GEMM_SECTIONS: Final = {"nvfp4": 4, "fp8": 8, "bf16": max(BITS.values())}
"""Each GEMM section with the widest format that it holds for, in bits."""
_COMMON: Final = "fp16"
"""The format by whose peak SMs of one architecture are compared."""
_WIDE_FORMAT: Final = "bf16"
"""The format by whose peak matrix units of different kinds are told apart."""
_TENSOR_FLOAT: Final = "tf32"
_WIDE: Final = 16
_TUNED: Final = 8


class Fit(NamedTuple):
    """The rows behind a set of constants, and the error on them."""

    source: str
    rows: int
    median_pct: float
    p90_pct: float
    measured_with: str = ""
    """The software whose kernels were measured."""


class Section(NamedTuple):
    """One set of constants."""

    system: str
    """The measured system."""
    name: str
    """Which section of its file."""
    constants: Mapping[str, Any]
    fit: Fit
    inherited_from: str | None
    """The system whose constants these are; None where the device itself was measured."""
    residual: Residual | None = None
    """What a profile's measurements leave between the formula and the time, over log2 of sizes."""

    def measured_factor(self, *sizes: Any) -> Any:
        """Return measured over predicted by the formula at some sizes; 1 without a residual.

        Traced numbers get one as well: a term of the receipt, not the sum that it is.
        """
        if self.residual is None:
            return 1.0
        plain = [getattr(size, "value", size) for size in sizes]
        factor = self.residual.factor(*(log2(largest(size, 1.0)) for size in plain))
        if all(one is other for one, other in zip(plain, sizes, strict=True)):
            return factor
        meaning = "residual of the formula, measured on this machine"
        return Traced.named(Term("measured", float(factor), "", meaning))


class KernelTables:
    """The catalog's sections of kernels; some systems may be hidden, some have other contents."""

    def __init__(
        self,
        hidden: frozenset[str] = frozenset(),
        changed: Mapping[tuple[KernelTable, str], Mapping[str, Any]] | None = None,
        given: Mapping[str, Mapping[tuple[KernelTable, str], Section]] | None = None,
    ) -> None:
        self._hidden = hidden
        self._changed = changed or {}
        self.given = given or {}
        """Sections that hold on a system before any others, by its name: a profile's."""

    def without(self, *systems: str) -> KernelTables:
        """Return the same as if some systems had never been measured.

        What no other system with such matrix units has stays: every device inherits it.
        """
        given = {name: own for name, own in self.given.items() if name not in systems}
        return KernelTables(self._hidden | set(systems), self._changed, given)

    def changing(self, table: KernelTable, system: str, content: Mapping[str, Any]) -> KernelTables:
        """Return the same with other sections of one system."""
        changed = {**self._changed, (table, system): content}
        return KernelTables(self._hidden, changed, self.given)

    def preferring(
        self, system: str, sections: Mapping[tuple[KernelTable, str], Section]
    ) -> KernelTables:
        """Return the same with sections that come first on one system."""
        return KernelTables(self._hidden, self._changed, {**self.given, system: sections})

    def content(self, table: KernelTable, system: str) -> Mapping[str, Any]:
        """Return the sections of a system that are in sight."""
        own = self._changed.get((table, system)) or catalog.raw(table, system)
        if system not in self._hidden:
            return own
        kind = is_systolic(catalog.cluster_named(system).device)
        others = (
            name
            for name in catalog.names(table)
            if name not in self._hidden and is_systolic(catalog.cluster_named(name).device) == kind
        )
        elsewhere = {name for other in others for name in catalog.raw(table, other)}
        return {name: section for name, section in own.items() if name not in elsewhere}

    def nearest(
        self, table: KernelTable, device: Device
    ) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Yield the measured systems and their sections, the device's own first, then the nearest.

        Nearest is the same architecture, else the same vendor, else the same kind of matrix units,
        at the nearest compute capability, else the nearest memory bandwidth.
        """
        for system in nearest_systems(device, catalog.names(table)):
            yield system, self.content(table, system)


CATALOG_KERNELS: Final = KernelTables()


@dataclass(frozen=True, eq=False)
class KernelConstants:
    """The constants by which kernels run on a device under a software; resolved when first used.

    `replace(constants, device=…)` keeps the constants for a device with another datasheet: a
    what-if. `replace(constants, sections=…)` puts other constants in the place of some.
    """

    device: Device
    like: Device
    """The device that the constants are looked up for."""
    kernels: str | None = None
    """Name of the software's own kernels: sections that begin with it, of the device's file or of
    another's of its architecture."""
    autotuned: bool = True
    """GEMMs in 4 bits run with the tile shapes of 8-bit ones, as engines tune them. Otherwise as
    they were measured, with one shape of 256 rows, which loses to 8 bits on few tokens."""
    power_limited: bool = True
    """Kernels run for as long as a board's power limits their clock; False for benchmarks of single
    kernels, which end before."""
    timed_with: str | None = None
    """The software whose GEMMs run: constants that were timed with it, on a device of the same
    architecture, come before the device's own."""
    tables: KernelTables = CATALOG_KERNELS
    sections: Mapping[tuple[KernelTable, str], Section] = field(default_factory=dict)
    """Constants given in place of the catalog's, by table and name of the section."""
    memo: dict[Any, Any] = field(default_factory=dict, init=False, repr=False)
    """What was resolved so far, and GEMM constants in units of the device: a value's own cache."""

    @property
    def changed(self) -> bool:
        """Whether the device has another datasheet than the one that constants are of."""
        return self.device != self.like

    def section(self, table: KernelTable, *names: str) -> Section:
        """Return the first of some sections that the device has, or that it inherits."""
        key = (table, *names)
        if key not in self.memo:
            own = tuple(f"{self.kernels}_{name}" for name in names) if self.kernels else ()
            self.memo[key] = self._resolved(table, names, own)
        section: Section = self.memo[key]
        return section

    def clock_ratio(self, section: Section) -> Any:
        """Return how much longer as many clock cycles take here than where they were timed."""
        if section.inherited_from is None:
            return 1.0
        key = ("clock", section.system)
        if key not in self.memo:
            timed_on = catalog.cluster_named(section.system).device
            self.memo[key] = clock_hz(timed_on) / clock_hz(self.device)
        return self.memo[key]

    def of_lesser_devices(self, table: KernelTable) -> tuple[KernelConstants, ...]:
        """Return the same device by constants of measured ones that its datasheet dominates.

        Constants of two devices may have been fitted to different versions of kernels. A device is
        not taken to be slower than by those of another of its architecture that has less of
        everything.
        """
        key = ("lesser", table)
        if key not in self.memo:
            systems = (catalog.cluster_named(name).device for name in catalog.names(table))
            lesser = (device for device in systems if dominates(self.like, device))
            self.memo[key] = tuple(replace(self, like=device) for device in lesser)
        found: tuple[KernelConstants, ...] = self.memo[key]
        return found

    def gemm(self, dtype: str) -> Section:
        """Return the constants of a GEMM: of the format, else of a wider one.

        The 16-bit section holds for all wider formats, and for any that a device's family was not
        measured in: shares of the peak of the very format.
        """
        key = ("gemm", "for", dtype)
        if key not in self.memo:
            product = self.device.multiplied(dtype).product
            names = gemm_sections(product)[BITS[product] < _TUNED and self.autotuned :]
            wide = BITS[product] >= _WIDE
            found = self.section("gemm", *names) if wide else self._resolved("gemm", names)
            inherited = found.inherited_from is not None
            self.memo[key] = self._fed(found, product) if inherited else found
        resolved: Section = self.memo[key]
        return resolved

    def conversion(self, dtype: str) -> Section:
        """Return the constants by which the input of a GEMM was converted to fewer bits.

        Conversion is a kernel of its own. Where the constants of the GEMM are of measurements
        without it, those of the nearest device are taken that was measured with it.
        """
        found = self.gemm(dtype)
        product = self.device.multiplied(dtype).product
        if BITS[product] >= _WIDE or found.constants["conversion_us"]:
            return found
        names = [name for name in gemm_sections(product) if _GEMM_SECTIONS[name] < _WIDE]
        for system, content in self.tables.nearest("gemm", self.like):
            for name in names:
                if name in content and content[name]["conversion_us"]:
                    section = section_of(system, name, content, self.like)
                    return self._on_this_datasheet("gemm", section)
        return found

    def _fed(self, section: Section, product: str) -> Section:
        """Return inherited constants at the power of the device.

        Where the measured device's power limited its benchmark as well, a device with more of it
        reaches more of the peak.
        """
        limited = self.section("gemm", "sustained")
        same = limited.system == section.system
        if not (same and section.name in limited.constants["burst_limited"]):
            return section
        share = section.constants["peak_share"]
        fed = share * self.fed_more(limited, product)
        share = max(share, min(fed, catalog.tuner_table("gemm")["most"]["peak_share"]))
        return section._replace(constants={**section.constants, "peak_share": share})

    def sustained_share(self, product: str) -> Any:
        """Return the share of a format's peak that the board's power feeds for long.

        None where nothing is known: formats wider than 16 bits, and runs that are too short.
        """
        if not self.power_limited or BITS[product] > _WIDE:
            return None
        key = ("sustained", product)
        if key not in self.memo:
            section = self.section("gemm", "sustained")
            names = (f"{name}_share" for name in gemm_sections(product))
            share = section.constants[next(name for name in names if name in section.constants)]
            self.memo[key] = share * self._gemms_in_steps * self._power_ratio(section, product)
        return self.memo[key]

    @property
    def _gemms_in_steps(self) -> Any:
        """The rate of GEMMs between other kernels over that without a gap, at the power limit.

        Other kernels draw less, and the regulator gives what they leave to the GEMMs. Of software
        whose other kernels were measured in such steps, on the architecture; else 1.
        """
        if "in_steps" not in self.section("attention", "prefill").constants:
            return 1.0
        section = self.section("gemm", "in_steps")
        return section.constants["rate"] if self._is_like(section.system) else 1.0

    def in_steps(self, name: str) -> Any:
        """Return how much longer attention takes in steps whose GEMMs hold the clock down.

        1 where that was not measured, in bursts, and on devices whose power feeds so much more that
        the clock stays up.
        """
        section = self.section("attention", name)
        measured = section.constants.get("in_steps")
        if measured is None or not self.power_limited:
            return 1.0
        key = ("in steps", name)
        if key not in self.memo:
            fed = self._power_ratio(section, _WIDE_FORMAT)
            self.memo[key] = largest(1.0, measured / fed)
        return self.memo[key]

    def _power_ratio(self, section: Section, product: str) -> Any:
        """Return `fed_more`, with the watts of a device whose figures were changed."""
        watts = (self.device.power_w or 1) / (self.like.power_w or 1)
        exponent = catalog.tuner_table("gemm")["power"]["exponent"]
        return self.fed_more(section, product) * watts**exponent

    def fed_more(self, section: Section, product: str) -> Any:
        """Return how much more of its peak a device's power feeds than the measured device's.

        Between devices with the same tensor cores an operation takes the same energy at the same
        clock, so the rate grows with a power of the watts per peak operation. Tensor cores of
        another architecture, or with more operations per SM, are not taken to need more energy.
        1 where a datasheet does not state the power.
        """
        own, measured = self.like, catalog.cluster_named(section.system).device
        stated = own.power_w is not None and measured.power_w is not None
        if not stated or product not in measured.peak_flop_per_s:
            return 1.0
        power = catalog.tuner_table("gemm")["power"]
        peaks = own.peak(product), measured.peak(product)
        boards = [power["of_gpu_w"].get(each.name, each.power_w) for each in (own, measured)]
        watts = (boards[0] / peaks[0]) / (boards[1] / peaks[1])
        wider = (peaks[0] / own.sms) / (peaks[1] / measured.sms) > power["same_cores"]
        if wider or own.architecture != measured.architecture:
            watts = max(1.0, watts)
        return watts ** power["exponent"]

    def _resolved(
        self, table: KernelTable, names: tuple[str, ...], own_names: tuple[str, ...] = ()
    ) -> Section:
        for name in names:
            if (table, name) in self.sections:
                return self.sections[table, name]
        known: set[str] = set()
        nearest = list(self.tables.nearest(table, self.like))
        if self.timed_with is not None and table == "gemm":
            nearest.sort(key=lambda each: not self._is_timed(each[0], each[1], names))
        for system, content in nearest if own_names else ():
            name = next((name for name in own_names if name in content), "")
            if name and self._is_like(system):
                return self._on_this_datasheet(table, section_of(system, name, content, self.like))
        for system, content in nearest:
            name = next((name for name in names if name in content), "")
            if name:
                return self._on_this_datasheet(table, section_of(system, name, content, self.like))
            known.update(content)
        raise UnknownNameError(f"{table} of {self.device.name}", names[0], sorted(known))

    def _on_this_datasheet(self, table: KernelTable, section: Section) -> Section:
        """Return inherited constants as they are on the device; its own are left as they are."""
        if section.inherited_from is None:
            return section
        measured = catalog.cluster_named(section.system).device
        return section._replace(
            constants=carried_over(table, section.name, section.constants, measured, self.like)
        )

    def _is_timed(self, system: str, content: Mapping[str, Any], names: tuple[str, ...]) -> bool:
        """Return whether a system of the architecture was timed with the software that runs."""
        sections = (content[name] for name in names if name in content)
        first = next(sections, None)
        timed = first is not None and first["fit"]["measured_with"] == self.timed_with
        return timed and self._is_like(system)

    def _is_like(self, system: str) -> bool:
        """Return whether a system's device is of the architecture, with its instructions."""
        device = catalog.cluster_named(system).device
        same = instructions_of(device) == instructions_of(self.like)
        return same and device.architecture == self.like.architecture


def kernels_of(device: Device) -> KernelConstants:
    """Return the catalog's constants of a device, its own or inherited."""
    return KernelConstants(device, device)


def section_of(system: str, name: str, content: Mapping[str, Any], device: Device) -> Section:
    """Return one section of a system's file, as it holds for a device."""
    constants = dict(content[name])
    fit = Fit(**constants.pop("fit"))
    own = catalog.cluster_named(system).device.name == device.name
    return Section(system, name, constants, fit, None if own else system)


def carried_over(
    table: KernelTable, name: str, constants: Mapping[str, Any], measured: Device, device: Device
) -> dict[str, Any]:
    """Return constants of GEMMs or attention measured on one device as they are on another.

    What takes so many clock cycles takes as many; what SMs move, they move per cycle as well; tiles
    of queries are those of the instructions (``tuner/inherited.toml``).

    Args:
        table: The table that has them; others state such constants in cycles.
        name: The section.
        constants: The constants.
        measured: The device that they were measured on.
        device: The other device.
    """
    rules = catalog.tuner_table("inherited")
    key = table if table == "gemm" else name
    # Cycles and units of another vendor are others; constants of systolic arrays were fitted to
    # steps on several generations, whatever their clocks.
    if measured.vendor != device.vendor or is_systolic(measured):
        return dict(constants)
    clocks = clock_hz(measured) / clock_hz(device)
    found = _scaled(constants, rules["cycles"].get(key, ()), clocks)
    for each in rules["through_sms"].get(key, ()):
        # Per share of the memory's rate, what of a byte's time is the SMs'.
        memory = 1 / rules["through_sms"]["most"]
        slower = (measured.sms / device.sms) * clocks
        faster = measured.memory_bytes_per_s / device.memory_bytes_per_s
        found[each] = 1 / (memory + largest(1 / found[each] - memory, 0) * slower / faster)
    if key == "prefill":
        found["tile_queries"] = rules["tile_queries"].get(
            instructions_of(device), found["tile_queries"]
        )
    return found


def _scaled(constants: Mapping[str, Any], names: Sequence[str], factor: Any) -> dict[str, Any]:
    """Return constants, some of them times a factor; those of tables inside likewise."""
    found: dict[str, Any] = {}
    for name, value in constants.items():
        if isinstance(value, Mapping):
            found[name] = _scaled(value, names, factor)
        else:
            found[name] = value * factor if name in names else value
    return found


def instructions_of(device: Device) -> str:
    """Return the kind of instructions that kernels for a device's matrix units are written in.

    >>> [instructions_of(catalog.cluster_named(name).device) for name in ("l40s", "b200_sxm")]
    ['mma', 'tcgen05']
    """
    if device.compute_capability is None:
        return device.architecture
    table = catalog.tuner_table("inherited")["instructions"]
    return str(table["by_capability"].get(device.compute_capability, table["usual"]))


def stated_clock_hz(device: Device) -> Any:
    """Return the boost clock of a datasheet, or an assumed one."""
    if device.boost_clock_hz is None:
        return 1e6 * catalog.tuner_table("start")["assumed_clock_mhz"]
    return device.boost_clock_hz


def clock_hz(device: Device) -> Any:
    """Return the clock in whose cycles constants of kernels are stated: the boost clock.

    Where nobody states it, that of the device of the architecture whose SMs have the most similar
    peak; SMs that have somewhat more operations per second have them at a higher clock.
    """
    if device.boost_clock_hz is not None or _COMMON not in device.peak_flop_per_s:
        return stated_clock_hz(device)
    peak = device.peak(_COMMON) / device.sms
    # Peaks of an SM and boost clocks of the catalog's devices of the architecture.
    clusters = (catalog.cluster_named(name) for name in catalog.names("clusters"))
    devices = [each.device for each in clusters if each.device.architecture == device.architecture]
    relatives = tuple(
        (float(each.peak(_COMMON) / each.sms), float(each.boost_clock_hz))
        for each in devices
        if each.boost_clock_hz is not None and _COMMON in each.peak_flop_per_s
    )
    if is_array(peak) or not relatives:
        return stated_clock_hz(device)
    ratio, clock = min(
        ((peak / other, clock) for other, clock in relatives), key=lambda each: abs(log(each[0]))
    )
    same = catalog.tuner_table("gemm")["power"]["same_cores"]
    return clock * ratio if 1 / same <= ratio <= same else clock


def nearest_systems(device: Device, systems: Iterable[str]) -> list[str]:
    """Return systems of the catalog by how near their devices are to a device."""
    devices = {name: catalog.cluster_named(name).device for name in systems}
    return sorted(devices, key=lambda system: _distance(device, devices[system]))


def gemm_sections(dtype: str) -> tuple[str, ...]:
    """Return the GEMM sections that hold for a number format, the best first.

    >>> gemm_sections("float16"), gemm_sections("int8"), gemm_sections("tf32")
    (('bf16',), ('fp8', 'bf16'), ('tf32', 'bf16'))
    """
    name = canonical_dtype(dtype)
    sections = tuple(section for section, most in _GEMM_SECTIONS.items() if BITS[name] <= most)
    return (name, *sections) if name == _TENSOR_FLOAT else sections


def dominates(one: Device, other: Device) -> bool:
    """Return whether a device has at least as much of everything as another of its architecture."""
    alike = one.architecture == other.architecture and one.name != other.name
    return alike and has_no_less(one, other)


def has_no_less(one: Device, other: Device) -> bool:
    """Return whether a device has at least as much of everything as another.

    Peaks of the formats that both multiply and that networks are computed in, memory and its
    bandwidth, SMs, clock and power.
    """
    formats = [name for name in PRODUCTS if name in other.peak_flop_per_s]
    pairs: list[tuple[Any, Any]] = [
        (one.peak_flop_per_s.get(name, 0), other.peak(name)) for name in formats
    ]
    pairs += [(one.memory_bytes, other.memory_bytes), (one.sms, other.sms)]
    pairs += [(one.memory_bytes_per_s, other.memory_bytes_per_s)]
    pairs += [(clock_hz(one), clock_hz(other)), (one.power_w or 0, other.power_w or 0)]
    return not any(anywhere(mine < theirs) for mine, theirs in pairs)


def is_systolic(device: Device) -> bool:
    """Return whether a device has few large matrix units, such as TPUs, rather than many SMs."""
    peaks = device.peak_flop_per_s
    if _WIDE_FORMAT not in peaks:
        return False
    least = catalog.tuner_table("gemm")["systolic"]["tflops_per_unit"]
    return bool(peaks[_WIDE_FORMAT] / device.sms >= 1e12 * least)


def in_sms(device: Device) -> Device:
    """Return a device as engines' kernels see it, whose blocks run on SMs.

    The peak of systolic arrays is shared by as many as an SM could be; others are unchanged.
    """
    if not is_systolic(device):
        return device
    most = 1e12 * catalog.tuner_table("gemm")["systolic"]["tflops_per_unit"]
    return replace(device, sms=ceil(device.peak_flop_per_s[_WIDE_FORMAT] / most))


def _distance(one: Device, other: Device) -> tuple[bool, bool, bool, bool, float, float]:
    """Return how far apart two devices are; what counts most stands first.

    Compute capabilities compare devices of one vendor only.
    """
    stated = one.compute_capability, other.compute_capability
    generations = [float(each or 0) for each in stated] if one.vendor == other.vendor else [0, 0]
    return (
        one.name != other.name,
        one.architecture != other.architecture,
        one.vendor != other.vendor,
        is_systolic(one) != is_systolic(other),
        abs(generations[0] - generations[1]),
        abs(log(float(one.memory_bytes_per_s) / float(other.memory_bytes_per_s))),
    )
