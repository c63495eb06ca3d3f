"""How many layouts a second other tools evaluate, through their own interfaces.

    python benchmarks/peers.py calculon --checkout PATH [--seconds N]
    python benchmarks/peers.py {llm-analysis,aiconfigurator} [--seconds N]

Prints one JSON document: what was asked, the layouts and the seconds. It needs nothing but the
tool, so it runs in whichever environment has it; `rate_of` runs it there, with a limit on its time,
and puts whatever goes wrong into one line. Loading the tool and its tables is not timed, and its
logging and printing are off.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.util
import itertools
import json
import logging
import os
import random
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

GPUS = 64
BATCH = 1536
SEQUENCE = 2048
LIMIT_S = 120.0
"""Wall-clock limit of one tool, loading included."""
ABSENT = "not installed"
SERVED = "Qwen/Qwen3-32B"
SERVED_GPUS = 32
PROMPT, ANSWER = 2048, 128


class Rate(NamedTuple):
    """What one tool did, or why it did nothing."""

    name: str
    asked: str = ""
    layouts: int = 0
    seconds: float = 0.0
    failure: str = ""

    @property
    def per_s(self) -> float:
        """Layouts a second."""
        return self.layouts / self.seconds if self.seconds else 0.0


def rate_of(name: str, python: str, checkout: str | None = None, seconds: float = 8.0) -> Rate:
    """Return the rate of a tool, measured by an interpreter that has it.

    Args:
        name: One of `PEERS`.
        python: The interpreter.
        checkout: The tool's source, where it is not installed.
        seconds: How long to evaluate layouts.
    """
    command = [python, str(Path(__file__).resolve()), name, "--seconds", str(seconds)]
    command += ["--checkout", checkout] if checkout else []
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        return Rate(name, failure=f"failed: not done after {LIMIT_S:.0f} s")
    except OSError as error:
        return Rate(name, failure=f"failed: {python}: {error.strerror}")
    try:
        return Rate(name, **json.loads(run.stdout))
    except (ValueError, TypeError):
        last = (run.stderr.strip() or "no output").splitlines()[-1]
        return Rate(name, failure=f"failed: {last}")


def _timed(seconds: float, calls: Iterator[Callable[[], object]]) -> tuple[int, float]:
    """Return how many calls were made until the time was up or there were no more."""
    made, start = 0, time.perf_counter()
    for call in calls:
        call()
        made += 1
        if time.perf_counter() - start > seconds:
            break
    return made, time.perf_counter() - start


def calculon(seconds: float, checkout: Path) -> dict[str, Any]:
    """Evaluate executions of GPT-3 175B on A100s, drawn from those that its own search visits."""
    sys.path.insert(0, str(checkout))
    llm: Any = importlib.import_module("calculon.llm").Llm
    system = importlib.import_module("calculon.system").System(_json(checkout, "a100_80g.json"))
    app = llm.Application(_json(checkout, "gpt3-175B.json"))
    log = logging.getLogger("silent")

    def run(execution: dict[str, Any]) -> None:
        model = llm(app, log)
        with contextlib.suppress(llm.Error):  # an execution that does not fit is evaluated too
            model.compile(system, llm.Execution.from_json(execution))
            model.run(system)
            model.get_stats_json(include_layers=False)

    every = list(_meshes(llm, app))
    draw = random.Random(0)  # noqa: S311
    drawn = (_execution(draw, llm, draw.choice(every)) for _ in itertools.count())
    made, spent = _timed(seconds, ((lambda each=each: run(each)) for each in drawn))  # type: ignore[misc]
    asked = f"gpt3-175B training, {GPUS} A100, compile + run"
    return {"asked": asked, "layouts": made, "seconds": spent}


def _json(checkout: Path, name: str) -> Any:
    """Return the first file of a name in a checkout: its folders differ between versions."""
    found = sorted(checkout.rglob(name))
    if not found:
        raise FileNotFoundError(f"no {name} in {checkout}")
    return json.loads(found[0].read_text())


def _meshes(llm: Any, app: Any) -> Iterator[dict[str, int]]:
    for tp in llm.get_all_tensor_parallelisms(GPUS, app.hidden, app.attn_heads):
        for pp in llm.get_all_pipeline_parallelisms(GPUS, tp, app.num_blocks):
            dp = llm.get_data_parallelism(GPUS, tp, pp)
            for virtual_stages in llm.get_valid_pipeline_interleavings(app.num_blocks, pp):
                sizes = llm.get_valid_microbatch_sizes(app.seq_size, tp, dp, BATCH, pp)
                for size in sizes:
                    yield {
                        "tensor_par": tp,
                        "pipeline_par": pp,
                        "data_par": dp,
                        "pipeline_interleaving": virtual_stages,
                        "microbatch_size": size,
                    }


def _execution(draw: random.Random, llm: Any, mesh: dict[str, int]) -> dict[str, Any]:
    """Return an execution of a mesh, its switches drawn as the tool's search would set them."""
    tensor, data = mesh["tensor_par"] > 1, mesh["data_par"] > 1
    recompute = draw.choice(("full", "attn_only", "none"))
    exchange = draw.choice(("ar", "p2p_rs_ag", "rs_ag"))
    return mesh | {
        "num_procs": GPUS,
        "tensor_par_net": 0 if mesh["tensor_par"] <= 8 else 1,
        "pipeline_par_net": 1,
        "data_par_net": 1,
        "batch_size": BATCH,
        "datatype": "float16",
        "fused_activation": True,
        "attention_type": "multihead",
        "activation_recompute": recompute,
        "optimizer_sharding": data and draw.random() < 0.5,
        "tensor_par_comm_type": exchange,
        "tensor_par_overlap": draw.choice(("none", "ring", "pipe")) if tensor else "none",
        "seq_par_ag_redo": llm.can_redo_ag(exchange, recompute) and draw.random() < 0.5,
        "data_par_overlap": data and draw.random() < 0.5,
        "weight_offload": False,
        "activations_offload": False,
        "optimizer_offload": False,
        "training": True,
    }


