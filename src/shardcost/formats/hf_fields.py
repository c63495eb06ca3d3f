"""The fields of a Hugging Face config, and what its family leaves unsaid.

`Config` looks each quantity up under its aliases and checks it on the way out, so that a damaged
or hostile file ends in one line that names the field. `families` reads `hf_families.toml`.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

from shardcost.errors import FormatError, ShardcostError, shown
from shardcost.scalars import whole_number

_MOST: Final = 10**9
"""Of any size in a config: products of a few of them still fit 64 bits."""
ALIASES: Final[Mapping[str, tuple[str, ...]]] = {
    "layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "hidden": ("hidden_size", "n_embd", "d_model", "n_embed"),
    "heads": ("num_attention_heads", "n_head", "n_heads", "num_heads"),
    "kv_heads": ("num_key_value_heads", "num_kv_heads", "attn_config.kv_n_heads"),
    "head_dim": ("head_dim", "attention_head_dim", "head_size"),
    "width": (
        "intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size", "ffn_config.ffn_hidden_size",
    ),
    "experts": (
        "num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts",
        "ffn_config.moe_num_experts",
    ),
    "top_k": (
        "num_experts_per_tok", "experts_per_token", "num_experts_per_token", "top_k_experts",
        "moe_topk", "moe_k", "moe_top_k", "ffn_config.moe_top_k",
    ),
    "expert_width": (
        "moe_intermediate_size", "expert_intermediate_size", "expert_ffn_hidden_size",
    ),
    "shared_count": (
        "n_shared_experts", "num_shared_experts", "num_shared_expert", "moe_num_shared_experts",
    ),
    "shared_width": (
        "shared_expert_intermediate_size", "shared_intermediate_size",
        "moe_shared_expert_intermediate_size", "share_expert_dim",
    ),
    "expert_groups": ("n_group", "num_expert_group"),
    "state": ("ssm_state_size", "mamba_d_state"),
    "state_heads": ("mamba_num_heads", "mamba_n_heads"),
    "state_head_dim": ("mamba_head_dim", "mamba_d_head"),
    "state_inner": ("mamba_d_ssm", "mamba_intermediate_size"),
    "state_groups": ("n_groups", "mamba_n_groups"),
    "state_kernel": ("conv_kernel", "mamba_d_conv"),
    "state_expand": ("expand", "mamba_expand"),
    "vocab": ("vocab_size", "padded_vocab_size"),
    "context": (
        "max_position_embeddings", "n_positions", "max_seq_len", "max_sequence_length",
        "seq_length", "model_max_length",
    ),
    "mtp_layers": (
        "num_nextn_predict_layers", "num_mtp_layers", "num_mtp_modules", "mtp_num_hidden_layers",
        "mtp_num_layers",
    ),
    "dtype": ("dtype", "torch_dtype"),
}  # fmt: skip
"""For each quantity, the names it goes by; a dot descends into a nested table."""


_RECURRENT_KEYS: Final = ("mamba_", "ssm_", "state_size", "rwkv")
_SHAPING: Final = re.compile(
    r"expert|moe_|_moe|ssm|mamba|linear_|latent|lora_rank|altup|laurel|hyper|compress|_cla|cla_"
    r"|layer_group|share_|_shared|per_layer|_idxs|block_configs|v_head_dim|indexer_types|hc_mult"
    r"|lru_|recurrent|block_types|hybrid_"
)
"""Parts of names whose fields change the shape of a model."""
_NOT_SHAPING: Final = re.compile(
    r"loss|router|rout|scal|norm_|_norm|renorm|jitter|dropout|bias|score|aux|capacity|drop|gate_act"
    r"|chunk|kernel|cache|dtype|multiplier|act$|_act_|softmax|eps|parallel|device|impl|overlap|dt_"
    r"|time_step|alpha|beta|factor|dense_grad|world|token_id|sequence_|method|func|first_expert"
    r"|every_n|activation|rope|seed|init|mup|offload|prefetch|use_mamba|gemm|dispatcher|_tol|lazy"
    r"|norm$|limit|correction|_type$|expert_model|quant|implementation|mtp_"
)
"""Parts of names of fields about routing, training and kernels."""
_ACTIVATION_KEYS: Final = ("hidden_act", "hidden_activation", "activation_function", "activation")


class UnknownFamilyWarning(UserWarning):
    """The model_type is not in the family table; the config was read by its field names."""


class Config:
    """The fields of one config, each looked up by its aliases and checked on the way out."""

    def __init__(self, content: dict[str, Any], file: str) -> None:
        self.content = content
        self.file = file
        self.caveats: list[str] = []
        self.used: set[str] = set()
        """Top-level fields that a reader has looked at."""
        model_type = content.get("model_type")
        if not isinstance(model_type, str | None):
            raise FormatError(file, f"model_type must be a text, got {shown(model_type)}")
        self.model_type = model_type or "unstated"
        self.family = self._known_family() or self._unknown_family()
        for place, name in self.family["renamed"].items():
            value = self._at(place)
            if value is not None:
                self.content[name] = value
        for key, value in self.family["config_defaults"].items():
            self.content.setdefault(key, value)

    def _known_family(self) -> dict[str, Any] | None:
        """Return the traits of the family, by the class that implements it, else by model_type."""
        stated = self.content.get("architectures")
        by_type, by_class = _table()
        first = stated[0] if isinstance(stated, list) and stated else None
        traits = by_class.get(first) if isinstance(first, str) else None
        return traits or by_type.get(self.model_type)

    def _unknown_family(self) -> dict[str, Any]:
        """Return Llama's traits for a family that is not in the table, and warn."""
        recurrent = sorted(key for key in self.content if key.startswith(_RECURRENT_KEYS))
        if recurrent:
            reason = f"has state-space layers ({recurrent[0]}) and is not a known family"
            raise FormatError(self.file, f"model_type {shown(self.model_type)} {reason}")
        activation = next((self.content[k] for k in _ACTIVATION_KEYS if k in self.content), "silu")
        gated = "silu" in str(activation) or "glu" in str(activation)
        caveat = (
            f"model_type {shown(self.model_type)} is not a known family: read by its field names,"
            f" {'three' if gated else 'two'} feed-forward matrices, biases and norms as in Llama"
        )
        self.caveats.append(caveat)
        warnings.warn(f"{self.file}: {caveat}", UnknownFamilyWarning, stacklevel=6)
        return {**families()["llama"], "family": "unknown", "gated": gated}

    def find(self, quantity: str) -> tuple[str, Any]:
        """Return the first alias that is present and not null, and its value."""
        aliases = ALIASES.get(quantity, (quantity,))
        found = [(alias, self._at(alias)) for alias in aliases]
        return next((each for each in found if each[1] is not None), (quantity, None))

    def _at(self, place: str) -> Any:
        """Return the value of a field, None if there is none; a dot descends into a table."""
        value: Any = self.content
        first, *rest = place.split(".")
        self.used.add(first)
        for part in (first, *rest):
            value = value.get(part) if isinstance(value, dict) else None
        return value

    def ignored_shape_fields(self) -> list[str]:
        """Return fields that look as if they change the shape, and that no reader looked at."""
        return sorted(
            key
            for key, value in self.content.items()
            if key not in self.used
            and value not in (None, False, 0, 1, "", [], {})
            and _SHAPING.search(str(key))
            and not _NOT_SHAPING.search(str(key))
        )

    def whole(self, quantity: str, least: int = 1) -> int | None:
        """Return a whole number of at least `least`, or None if the config does not have it."""
        alias, value = self.find(quantity)
        if value is None:
            return None
        if isinstance(value, list) and value:
            value = self._same_everywhere(alias, value)
        try:
            number = whole_number(alias, value, least)
        except ShardcostError as error:
            raise FormatError.within(self.file, error) from None
        if number > _MOST:
            raise FormatError(self.file, f"{alias} must be at most {_MOST}, got {shown(number)}")
        return number

    def _same_everywhere(self, alias: str, listed: list[Any]) -> Any:
        """Return the one value of a list with a value for each layer."""
        first = listed[0]
        if any(type(each) is not type(first) or each != first for each in listed):
            reason = f"{alias} differs from layer to layer, which cannot be read: {shown(listed)}"
            raise FormatError(self.file, reason)
        return first

    def needed(self, quantity: str) -> int:
        """Return a whole number that the config must have."""
        value = self.whole(quantity)
        if value is None:
            raise FormatError(self.file, f"{self._missing(quantity)} is missing")
        return value

    def require(self, *quantities: str) -> None:
        """Raise one error that names everything missing at once."""
        missing = ", ".join(self._missing(q) for q in quantities if self.whole(q) is None)
        if missing:
            kind = f"a model of type {shown(self.model_type)}"
            raise FormatError(self.file, f"cannot be read as {kind}: missing {missing}")

    def flag(self, key: str, *, default: bool) -> bool:
        """Return a true-or-false field."""
        value = self._at(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise FormatError(self.file, f"{key} must be true or false, got {shown(value)}")
        return value

    def words(self, key: str, length: int | None = None) -> list[str] | None:
        """Return a list of texts, `length` of them, or None if the config does not have it."""
        words = self._list(key, str, "texts")
        if words is not None and length is not None and len(words) != length:
            raise FormatError(self.file, f"{key} names {len(words)} layers of {length}")
        return words

    def numbers(self, key: str) -> list[int] | None:
        """Return a list of whole numbers, or None if the config does not have it."""
        return self._list(key, int, "numbers")

    def _list(self, key: str, kind: type, plural: str) -> list[Any] | None:
        value = self._at(key)
        if value is None:
            return None
        if not isinstance(value, list) or not all(type(item) is kind for item in value):
            raise FormatError(self.file, f"{key} must be a list of {plural}, got {shown(value)}")
        return value

    def layer_numbers(self, key: str, layers: int) -> set[int] | None:
        """Return the layers that a list names, or None if the config does not have it."""
        listed = self.numbers(key)
        beyond = [i for i in listed or () if not 0 <= i < layers]
        if beyond:
            raise FormatError(self.file, f"{key} names layer {shown(beyond[0])} of {layers}")
        return None if listed is None else set(listed)

    def trait(self, name: str) -> Any:
        """Return what the family table says, asking the config where the table says so."""
        trait = self.family[name]
        if not isinstance(trait, dict):
            return trait
        said = self.flag(trait["key"], default=trait["default"])
        return (trait["when_true"] if said else "none") if "when_true" in trait else said

    @staticmethod
    def _missing(quantity: str) -> str:
        return " or ".join(ALIASES.get(quantity, (quantity,))[:3])


def families() -> dict[str, dict[str, Any]]:
    """Return the family table: for each model_type, its traits with the defaults filled in."""
    return _table()[0]


@cache  # parsing the table takes 5 ms
def _table() -> tuple[dict[str, dict[str, Any]], dict[str, dict[str, Any]]]:
    """Return the family table by model_type, and by the class that implements a model."""
    import tomllib

    with Path(__file__).with_name("hf_families.toml").open("rb") as file:
        content = tomllib.load(file)
    by_type: dict[str, dict[str, Any]] = {}
    by_class: dict[str, dict[str, Any]] = {}
    for name, family in content["family"].items():
        unknown = set(family) - set(content["default"]) - {"model_types", "architectures"}
        if unknown:
            raise FormatError("hf_families.toml", f"unknown key {min(unknown)}")
        traits = {**content["default"], **family, "family": name}
        by_type |= dict.fromkeys(family["model_types"], traits)
        by_class |= dict.fromkeys(family.get("architectures", ()), traits)
    return by_type, by_class
