"""The command line. Each command is a module that is imported only when it runs.

Exit codes: 0 done; 1 errors beyond those on record (`validate`), bytes other than counted
(`measure`), slower than it should be (`check`); 2 bad input, with one line on standard error that
names the value and the rule; 3 nothing feasible, with the reasons.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from importlib import import_module
from typing import Any, Final

import shardcost
from shardcost.cli.options import join_signed_values
from shardcost.errors import ShardcostError, UnknownNameError, UsageError

COMMANDS: Final = {
    "allreduce": "the exact cost of tensor-parallel all-reduces",
    "collective": "how long a collective takes, what runs and why",
    "estimate": "what a model costs under one layout: time by part, memory, why",
    "report": "one layout as a self-contained HTML page, to hand on",
    "load": "requests at a deployment: latencies, throughput, the load it holds",
    "plan": "which layout to run: prices them all, says why the others lost",
    "run": "a whole training run: days, GPU-hours, money, energy, failures",
    "models": "the models in the catalog, or one of them in full",
    "clusters": "the clusters and networks in the catalog, or one of them in full",
    "software": "the frameworks and engines in the catalog, or one of them in full",
    "measure": "run real collectives or kernels, write a table of their times",
    "validate": "prediction against measurement: errors on measured tables",
    "check": "is a measured curve or trace as it should be; what is wrong if not",
    "inspect": "read a file (log, trace, topology, config) and say what it means",
    "calibrate": "a profile of your own cluster, from your own measurements",
    "serve": "the page: look at layouts in a browser",
    "completion": "a script that completes commands, options and names in your shell",
}
"""Each command with its one-line help; the module of the same name has the rest."""
GROUPS: Final = {
    "one layout": ("estimate", "report", "run"),
    "which layout, which deployment": ("plan", "load"),
    "communication by itself": ("collective", "allreduce"),
    "what the catalog has": ("models", "clusters", "software"),
    "your own machine and measurements": ("inspect", "check", "measure", "calibrate", "validate"),
    "beside the command line": ("serve", "completion"),
}
"""Commands as the help lists them."""
_OBJECTS_BEFORE_COLLECTION: Final = 200_000
_LISTINGS: Final = ("models", "clusters", "software")
"""Commands that are objects of one module."""
MODES: Final = {("measure", "kernels"): "measure_kernels", ("measure", "collectives"): "measure"}
"""Commands of two words, with their module."""

_HELP: Final = """\
shardcost: what it costs to shard a transformer over accelerators.

usage: shardcost COMMAND [OPTION…]

{commands}

  shardcost COMMAND --help   its options, with examples
  shardcost --version        the version

Every command takes --json. Numbers may be written 4096, 4k (4,000), 4Ki (4,096)
or 1e6; several as 1,2,4 or as 1..64, which doubles.

begin with:
  shardcost models llama3
  shardcost estimate llama3-70b --on h100_sxm --tp 8 \\
      --decode --batch 64 --context-tokens 4096
  shardcost plan llama3-70b --on h100_sxm --decode --batch 1..256 \\
      --context-tokens 4096
  shardcost load llama3-8b --on h100_sxm --rate 4 --isl 1024 --osl 256
  shardcost run llama3-70b --on h100_sxm --network ib_8x400g --gpus 512 \\
      --batch 1024 --sequence-length 8192 --tokens 15T
  shardcost collective all_reduce --size 64MiB --gpus 8 --on h100_sxm
  shardcost allreduce llama3-70b --on h100_sxm --gpus 8 --explain
  shardcost inspect config.json
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    if arguments is not None:
        return _main(list(arguments))
    # The process is the command's own. Most objects of a short command live until its end:
    # collections in between, and the one at its end, take an eighth of the time and find nothing.
    gc.set_threshold(_OBJECTS_BEFORE_COLLECTION)
    try:
        return _main(sys.argv[1:])
    finally:
        gc.freeze()


def _main(words: list[str]) -> int:
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # closed by whoever started the command
            setattr(sys, name, open(os.devnull, "w"))  # noqa: PTH123, SIM115
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a terminal that lacks a character shows ?
    try:
        code = _run(words)
        sys.stdout.flush()
    except ShardcostError as error:
        return _failed(str(error))
    except KeyboardInterrupt:
        _drop_output()
        return _failed("interrupted", 130)
    except BrokenPipeError:  # the reader, such as head, has seen enough
        _drop_output()
        return 0
    except OSError as error:  # files have errors of their own: this is the output's
        _drop_output()
        file = error.filename or "the output"
        return _failed(f"{file}: cannot be written: {error.strerror or error}")
    except MemoryError:
        return _failed("out of memory: ask for less at a time")
    return code


def _failed(reason: str, code: int = 2) -> int:
    """Say in one line why a command ends; return its exit code."""
    with suppress(OSError):  # nobody reads it
        print(f"shardcost: {reason}", file=sys.stderr, flush=True)
    return code


def _drop_output() -> None:
    """Leave unwritten what is still to be written: Python would try once more at its end."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run(words: list[str]) -> int:
    if not words or words[0] in {"-h", "--help", "help"}:
        print(_HELP.format(commands="\n".join(_listed())), end="")
        return 0
    if words[0] in {"-V", "--version", "version"}:
        print(f"shardcost {shardcost.__version__}")
        return 0
    if words[0] not in COMMANDS:
        if words[0].startswith("-"):
            raise UsageError(f"{words[0]} is not an option; the command comes first, see --help")
        raise UnknownNameError("command", words[0], COMMANDS, "(see shardcost --help)")
    command, rest = command_of(words)
    try:
        options = command.parser().parse_args(join_signed_values(rest))
    except SystemExit as done:  # --help was printed
        return int(done.code or 0)
    scope: AbstractContextManager[None] = nullcontext()
    if options.catalog is not None:  # names of the catalog resolve to files of that folder too
        from shardcost.catalog.user_files import folder_used

        scope = folder_used(options.catalog)
    with scope:
        code: int = command.run(options)
    return code


def _listed() -> Iterator[str]:
    """Yield the lines of the help that list the commands, by group."""
    for title, names in GROUPS.items():
        yield f"{title}:"
        yield from (f"  {name:<11} {COMMANDS[name]}" for name in names if name in COMMANDS)


def command_of(words: Sequence[str]) -> tuple[Any, list[str]]:
    """Return what has the `parser` and `run` of a command, and the words after its name."""
    listed = words[0] in _LISTINGS
    mode = MODES.get((words[0], words[1] if len(words) > 1 else ""))
    name = mode or ("listing" if listed else words[0])
    module = import_module(f"shardcost.cli.{name}")
    return getattr(module, words[0]) if listed else module, [*words[1 + (mode is not None) :]]
