"""The program of a layout, held to what real ranks do.

A small transformer with embedding, head and loss is split by torch's own tensor parallelism over
real processes (`tensor_parallel_block.py`), and every collective that they issue, forward and
backward, must be the next one of `program_of`, with the same bytes. One difference is torch's: it
keeps the gathered input of sequence parallelism, which Megatron gathers again in the backward pass
(Korthikanti et al. 2022, arXiv:2205.05198). Those gathers are named, counted and left out.

Needs the extra ``torch``; skipped without it.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from shardcost import Layout, Model, Train, tensor_parallel_allreduce_cost
from shardcost.model import Attention, Block, FeedForward
from shardcost.program import Program, program_of
from shardcost.program.operations import Collective, Operations
from shardcost.software import Software

distributed = pytest.importorskip("torch.distributed", reason="needs shardcost[torch]")
if not (distributed.is_available() and distributed.is_gloo_available()):
    pytest.skip("this build of torch has no gloo", allow_module_level=True)

SCRIPT = Path(__file__).with_name("tensor_parallel_block.py")
PATIENCE_S = 240
"""For all runs on one number of ranks; they take about twenty seconds on two busy cores."""
SIZES = {"batch": 2, "sequence": 32, "hidden": 64, "heads": 8, "layers": 2, "vocabulary": 256}
SHAPES: dict[str, dict[str, Any]] = {
    "gpt": {"kv_heads": 8, "width": 256, "gated": False, "parallel": False},
    "llama": {"kv_heads": 4, "width": 96, "gated": True, "parallel": False},
    "gpt-j": {"kv_heads": 8, "width": 256, "gated": False, "parallel": True},
}
DTYPES = {"float32": "fp32", "bfloat16": "bf16"}
ERROR = {"float32": 1e-4, "bfloat16": 0.1}
"""How far gradients may be from those of the model in one piece, over the largest."""
AGAIN = "weight gradient)"

every_run = [
    pytest.mark.parametrize("dtype", DTYPES),
    pytest.mark.parametrize("plan", ["plain", "sequence_parallel"]),
    pytest.mark.parametrize("shape", SHAPES),
    pytest.mark.parametrize("ranks", [2, 4]),
]


def on_every_run(test: Any) -> Any:
    for mark in every_run:
        test = mark(test)
    return test


class RanksFailedError(Exception):
    """A rank ended badly or not at all."""


def runs_on(ranks: int) -> dict[tuple[str, str, str], dict[str, Any]]:
    """Return what the ranks issued, by shape, plan and number format."""
    lines = lines_of(ranks)
    if isinstance(lines, RanksFailedError):
        pytest.fail(str(lines))
    found = [json.loads(line) for line in lines]
    return {(each["shape"], each["plan"], each["dtype"]): each for each in found}


@cache
def lines_of(ranks: int) -> list[str] | RanksFailedError:
    """Return what rank 0 printed, or why there is nothing; so many ranks are started only once."""
    shapes = [{"name": name} | SIZES | fields for name, fields in SHAPES.items()]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    common = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(ranks),
        "OMP_NUM_THREADS": "1",
    }
    if sys.platform == "linux":
        common["GLOO_SOCKET_IFNAME"] = "lo"
    started = [
        subprocess.Popen(
            [sys.executable, str(SCRIPT), json.dumps(shapes)],
            env=os.environ | common | {"RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(ranks)
    ]
    try:
        return _output(started)[0].splitlines()
    except RanksFailedError as failure:
        return failure


def _output(started: list[subprocess.Popen[str]]) -> list[str]:
    """Return what each rank printed; no rank outlives this, whatever happens."""
    until = time.monotonic() + PATIENCE_S
    printed = []
    try:
        for rank, process in enumerate(started):
            out, err = process.communicate(timeout=max(0.1, until - time.monotonic()))
            if process.returncode:
                raise RanksFailedError(f"rank {rank} gave {process.returncode}:\n{err[-2000:]}")
            printed.append(out)
    except subprocess.TimeoutExpired as late:
        reason = f"{len(started)} ranks were not done after {PATIENCE_S} s"
        raise RanksFailedError(reason) from late
    finally:
        for process in started:
            if process.poll() is None:
                process.kill()
                process.communicate()
    return printed


def program(ranks: int, shape: str, plan: str, dtype: str) -> Program:
    fields, hidden = SHAPES[shape], SIZES["hidden"]
    heads = SIZES["heads"]
    block = Block(
        count=SIZES["layers"],
        attention=Attention(heads=heads, kv_heads=fields["kv_heads"], head_dim=hidden // heads),
        feed_forward=FeedForward(width=fields["width"], gated=fields["gated"]),
        parallel=fields["parallel"],
    )
    model = Model(name=shape, hidden_size=hidden, vocab_size=SIZES["vocabulary"], blocks=(block,))
    sequence_parallel = plan == "sequence_parallel"
    layout = Layout(tp=ranks, micro_batch=SIZES["batch"], sequence_parallel=sequence_parallel)
    workload = Train(
        global_batch=SIZES["batch"], sequence_length=SIZES["sequence"], dtype=DTYPES[dtype]
    )
    return program_of(model, layout, workload, Software(name="torch", title="torch"))


def forward_of(told: Program) -> list[Collective]:
    layers = [each.passes.forward for each in told.layers for _ in range(each.count)]
    return _collectives([told.first.forward, *layers, told.last.forward])


def backward_of(told: Program) -> list[Collective]:
    turned = [each.passes for each in told.layers[::-1] for _ in range(each.count)]
    passes = [told.last, *turned, told.first]
    return _collectives([part for each in passes for part in (each.backward, each.weight)])


def _collectives(parts: list[Operations]) -> list[Collective]:
    found = [op for part in parts for op in part if isinstance(op, Collective)]
    return [op for op in found for _ in range(op.count)]


def shown(told: list[Collective]) -> list[list[Any]]:
    return [[op.collective, op.size_bytes] for op in told]


@on_every_run
def test_ranks_issue_what_the_program_says(ranks: int, shape: str, plan: str, dtype: str) -> None:
    told, heard = program(ranks, shape, plan, dtype), runs_on(ranks)[shape, plan, dtype]
    assert heard["forward"] == shown(forward_of(told))
    kept = [op for op in backward_of(told) if not op.name.endswith(AGAIN)]
    assert heard["backward"] == shown(kept)
    assert {op.ranks for op in forward_of(told) + kept} == {ranks}


@on_every_run
def test_torch_keeps_what_megatron_gathers_again(
    ranks: int, shape: str, plan: str, dtype: str
) -> None:
    """One gather for each column-parallel input of the layers and one for the head's."""
    told, heard = program(ranks, shape, plan, dtype), runs_on(ranks)[shape, plan, dtype]
    again = [op for op in backward_of(told) if op.name.endswith(AGAIN)]
    inputs = SIZES["layers"] * (1 if SHAPES[shape]["parallel"] else 2) + 1
    assert len(again) == (inputs if plan == "sequence_parallel" else 0)
    assert len(backward_of(told)) - len(heard["backward"]) == len(again)
    assert {op.collective for op in again} <= {"all_gather"}


