"""One rank of a real tensor-parallel transformer; rank 0 prints the collectives that it issued.

Run by `test_program_on_ranks.py`, once per rank, or by hand::

    torchrun --nproc-per-node 4 tests/tensor_parallel_block.py "$(cat shapes.json)"

The only argument is a JSON list of objects with the fields of `Shape`. Each small transformer, with
embedding, head and loss, is split by `torch.distributed.tensor.parallel` in each of the plans, run
forward and backward in each of the number formats on gloo, and compared with the same model in one
piece. One JSON object per run goes to one line of the output.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from dataclasses import dataclass
from datetime import timedelta
from functools import reduce
from itertools import product
from operator import add
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    PrepareModuleOutput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

SILENCE_S = 60
"""A rank that waits so long for another gives up."""
PLANS = ("plain", "sequence_parallel")
DTYPES = ("float32", "bfloat16")
COLLECTIVES = {
    "all_reduce": "all_reduce",
    "all_gather_into_tensor": "all_gather",
    "reduce_scatter_tensor": "reduce_scatter",
}
"""Names of the operators of torch, and ours. Any other that communicates keeps its name."""


@dataclass(frozen=True)
class Shape:
    """What is computed."""

    name: str
    batch: int
    sequence: int
    hidden: int
    heads: int
    kv_heads: int
    width: int
    gated: bool
    parallel: bool
    layers: int
    vocabulary: int

    @property
    def head_dim(self) -> int:
        """Elements of one head."""
        return self.hidden // self.heads


def matrix(inputs: int, outputs: int) -> nn.Linear:
    """Return weights without a bias."""
    return nn.Linear(inputs, outputs, bias=False)


class Attention(nn.Module):
    """Causal attention over however many heads the projections yield: all, or a rank's own."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.head_dim = shape.head_dim
        self.query = matrix(shape.hidden, shape.hidden)
        self.key = matrix(shape.hidden, shape.kv_heads * shape.head_dim)
        self.value = matrix(shape.hidden, shape.kv_heads * shape.head_dim)
        self.out = matrix(shape.hidden, shape.hidden)

    def forward(self, x: Tensor) -> Tensor:
        """Return the projected output."""
        query, key, value = (
            each(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
            for each in (self.query, self.key, self.value)
        )
        found = functional.scaled_dot_product_attention(
            query, key, value, is_causal=True, enable_gqa=True
        )
        return self.out(found.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


class FeedForward(nn.Module):
    """Two matrices, or three where the activation is gated."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.up = matrix(shape.hidden, shape.width)
        self.gate = matrix(shape.hidden, shape.width) if shape.gated else None
        self.out = matrix(shape.width, shape.hidden)

    def forward(self, x: Tensor) -> Tensor:
        """Return the projected output."""
        inner = functional.gelu(self.up(x))
        return self.out(inner if self.gate is None else inner * self.gate(x))  # type: ignore[no-any-return]


class Branch(nn.Module):
    """What is added to the residual stream at once: one part, or in a parallel block both."""

    def __init__(self, *parts: nn.Module) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)

    def forward(self, x: Tensor) -> Tensor:
        """Return the sum of the parts."""
        # Not `sum`, which adds a 0 first: no sum that is still to be made can take it up.
        return reduce(add, (part(x) for part in self.parts))


class Layer(nn.Module):
    """Norms and branches in turn."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        parts = (Attention(shape), FeedForward(shape))
        branches = [Branch(*parts)] if shape.parallel else [Branch(part) for part in parts]
        self.branches = nn.ModuleList(branches)
        self.norms = nn.ModuleList(nn.LayerNorm(shape.hidden) for _ in branches)

    def forward(self, x: Tensor) -> Tensor:
        """Return the residual stream after the layer."""
        for norm, branch in zip(self.norms, self.branches, strict=True):
            x = x + branch(norm(x))
        return x


class Transformer(nn.Module):
    """Embedding, layers, norm and head."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.embedding = nn.Embedding(shape.vocabulary, shape.hidden)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.norm = nn.LayerNorm(shape.hidden)
        self.head = matrix(shape.hidden, shape.vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits."""
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))  # type: ignore[no-any-return]


