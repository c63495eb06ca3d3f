"""Multi-token prediction: layers behind the last one that predict further tokens.

Each joins the hidden states with the embedding of the next token, by two norms and a projection,
runs a layer like the model's last one, and shares the model's head (Gloeckle et al. 2024,
arXiv:2404.19737; in DeepSeek-V3's sequential form, arXiv:2412.19437, section 2.2). In training each
adds a loss of its own; in decoding one such layer drafts token after token.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from shardcost.model import Model
from shardcost.program.edges import embedding, head, norm
from shardcost.program.layer import layer
from shardcost.program.operations import Collective, Operation, Operations, OpId, Passes, together
from shardcost.program.setting import Setting, linear
from shardcost.workload import Decode, Train, Workload

_NAME: Final = "MTP"


def predicted_further(s: Setting, model: Model, workload: Workload) -> Passes:
    """Return what the last stage does to predict further tokens; nothing where none are."""
    if isinstance(workload, Train) and workload.mtp_layers:
        return _named(_once(s, model), workload.mtp_layers)
    if isinstance(workload, Decode) and workload.draft_tokens:
        # A draft is one token of each sequence.
        return _named(_once(replace(s, sequence_tokens=1), model), workload.draft_tokens)
    return Passes(())


def _once(s: Setting, model: Model) -> Passes:
    """Return one further prediction, from the hidden states to the logits and the loss."""
    return together(
        embedding(s),
        norm(s, "embedding norm"),
        norm(s, "hidden norm"),
        linear(s, "projection", 2 * s.hidden, s.hidden),
        layer(s, model.blocks[-1]),
        head(s, model),
    )


def _named(passes: Passes, count: int) -> Passes:
    """Return passes that happen so many times, their operations called after the prediction."""
    return Passes(*(_renamed(operations, count) for operations in passes))


def _renamed(operations: Operations, count: int) -> Operations:
    return tuple(_of_prediction(op, count) for op in operations)


def _of_prediction(op: Operation, count: int) -> Operation:
    name, times = f"{_NAME} {op.name}", op.count * count
    if isinstance(op, Collective):
        behind = tuple(_id(each) for each in op.hides_behind)
        split_with = None if op.split_with is None else _id(op.split_with)
        return op._replace(name=name, count=times, hides_behind=behind, split_with=split_with)
    return op._replace(name=name, count=times, id=None if op.id is None else _id(op.id))


def _id(of: OpId) -> OpId:
    return of._replace(part=f"{_NAME} {of.part}")