def llm_analysis(seconds: float, _checkout: Path) -> dict[str, Any]:
    """Evaluate training layouts of a GPT of 175B parameters on A100s, each from its own mesh."""
    analysis: Any = importlib.import_module("llm_analysis.analysis")
    config: Any = importlib.import_module("llm_analysis.config")
    logging.disable(logging.CRITICAL)
    model = config.get_model_config_by_name("megatron-lm-175b")
    gpu = config.get_gpu_config_by_name("a100-sxm-80gb")

    def run(tp: int, pp: int, size: int, recompute: Any, zero: Any) -> None:
        dp = GPUS // (tp * pp)
        mesh = config.ParallelismConfig(tp_size=tp, pp_size=pp, dp_size=dp)
        analysis.LLMAnalysis(model, gpu, parallelism_config=mesh, flops_efficiency=0.5).training(
            batch_size_per_gpu=size,
            global_batch_size=BATCH,
            seq_len=SEQUENCE,
            activation_recomputation=recompute,
            ds_zero=zero,
        )

    powers = tuple(2**each for each in range(7))
    every = [
        (tp, pp, size, recompute, zero)
        for tp, pp, size in itertools.product(powers[:4], powers[:6], (1, 2, 4, 8))
        for recompute, zero in itertools.product(analysis.ActivationRecomputation, analysis.DSZeRO)
        if tp * pp <= GPUS and 96 % pp == 0
    ]
    random.Random(0).shuffle(every)  # noqa: S311
    calls = ((lambda each=each: run(*each)) for each in itertools.cycle(every))
    made, spent = _timed(seconds, calls)
    asked = f"megatron-lm-175b training, {GPUS} A100, no search of its own"
    return {"asked": asked, "layouts": made, "seconds": spent}


def aiconfigurator(_seconds: float, _checkout: Path) -> dict[str, Any]:
    """Run its own search once to load its tables, then once more with the clock on."""
    search: Any = importlib.import_module("aiconfigurator.cli").cli_default
    counted = _Counted()
    for logger in (logging.getLogger(), logging.getLogger("aiconfigurator")):
        logger.addHandler(counted)
        logger.setLevel(logging.INFO)
    question = {
        "model_path": SERVED,
        "total_gpus": SERVED_GPUS,
        "system": "h200_sxm",
        "backend": "trtllm",
        "isl": PROMPT,
        "osl": ANSWER,
    }
    search(**question)
    counted.results = 0
    start = time.perf_counter()
    search(**question)
    spent = time.perf_counter() - start
    asked = f"{SERVED} served by {SERVED_GPUS} H200, results of its own search"
    return {"asked": asked, "layouts": counted.results, "seconds": spent}


class _Counted(logging.Handler):
    """Adds up the results that a search reports of its experiments."""

    results = 0
    _last = ""

    def emit(self, record: logging.LogRecord) -> None:
        found = re.search(r"completed with (\d+) results", record.getMessage())
        # Handlers of a logger and of its parents see one record each.
        if found and (line := f"{record.created}") != self._last:
            self._last = line
            self.results += int(found.group(1))


PEERS: dict[str, tuple[str, Callable[[float, Path], dict[str, Any]]]] = {
    "calculon": ("calculon", calculon),
    "llm-analysis": ("llm_analysis", llm_analysis),
    "aiconfigurator": ("aiconfigurator", aiconfigurator),
}
"""The tools: their package, and what measures them."""


def _measured(name: str, seconds: float, checkout: Path) -> dict[str, Any]:
    package, measure = PEERS[name]
    if not (checkout / package).is_dir() and importlib.util.find_spec(package) is None:
        return {"failure": ABSENT}
    try:
        return measure(seconds, checkout)
    except Exception as error:  # whatever the tool raises is its one line
        return {"failure": f"failed: {type(error).__name__}: {error}".splitlines()[0]}


def main() -> None:
    """Measure one tool and print it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("name", choices=PEERS)
    parser.add_argument("--checkout", type=Path, default=Path())
    parser.add_argument("--seconds", type=float, default=8.0)
    options = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):  # one core, as all benchmarks have
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    with (
        Path(os.devnull).open("w") as nowhere,
        contextlib.redirect_stdout(nowhere),
        contextlib.redirect_stderr(nowhere),
    ):
        found = _measured(options.name, options.seconds, options.checkout)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
