"""Which layer of a Hugging Face config has what: kinds of attention and of feed-forward part.

Kinds are named as in the configs: ``full_attention``, ``sliding_attention``, ``mamba``, …, and
``dense`` or ``experts``. Configs state them as a list with a word for each layer, as a pattern of
letters, as a period, as numbers of layers, or leave them to the family (`hf_families.toml`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, TypeAlias, TypeGuard

from shardcost.errors import FormatError, shown
from shardcost.formats.hf_fields import Config

_MOST_LAYERS: Final = 10_000
_SINGLE_PARTS: Final = {
    "M": ("mamba", None),
    "*": ("full_attention", None),
    "-": (None, "dense"),
    "E": (None, "experts"),
    "mamba": ("mamba", None),
    "linear_attention": ("mamba", None),
    "attention": ("full_attention", None),
    "full_attention": ("full_attention", None),
    "mlp": (None, "dense"),
    "moe": (None, "experts"),
}
"""Nemotron-H: each layer is one part, written as a letter or a word."""
_FIRST_DENSE: Final = (
    "first_k_dense_replace", "num_dense_layers", "moe_layer_num_skipped", "moe_layer_start_index",
)  # fmt: skip
"""Where the number of dense layers before the first with experts is stated."""
_EVERY: Final = (
    "interleave_moe_layer_step", "decoder_sparse_step", "moe_layer_freq", "moe_layer_interval",
    "moe_layer_frequency",
)  # fmt: skip
"""Where it is stated that every n-th layer has experts."""
_NOT_READ: Final = ("replace_with_linear", "parallel_blocks", "sparsify", "window_length")
"""What an architecture search may do to a layer that a `Block` cannot express."""
_MOST_MULT: Final = 1000
_NAS_MULTIPLE: Final = 256
"""Widths of DeciLM's feed-forward parts are rounded up to multiples of it."""

_IsFull: TypeAlias = Callable[[int], bool]
"""Takes a layer's number; returns whether it has full attention."""
_Pattern: TypeAlias = Callable[[Config], _IsFull]


class Kind(NamedTuple):
    """What a layer consists of; layers of one kind are alike."""

    attention: str | None
    part: str | None
    kv_heads: int | None = None
    """Where the layer has its own number."""
    width: int | None = None
    """Of the dense part, where the layer has its own."""
    reused_kv: bool = False
    """Keys and values are an earlier layer's."""
    reused_index: bool = False
    """The choice of tokens of a sparse index is an earlier layer's."""


def layer_count(config: Config) -> int:
    """Return the number of layers: as stated, else as a pattern names them."""
    if config.trait("attention_pattern") == "single_parts":
        words = _single_part_words(config)
        layers = config.whole("layers") or len(words)
        if len(words) != layers:
            reason = f"hybrid_override_pattern names {len(words)} layers of {layers}"
            raise FormatError(config.file, reason)
    else:
        # Each layer of LongCat-Flash has two of everything but experts.
        twice = config.trait("attention_pattern") == "two_in_one"
        layers = config.needed("layers") * (2 if twice else 1)
    if layers > _MOST_LAYERS:
        raise FormatError(config.file, f"{layers} layers are more than {_MOST_LAYERS}")
    if not layers:
        raise FormatError(config.file, "hybrid_override_pattern names no layer")
    return layers


def layer_kinds(config: Config) -> list[Kind]:
    """Return what each layer consists of."""
    layers = layer_count(config)
    if config.trait("attention_pattern") == "single_parts":
        if config.find("block_configs")[1] is not None:
            raise FormatError(config.file, "block_configs beside a pattern cannot be read yet")
        words = _single_part_words(config)
        unknown = next((word for word in words if word not in _SINGLE_PARTS), None)
        if unknown is not None:
            raise FormatError(config.file, f"layers of type {shown(unknown)} cannot be read yet")
        return [Kind(*_SINGLE_PARTS[word]) for word in words]
    if config.find("block_configs")[1] is not None:
        return _searched_layers(config, layers)
    if config.trait("attention_pattern") == "two_in_one":
        return [Kind("full_attention", "dense" if i % 2 else "experts") for i in range(layers)]
    types = _layer_types(config, layers)
    if not config.trait("feed_forward"):
        return [Kind(word, None) for word in types]
    sparse, reused = _sparse_layers(config, layers), _reusing_layers(config, layers)
    listed = config.numbers("num_key_value_heads_per_layer")
    if listed is not None and len(listed) != layers:
        reason = f"num_key_value_heads_per_layer names {len(listed)} layers of {layers}"
        raise FormatError(config.file, reason)
    # Gemma 4's smallest model has twice the width where it saves keys and values.
    wide = None
    if config.flag("use_double_wide_mlp", default=False):
        wide = 2 * config.needed("width")
    indexed = config.words("indexer_types", layers) or ["full"] * layers  # GLM-5.2
    return [
        Kind(
            types[i],
            "experts" if i in sparse else "dense",
            listed[i] if listed else None,
            wide if i in reused else None,
            i in reused,
            indexed[i] == "shared",
        )
        for i in range(layers)
    ]


