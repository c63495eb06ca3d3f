"""What is asked: `Question`, and the blocks of cells into which its grid is cut.

A question and a block together are a task that any process on any machine can do by itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import field, replace
from functools import cached_property
from itertools import accumulate
from typing import Any, Final, cast

import numpy as np
from numpy.typing import NDArray

from shardcost.cluster import Cluster
from shardcost.errors import Reason, Rule
from shardcost.estimate.interval import farthest_residuals
from shardcost.layout import Layout
from shardcost.machine import Machine, machine_of
from shardcost.model import Model
from shardcost.options import QUESTIONS, SOFTWARE
from shardcost.records import NamedTuple, dataclass
from shardcost.search.objectives import Constraints, Figures, Objective
from shardcost.search.space import CHOICES, SIZES, Family, Meshes, Space
from shardcost.software import Software
from shardcost.workload import Decode, Prefill, Train, Workload

_DEGREE: Final = Rule("degree_not_a_divisor_of_gpus", "{}={} does not divide the GPUs")
_NO_MESH: Final = Rule("degrees_never_make_gpus", "tp x cp x pp x dp never makes {} GPUs")
_MIXER: Final = 2654435761
"""Knuth's multiplier for 32 bits (The Art of Computer Programming, vol. 3, section 6.4)."""


class Block(NamedTuple):
    """Some meshes of some families, with all sizes."""

    families: tuple[int, ...]
    """Which of the question's: all of one `Family.shape`."""
    start: int
    """The first mesh, and the one after the last."""
    stop: int


