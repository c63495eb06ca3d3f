"""The noun `Layout`: how a model and its batch are divided over devices.

The degrees multiply: ``devices = tp x cp x pp x dp``. Expert parallelism (`ep`) does not add
devices; it spreads the experts over devices that the other degrees already provide, and the expert
tensor degree (`etp`) splits each expert over some of them. Degrees may be NumPy arrays that
broadcast, so that one `Layout` stands for millions.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations
from operator import itemgetter
from typing import Any, Final

from shardcost.checks import (
    Count,
    Noun,
    Quantity,
    at_least_one,
    flag,
    is_array,
    noun,
    one_of,
    share,
    whole,
)
from shardcost.errors import BadValueError, InfeasibleError, Rule, UnknownNameError
from shardcost.routing import DISPATCHERS, EXPERT_OVERLAPS, ROUTINGS

EP_DIVIDES: Final = Rule("ep_not_a_divisor_of_ranks", "ep must divide tp x cp x dp")
ETP_DIVIDES: Final = Rule("etp_not_a_divisor_of_ranks", "ep x etp must divide tp x cp x dp")
ETP_WITHIN_TP: Final = Rule("etp_not_a_divisor_of_tp", "etp must divide tp")
VIRTUAL_STAGES_NEED_PP: Final = Rule("virtual_stages_without_pp", "virtual stages need pp above 1")
SHARD_DEGREE_DIVIDES: Final = Rule(
    "shard_degree_not_a_divisor_of_replicas", "shard_degree must divide dp x cp"
)

RECOMPUTED_LAYERS_NEED_FULL: Final = Rule(
    "recompute_layers_without_full", "recompute_layers needs recompute full"
)
MODULES_NEED_1D: Final = Rule(
    "recompute_modules_without_1d", "modules are recomputed with scheme 1d alone"
)
STAGE_LAYERS_NEED_PP: Final = Rule(
    "stage_layers_without_pp", "layers of the first or last stage need pp above 1"
)
RECOMPUTE_MODULES: Final = (
    "core_attn",
    "layernorm",
    "mla_up_proj",
    "mlp",
    "moe",
    "moe_act",
    "shared_experts",
)
"""Modules of a layer that can be computed again by themselves, by the names of Megatron Core's
``--recompute-modules``."""
_RECOMPUTE: Final = ("none", "selective", "full")
_SELECTIVE: Final = "core_attn"
"""What ``selective`` alone computes again (Korthikanti et al. 2022, arXiv:2205.05198)."""
_SHORT = {"virtual_stages": "vp"}
_ANY_ORDER: Final = "tp-cp-dp-pp"
_ORDERS = tuple("-".join(order) for order in permutations(("tp", "cp", "dp", "pp")))


def _recomputed(name: str, value: Any) -> Any:
    """Return none, selective, full, or modules in one order: ``layernorm+moe_act``."""
    if value in _RECOMPUTE:
        return value
    if not isinstance(value, str):
        raise UnknownNameError(name, value, _RECOMPUTE)
    words = [word.strip() for word in value.replace(",", "+").split("+")]
    for word in words:
        if word not in RECOMPUTE_MODULES:
            raise UnknownNameError(name, word, (*_RECOMPUTE, *RECOMPUTE_MODULES))
    chosen = "+".join(word for word in RECOMPUTE_MODULES if word in words)
    return "selective" if chosen == _SELECTIVE else chosen


@noun
class Layout(Noun):
    """Degrees of parallelism and the structural choices that go with them.

    >>> Layout(tp=8, pp=4, dp=2).devices
    64
    """

    tp: Count = whole(default=1)
    """Tensor parallelism: devices that share each layer's matrices."""
    cp: Count = whole(default=1)
    """Context parallelism: devices that share each sequence."""
    ep: Count = whole(default=1)
    """Expert parallelism: devices over which the experts of a layer are spread."""
    etp: Count | None = whole(default=None)
    """Expert tensor parallelism: devices that share each expert's matrices. None: the tensor group,
    as far as `ep` leaves it."""
    redundant_experts: Count = whole(default=0, least=0)
    """Copies of busy experts beside the experts themselves, as expert load balancers place them
    (DeepSeek-V3, arXiv:2412.19437, section 3.4): `ep` divides the sum of both."""
    pp: Count = whole(default=1)
    """Pipeline parallelism: stages of consecutive layers."""
    dp: Count = whole(default=1)
    """Data parallelism: replicas that divide the batch."""
    virtual_stages: Count = whole(default=1)
    """Virtual stages per pipeline rank (VP); more than 1 interleaves them."""
    micro_batch: Count = whole(default=1)
    """Sequences that one replica works on at a time."""
    sequence_parallel: bool = flag(default=False)
    """Split the activations between tensor-parallel products along the sequence."""
    recompute: str = one_of(*_RECOMPUTE, default="none", otherwise=_recomputed)
    """Activations computed again in the backward pass instead of kept: none, those of attention
    (selective), those of some modules (``layernorm+moe_act``), or all."""
    recompute_layers: Count | None = whole(default=None)
    """With full recomputation: the layers of a stage that are computed again (block), or those
    that share one kept input (uniform). None: all of a stage, each by itself."""
    recompute_method: str = one_of("block", "uniform", default="block")
    """What `recompute_layers` counts: single layers from the first on, or layers of a group."""
    offload_activations: Quantity = share(default=0.0)
    """Share of the kept activations that waits in the host's memory for the backward pass."""
    offload_optimizer: Quantity = share(default=0.0)
    """Share of the optimizer's states that is in the host's memory."""
    offload_update: str = one_of("host", "device", default="host")
    """Who updates those weights: the host's processors, or the device with copied states."""
    first_stage_layers: Count | None = whole(default=None)
    """Layers of the first pipeline stage; None: as many as the others have."""
    last_stage_layers: Count | None = whole(default=None)
    """Layers of the last pipeline stage, likewise."""
    schedule: str = one_of("1f1b", "interleaved", "zero_bubble", default="1f1b")
    zero: int = whole(default=0, least=0)
    """ZeRO stage: what data parallelism shards (1: optimizer, 2: gradients, 3: weights)."""
    scheme: str = one_of("1d", "2d", "2.5d", "3d", "weight_gathered", default="1d")
    """How tensor parallelism partitions a matrix product."""
    context_scheme: str = one_of("ring", "all_gather", "ulysses", default="ring")
    imbalance: Quantity = at_least_one(default=1.0)
    """Tokens of the fullest rank's experts, over the mean of the ranks."""
    routing: str = one_of(*ROUTINGS, default="skewed")
    """How tokens spread over the experts: alike, at random, as the model's router prefers them, or
    by a power law."""
    dispatch: str = one_of("auto", *DISPATCHERS, default="auto")
    """What carries tokens to their experts and back; ``auto``: what the software uses."""
    expert_overlap: str = one_of("auto", *EXPERT_OVERLAPS, default="auto")
    """What hides that; ``auto``: what the software does."""
    shard_degree: Count | None = whole(default=None)
    """Ranks that share what ZeRO shards, where not all of data parallelism does (HSDP)."""
    order: str = one_of(*_ORDERS, default=_ANY_ORDER)
    """Placement on the devices, innermost (nearest neighbours) first."""

    @property
    def devices(self) -> Count:
        """Devices that the layout occupies."""
        return self.tp * self.cp * self.pp * self.dp

    @property
    def of_a_layer(self) -> tuple[Any, ...]:
        """What decides what a rank does in a layer: all but pipeline and placement, as a key.

        Only the share of layers that are recomputed depends on the stages.
        """
        return *_OF_A_LAYER(self.__dict__), None if self.recompute_layers is None else self.pp

    def recomputes(self, module: str) -> bool:
        """Return whether a module of a layer is computed again by itself.

        >>> Layout(recompute="selective").recomputes("core_attn")
        True
        """
        if self.recompute in _RECOMPUTE:
            return self.recompute == "selective" and module == _SELECTIVE
        return module in self.recompute.split("+")

    def broken_rules(self) -> Iterator[tuple[Rule, tuple[Any, ...], Any]]:
        """Yield the rules between degrees, with values to state and where each is broken."""
        yield EP_DIVIDES, (), (self.tp * self.cp * self.dp) % self.ep != 0
        if self.etp is not None:
            yield ETP_WITHIN_TP, (), self.tp % self.etp != 0
            yield ETP_DIVIDES, (), (self.tp * self.cp * self.dp) % (self.ep * self.etp) != 0
        yield VIRTUAL_STAGES_NEED_PP, (), (self.virtual_stages > 1) & (self.pp == 1)
        anywhere = self.tp > 0  # of an array of layouts, a mask
        if self.recompute not in _RECOMPUTE:
            yield MODULES_NEED_1D, (), anywhere & (self.scheme != "1d")
        if self.recompute_layers is not None:
            yield RECOMPUTED_LAYERS_NEED_FULL, (), anywhere & (self.recompute != "full")
        if self.first_stage_layers is not None or self.last_stage_layers is not None:
            yield STAGE_LAYERS_NEED_PP, (), self.pp == 1
        if self.shard_degree is not None:
            yield SHARD_DEGREE_DIVIDES, (), (self.dp * self.cp) % self.shard_degree != 0

    def check(self) -> None:
        """One layout asked for by itself must be possible; an array of them is masked instead."""
        if not is_array(self.zero) and self.zero > 3:
            raise BadValueError("Layout.zero", self.zero, "a ZeRO stage from 0 to 3")
        for rule, values, where in self.broken_rules():
            if not is_array(where) and where:
                raise InfeasibleError("Layout", self.short(), rule.reason(*values))

    def short(self) -> str:
        """Return the degrees above 1 in the field's compact form.

        >>> Layout(tp=8, pp=4).short()
        'tp8pp4'
        """
        names = ("tp", "cp", "ep", "pp", "dp", "virtual_stages")
        degrees = {_SHORT.get(name, name): getattr(self, name) for name in names}
        return "".join(f"{k}{v}" for k, v in degrees.items() if is_array(v) or v > 1) or "tp1"


_OF_A_LAYER: Final = itemgetter(
    *(
        name
        for name in Layout._names
        if name not in {"pp", "virtual_stages", "schedule", "order"} and "stage_layers" not in name
    )
)