def split(model: Transformer, mesh: DeviceMesh, between: Placement) -> None:
    """Split a model as Megatron does; `between` the products activations are whole or split."""
    styles: dict[str, Any] = {
        "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=between),
        "head": ColwiseParallel(input_layouts=between, use_local_output=False),
    }
    if isinstance(between, Shard):
        styles["norm"] = SequenceParallel()
    for number, layer in enumerate(model.layers):
        for index in range(len(layer.branches)):  # type: ignore[arg-type]
            path = f"layers.{number}.branches.{index}"
            if isinstance(between, Shard):
                styles[f"layers.{number}.norms.{index}"] = SequenceParallel()
            # Column-parallel products share one copy of their input, so that one collective
            # serves them all; row-parallel ones end in a sum that is still to be made.
            styles |= {
                path: PrepareModuleInput(
                    input_layouts=(between,), desired_input_layouts=(Replicate(),)
                ),
                f"{path}.parts.*.out": RowwiseParallel(
                    output_layouts=Partial(), use_local_output=False
                ),
            }
            columns = ("query", "key", "value", "up", "gate")
            styles |= {f"{path}.parts.*.{name}": ColwiseParallel() for name in columns}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a plan may name parts that only some layers have
        parallelize_module(model, mesh, styles)
        for layer in model.layers:
            summed = PrepareModuleOutput(output_layouts=Partial(), desired_output_layouts=between)
            for branch in layer.branches:  # type: ignore[union-attr]
                parallelize_module(branch, mesh, summed)  # type: ignore[arg-type]


class Listener(TorchDispatchMode):
    """Notes every collective with its bytes, counted over the whole array as nccl-tests does."""

    def __init__(self, ranks: int) -> None:
        super().__init__()
        self.ranks = ranks
        self.heard: list[tuple[str, int]] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if DTensor in types:
            return NotImplemented  # first a split tensor says what it means for the local ones
        space, name = func.name().split("::")
        name = name.partition(".")[0]
        communicates = "c10d" in space or space == "_dtensor"
        if communicates and name not in {"wait_tensor", "_wrap_tensor_autograd"}:
            self.heard.append((COLLECTIVES.get(name, name), self._bytes(name, args[0])))
        return func(*args, **(kwargs or {}))

    def _bytes(self, name: str, tensor: Tensor) -> int:
        whole = tensor.numel() * tensor.element_size()
        return whole * (self.ranks if name.startswith("all_gather") else 1)


def loss_of(model: Transformer, tokens: Tensor) -> Tensor:
    """Return the mean cross entropy of each token with itself, in 32 bits."""
    logits = model(tokens)
    return functional.cross_entropy(logits.float().flatten(0, 1), tokens.flatten())


def run(shape: Shape, mesh: DeviceMesh, plan: str, dtype: str) -> dict[str, Any]:
    """Return what one forward and one backward pass issued, and how far the result is off."""
    torch.manual_seed(0)
    whole = Transformer(shape).to(getattr(torch, dtype))
    ours = Transformer(shape).to(getattr(torch, dtype))
    ours.load_state_dict(whole.state_dict())
    split(ours, mesh, Shard(1) if plan == "sequence_parallel" else Replicate())
    tokens = torch.randint(shape.vocabulary, (shape.batch, shape.sequence))
    forward, backward = Listener(mesh.size()), Listener(mesh.size())
    with CommDebugMode() as counter, loss_parallel():
        with forward:
            loss = loss_of(ours, tokens)
        with backward:
            loss.backward()
    wanted = loss_of(whole, tokens)
    wanted.backward()
    return {
        "shape": shape.name,
        "plan": plan,
        "dtype": dtype,
        "forward": forward.heard,
        "backward": backward.heard,
        "counted": sum(counter.get_comm_counts().values()),
        "loss": _whole(loss).item(),
        "loss_in_one_piece": wanted.item(),
        "gradient_error": max(map(_error, ours.parameters(), whole.parameters())),
    }


def _whole(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor.detach()


def _error(ours: nn.Parameter, whole: nn.Parameter) -> float:
    """Return how far a gradient is from the one in one piece, over the largest of its elements."""
    if ours.grad is None or whole.grad is None:
        return float("inf")
    off = (_whole(ours.grad).float() - whole.grad.float()).abs().max()
    return (off / whole.grad.float().abs().max()).item()


def main() -> None:
    """Run all plans and formats on the ranks of this job."""
    torch.set_num_threads(1)
    shapes = [Shape(**fields) for fields in json.loads(sys.argv[1])]
    dist.init_process_group("gloo", timeout=timedelta(seconds=SILENCE_S))
    mesh = init_device_mesh("cpu", (int(os.environ["WORLD_SIZE"]),))
    for shape, plan, dtype in product(shapes, PLANS, DTYPES):
        found = run(shape, mesh, plan, dtype)
        if dist.get_rank() == 0:
            print(json.dumps(found), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