def _single_part_words(config: Config) -> list[str]:
    """Return Nemotron-H's letter or word for each layer; ``|`` ends a pipeline stage."""
    pattern = config.find("hybrid_override_pattern")[1]
    if isinstance(pattern, str):
        return list(pattern.replace("|", ""))
    words = config.words("layers_block_type") or config.words("layer_types")
    if words is None:
        reason = "hybrid_override_pattern or layers_block_type is missing"
        raise FormatError(config.file, reason)
    return words


def _searched_layers(config: Config, layers: int) -> list[Kind]:
    """Return layers that an architecture search changed one by one (DeciLM, Llama-Nemotron)."""
    listed = config.content["block_configs"]
    if not isinstance(listed, list) or len(listed) != layers:
        found = len(listed) if isinstance(listed, list) else shown(listed)
        raise FormatError(config.file, f"block_configs names {found} layers of {layers}")
    kinds = (_searched_layer(config, entry, i) for i, entry in enumerate(listed))
    return [kind for kind in kinds if kind.attention or kind.part]


def _searched_layer(config: Config, entry: Any, i: int) -> Kind:
    place = f"block_configs[{i}]"
    parts = [entry.get(key) if isinstance(entry, dict) else None for key in ("attention", "ffn")]
    attention, part = ({} if each is None else each for each in parts)
    if not attention or not part or not all(isinstance(each, dict) for each in parts):
        raise FormatError(config.file, f"{place} needs objects attention and ffn")
    for name, table in ((".attention", attention), (".ffn", part), ("", entry)):
        for key in _NOT_READ:
            if table.get(key):
                raise FormatError(config.file, f"{place}{name}.{key} cannot be read yet")
    kv_heads = None if attention.get("no_op") else _searched_kv_heads(config, attention, place)
    width = None if part.get("no_op") else _searched_width(config, part, place)
    return Kind(
        None if kv_heads is None else "full_attention",
        None if width is None else "dense",
        kv_heads,
        width,
    )


def _searched_kv_heads(config: Config, attention: dict[str, Any], place: str) -> int:
    heads, stated = config.needed("heads"), attention.get("num_key_value_heads")
    group = attention.get("n_heads_in_group")
    if stated is None and _is_size(group):
        stated = heads // group
    if not _is_size(stated):
        raise FormatError(config.file, f"{place}.attention.n_heads_in_group is missing")
    return stated