@dataclass(frozen=True, eq=False)
class Question:
    """One model and workload on one cluster by one software: where to look and for what."""

    model: Model
    cluster: Cluster
    workload: Workload
    software: Software
    space: Space
    """With every axis filled in (`Space.complete`)."""
    asked: Space = field(default_factory=Space)
    """As it was asked for: None where an axis is free."""
    constraints: Constraints = field(default_factory=Constraints)
    objective: Objective = field(default_factory=Objective)
    number: int = 0
    """Which of several questions of one search, and the number of its first cell."""
    first_cell: int = 0

    def workload_of(self, batch: Any) -> Workload:
        """Return the workload with a batch of its own; in training that is given."""
        given = self.workload
        return given if isinstance(given, Train) else replace(given, batch=batch)  # type: ignore[type-var]

    @property
    def prompts(self) -> bool:
        """Whether a prompt is priced beside the decoding, for its time to the first token."""
        return isinstance(self.workload, Decode) and self.constraints.max_ttft_s is not None

    def prompt_of(self, batch: Any) -> Prefill:
        """Return the prefill to be priced beside decoding: prompts as long as the context."""
        decode = cast("Decode", self.workload)
        return Prefill(batch=batch, prompt_tokens=decode.context_tokens, **decode.formats)

    @cached_property
    def slowdowns(self) -> tuple[NDArray[np.int64], dict[str, NDArray[np.float64]]]:
        """The numbers of devices, and by phase what times are multiplied by at the confidence.

        On the devices that a layout has, the errors of similar measurements depend on the question
        alone, or are taken at their most (`farthest_residuals`).
        """
        share = self.constraints.confidence
        assert share is not None  # noqa: S101
        counts = np.array(sorted(set(self.space.gpus)))
        works = [self.workload, *([self.prompt_of(1)] if self.prompts else [])]

        def reach(work: Workload, gpus: int) -> float:
            place = (self.model, self.cluster, Layout(dp=gpus), work, self.software)
            return float(farthest_residuals(*place).quantile(share))

        return counts, {
            work.phase: np.exp([reach(work, int(gpus)) for gpus in counts]) for work in works
        }

    @property
    def place(self) -> str:
        """The cluster, and the network that joins its nodes."""
        network = self.cluster.network
        return self.cluster.name + (f" ({network.name})" if network else "")

    @cached_property
    def own(self) -> dict[str, Any]:
        """What all of its layouts share and other questions may have otherwise, by axis."""
        work = type(self.workload)
        named = {option.name: option for option in QUESTIONS if work in option.nouns}
        return {
            "model": self.model.name,
            "cluster": self.place,
            SOFTWARE.name: self.software.name,
            **{
                name: getattr(self.workload, each.field_of(work).name)
                for name, each in named.items()
            },
        }

    @cached_property
    def families(self) -> list[Family]:
        """Every combination of choices."""
        return self.space.families()

    def runs(self, family: Family) -> Software:
        """Return the software with a family's overlap, the same object for the same overlap."""
        if family.overlap not in self._softwares:
            self._softwares[family.overlap] = family.software(self.software)
        return self._softwares[family.overlap]

    @cached_property
    def _softwares(self) -> dict[tuple[str, bool], Software]:
        return {}

    @property
    def machines(self) -> list[Machine]:
        """The machines that its families were priced on so far."""
        return [machine_of(self.cluster, software) for software in self._softwares.values()]

    @cached_property
    def meshes(self) -> Meshes:
        """Every way to spread the devices over the degrees, without context parallelism first.

        Otherwise they are mixed, always in the same way: in order, those of few devices, which are
        soon rejected, would all be in the first blocks, and progress would say nothing of the end.
        """
        found = self.space.meshes()
        mixed = np.arange(found.number) * _MIXER % 2**32
        return found.some(np.lexsort((mixed, found.cp > 1)))

    @cached_property
    def contradictions(self) -> Counter[Reason]:
        """Degrees asked for that no mesh has, by reason: they are no cells of the grid."""
        space, found = self.space, Counter[Reason]()
        gpus = space.gpus or ()
        left = 1
        for name in ("tp", "cp", "pp", "dp"):
            values: tuple[int, ...] = getattr(space, name) or ()
            lost = [each for each in values if all(count % each for count in gpus)]
            found.update(_DEGREE.reason(name, each) for each in lost)
            left *= len(values) - len(lost)
        if left and not self.meshes.number:
            counts = ", ".join(map(str, gpus))
            found[_NO_MESH.reason(counts)] += left
        return found

    @property
    def sequences(self) -> tuple[int, ...]:
        """Values of the grid's second axis: sequences at a time."""
        space = self.space
        return (space.micro_batch if isinstance(self.workload, Train) else space.batch) or (1,)

    def virtual_stages(self, schedule: str) -> tuple[int, ...]:
        """Return the virtual stages of a schedule: more than one are interleaved."""
        asked: tuple[int, ...] = self.space.virtual_stages or (1,)
        chosen = tuple(each for each in asked if (each > 1) == (schedule == "interleaved"))
        return chosen or asked

    def _cells_per_mesh(self, family: int) -> int:
        return len(self.sequences) * len(self.virtual_stages(self.families[family].schedule))

    def cells_in(self, block: Block) -> int:
        """Return how many cells a block has."""
        return (block.stop - block.start) * sum(map(self._cells_per_mesh, block.families))

    @cached_property
    def first_cells(self) -> list[int]:
        """The number of each family's first cell, and of the first cell after all of them."""
        meshes = self.meshes.number
        sizes = (meshes * self._cells_per_mesh(each) for each in range(len(self.families)))
        return list(accumulate(sizes, initial=self.first_cell))

    @property
    def cells(self) -> int:
        """All cells of all families."""
        return self.first_cells[-1] - self.first_cell

    def widest_axis(self) -> tuple[str, float]:
        """Return the axis whose values divide the cells most, and by how much one of them does."""
        counts: dict[str, float] = {
            name: len(getattr(self.space, name)) for name in (*SIZES, *CHOICES)
        }
        for name, column in self.meshes._asdict().items():
            most = np.unique(column, return_counts=True)[1].max(initial=1)
            counts[name] = self.meshes.number / int(most)
        counts.pop("gpus")
        return max(counts.items(), key=lambda item: item[1])

    @cached_property
    def whole_sequences(self) -> int:
        """How many meshes, the first ones, leave sequences whole."""
        return int((self.meshes.cp == 1).sum())

    def plane(self, figures: Figures) -> tuple[Any, Any]:
        """Return two figures to be small, between which a user may have to choose.

        Decoding: device-seconds of a token and seconds between a user's tokens. Otherwise the time
        of a step against devices, or against memory where the devices are given.
        """
        if isinstance(self.workload, Decode):
            return figures.gpu_s_per_token, figures.time_s / self.workload.kept_tokens
        if isinstance(self.workload, Prefill):
            return figures.gpu_s_per_token, figures.time_s
        several = len(self.space.gpus or ()) > 1
        return figures.time_s, figures.gpus if several else figures.memory_bytes

    def blocks(self, most_cells: int) -> Iterator[Block]:
        """Yield the blocks, each of one kind of attention and of about so many cells at most.

        A rank with the whole sequence attends in another way than one with a part of it. Families
        that are possible on the same meshes are priced together: they share nearly everything.
        """
        alike: dict[tuple[Any, ...], list[int]] = {}
        for number, family in enumerate(self.families):
            alike.setdefault(family.shape, []).append(number)
        for first, last in ((0, self.whole_sequences), (self.whole_sequences, self.meshes.number)):
            for families in map(tuple, alike.values()):
                step = max(1, most_cells // sum(map(self._cells_per_mesh, families)))
                for start in range(first, last, step):
                    yield Block(families, start, min(start + step, last))