@on_every_run
def test_no_collective_escapes_the_count(ranks: int, shape: str, plan: str, dtype: str) -> None:
    heard = runs_on(ranks)[shape, plan, dtype]
    assert len(heard["forward"]) + len(heard["backward"]) == heard["counted"]


@on_every_run
def test_the_split_model_computes_what_the_whole_one_does(
    ranks: int, shape: str, plan: str, dtype: str
) -> None:
    heard = runs_on(ranks)[shape, plan, dtype]
    assert heard["loss"] == pytest.approx(heard["loss_in_one_piece"], rel=ERROR[dtype] / 10)
    assert heard["gradient_error"] < ERROR[dtype]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_issue_what_the_front_door_counts(ranks: int, shape: str, dtype: str) -> None:
    per_layer = 1 if SHAPES[shape]["parallel"] else 2
    cost = tensor_parallel_allreduce_cost(
        hidden_size=SIZES["hidden"],
        sequence_length=SIZES["sequence"],
        batch_size=SIZES["batch"],
        num_gpus=ranks,
        num_layers=SIZES["layers"],
        bytes_per_element={"float32": 4, "bfloat16": 2}[dtype],
        allreduces_per_layer=per_layer,
    )
    heard = runs_on(ranks)[shape, "plain", dtype]["forward"]
    of_layers = heard[1:-3]  # after the embedding's sum, before the three of the loss
    assert of_layers == [["all_reduce", cost["message_size_bytes"]]] * (SIZES["layers"] * per_layer)
    sent = sum(2 * (ranks - 1) / ranks * size for _, size in of_layers)
    assert sent == cost["total_comm_volume_bytes"]