def _searched_width(config: Config, part: dict[str, Any], place: str) -> int:
    """Return the width of a feed-forward part: two thirds of ``ffn_mult`` times the hidden size."""
    mult, width = part.get("ffn_mult"), part.get("intermediate_size")
    if width is None and isinstance(mult, int | float) and 0 < mult < _MOST_MULT:
        raw = int(2 * mult * config.needed("hidden") / 3)
        width = -(-raw // _NAS_MULTIPLE) * _NAS_MULTIPLE
    if not _is_size(width):
        raise FormatError(config.file, f"{place}.ffn.ffn_mult is missing")
    return width


def _is_size(value: Any) -> TypeGuard[int]:
    return type(value) is int and 0 < value < 10**9


# Attention -----------------------------------------------------------------------------------


def _layer_types(config: Config, layers: int) -> list[str]:
    """Return each layer's kind of attention: as listed, else by the habit of the family."""
    for key in ("layer_types", "layers_block_type"):
        listed = config.words(key, layers)
        if listed is not None and config.trait("attention_pattern") != "mamba_in_all":
            return listed
    by_number = config.numbers("attn_type_list")
    if by_number is not None:
        if len(by_number) != layers or set(by_number) - {0, 1}:
            reason = f"attn_type_list must be {layers} numbers, 0 or 1, got {shown(by_number)}"
            raise FormatError(config.file, reason)
        return ["full_attention" if number else "linear_attention" for number in by_number]
    other, pattern = _PATTERNS[config.trait("attention_pattern")]
    is_full = pattern(config)
    return ["full_attention" if is_full(i) else other for i in range(layers)]


def _every(key: str) -> _Pattern:
    """Return the pattern of full attention in every n-th layer, where `key` states n.

    EXAONE writes it as letters, L for local and G for global.
    """

    def pattern(config: Config) -> _IsFull:
        letters = config.find(key)[1]
        if isinstance(letters, str):
            if not letters or set(letters) - {"L", "G"}:
                reason = f"{key} must be a number or of letters L and G, got {shown(letters)}"
                raise FormatError(config.file, reason)
            return lambda i: letters[i % len(letters)] == "G"
        every = config.whole(key) or config.whole(f"_{key}") or 1
        return lambda i: (i + 1) % every == 0

    return pattern


def _if_windowed(inner: _Pattern) -> _Pattern:
    """Full attention everywhere, unless the config has a window; then as `inner` says."""

    def pattern(config: Config) -> _IsFull:
        window = config.whole("sliding_window", 0) or config.whole("attention_chunk_size", 0)
        return inner(config) if window else lambda _i: True

    return pattern


def _first_if_used(config: Config) -> _IsFull:
    """Full attention in the first layers, or in all if the window is not used (Qwen2)."""
    if not config.flag("use_sliding_window", default=False):
        return lambda _i: True
    first = config.whole("max_window_layers", least=0) or 0
    return lambda i: i < first


def _periodic(config: Config) -> _IsFull:
    """Full attention once in a period (Jamba)."""
    period, offset = config.needed("attn_layer_period"), config.whole("attn_layer_offset", 0) or 0
    return lambda i: i % period == offset


def _listed(config: Config) -> _IsFull:
    """Full attention in the layers that are listed (Bamba)."""
    listed = config.layer_numbers("attn_layer_indices", config.needed("layers")) or set()
    return lambda i: i in listed


def _listed_from_one(config: Config) -> _IsFull:
    """Full attention in the layers that are listed, the first of which is 1 (Kimi Linear)."""
    listed = config.layer_numbers("full_attn_layers", config.needed("layers") + 1)
    if listed is None:
        raise FormatError(config.file, "linear_attn_config.full_attn_layers is missing")
    return lambda i: i + 1 in listed


_PATTERNS: Final[Mapping[str, tuple[str, _Pattern]]] = {
    "none": ("", lambda _config: lambda _i: True),
    "window_in_all": ("sliding_attention", _if_windowed(lambda _config: lambda _i: False)),
    "window_after": ("sliding_attention", _if_windowed(_first_if_used)),
    "window_but_every": ("sliding_attention", _if_windowed(_every("sliding_window_pattern"))),
    "linear_but_every": ("linear_attention", _every("full_attention_interval")),
    "linear_but_listed": ("linear_attention", _listed_from_one),
    "mamba_but_period": ("mamba", _periodic),
    "mamba_but_listed": ("mamba", _listed),
    "mamba_in_all": ("mamba", lambda _config: lambda _i: False),
}
"""By the family table's word: what the other layers have, and which layers have full attention."""


def _reusing_layers(config: Config, layers: int) -> set[int]:
    """Return the layers that attend over keys and values of an earlier one."""
    if config.flag("use_cla", default=False):  # Hunyuan-Large
        factor = config.needed("cla_share_factor")
        return {i for i in range(layers) if i % factor}
    last = config.whole("num_kv_shared_layers", least=0) or 0  # Gemma 4's small models
    return set(range(max(layers - last, 0), layers))


# Feed-forward --------------------------------------------------------------------------------


def _sparse_layers(config: Config, layers: int) -> set[int]:
    """Return which layers have experts."""
    if (config.whole("experts", least=0) or 0) <= 1:
        return set()
    words = config.words("mlp_layer_types", layers)
    if words is not None:
        return {i for i, word in enumerate(words) if word == "sparse"}
    period = config.whole("expert_layer_period")
    if period is not None:
        offset = config.whole("expert_layer_offset", least=0) or 0
        return {i for i in range(layers) if i % period == offset}
    listed = config.layer_numbers("moe_layers", layers)
    if listed is None:
        listed = _enumerated(config, layers)
    if listed is not None:
        return listed
    first = next((n for key in _FIRST_DENSE if (n := config.whole(key, 0)) is not None), 0)
    every = next((n for key in _EVERY if (n := config.whole(key)) is not None), 1)
    last = config.find("moe_layer_end_index")[1]
    end = layers if last in (None, -1) else (config.whole("moe_layer_end_index", 0) or 0) + 1
    dense = config.layer_numbers("mlp_only_layers", layers) or set()
    return {i for i in range(first, min(end, layers)) if (i + 1) % every == 0 and i not in dense}


def _enumerated(config: Config, layers: int) -> set[int] | None:
    """Return the layers of Step-3's text of numbers, or of MiMo's list of a 0 or 1 for each."""
    text = config.find("moe_layers_enum")[1]
    if isinstance(text, str):
        numbers = text.split(",")
        if not all(each.strip().isdecimal() and int(each) < layers for each in numbers):
            reason = f"moe_layers_enum must be numbers of {layers} layers, got {shown(text)}"
            raise FormatError(config.file, reason)
        return {int(each) for each in numbers}
    marks = config.find("moe_layer_freq")[1]
    if not isinstance(marks, list):
        return None
    if len(marks) != layers or not all(type(mark) is int and mark in (0, 1) for mark in marks):
        reason = f"moe_layer_freq must be a number or {layers} of 0 and 1, got {shown(marks)}"
        raise FormatError(config.file, reason)
    return {i for i, mark in enumerate(marks) if mark}
