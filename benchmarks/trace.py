"""How fast a profiler trace is inspected, and in how much memory.

A trace of about one GiB is made up in a temporary folder: operations of the host, launches, flow
arrows, compute kernels and collectives, in the order and layout in which the PyTorch profiler
writes them. Then ``shardcost inspect`` reads it in a process of its own.

    python benchmarks/trace.py [--gib 1] [--gzip] [--json]
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

LEAST_MB_PER_S: Final = 60
MOST_MB: Final = 500
KERNELS_PER_LAYER: Final = 12
"""Compute kernels between two collectives."""
HEAD: Final = """{
  "schemaVersion": 1,
  "deviceProperties": [
    {"id": 0, "name": "NVIDIA H100 80GB HBM3", "totalGlobalMem": 85024112640, "numSms": 132}
  ],
  "distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 64, "pg_count": 1,
    "pg_config": [{"pg_name": "1", "pg_desc": "tp", "pg_size": 8, "ranks": "[0, 1, 2, ..., 7]"}]},
  "displayTimeUnit": "ms",
  "baseTimeNanoseconds": 1759250542000000000,
  "traceEvents": [
"""
TAIL: Final = """
  ],
  "traceName": "/tmp/trace.json"
}
"""
HOST: Final = """  {
    "ph": "X", "cat": "cpu_op", "name": "%(op)s", "pid": 4037, "tid": 4037,
    "ts": %(ts).3f, "dur": 9.218,
    "args": {
      "External id": %(id)d,"Record function id": 0, "Concrete Inputs": ["", "", "1"], \
"Input type": ["c10::BFloat16", "c10::BFloat16", "Scalar"], \
"Input Strides": [[4096, 1], [1, 4096], []], "Input Dims": [[8192, 4096], [4096, 4096], []], \
"Ev Idx": %(id)d
    }
  },
"""
LAUNCH: Final = """  {
    "ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 4037, "tid": 4037,
    "ts": %(ts).3f, "dur": 3.914,
    "args": {
      "External id": %(id)d, "cbid": 211, "correlation": %(id)d
    }
  },
  {
    "ph": "s", "id": %(id)d, "pid": 4037, "tid": 4037, "ts": %(ts).3f,
    "cat": "ac2g", "name": "ac2g"
  },
"""
KERNEL: Final = """  {
    "ph": "X", "cat": "kernel", "name": "%(op)s", "pid": 0, "tid": 7,
    "ts": %(ts).3f, "dur": 21.536,
    "args": {
      "External id": %(id)d, "queued": 0, "device": 0, "context": 1, "stream": 7, \
"correlation": %(id)d, "registers per thread": 168, "shared memory": 213248, \
"blocks per SM": 1.000000, "warps per SM": 12.000000, "grid": [132, 1, 1], \
"block": [384, 1, 1], "est. achieved occupancy %%": 0
    }
  },
  {
    "ph": "f", "id": %(id)d, "pid": 0, "tid": 7, "ts": %(ts).3f,
    "cat": "ac2g", "name": "ac2g", "bp": "e"
  },
"""
COLLECTIVE: Final = """  {
    "ph": "X", "cat": "kernel", "name": "ncclDevKernel_AllReduce_Sum_bf16_RING_LL\
(ncclDevKernelArgsStorage<4096ul>)", "pid": 0, "tid": 20,
    "ts": %(ts).3f, "dur": 143.841,
    "args": {
      "External id": %(id)d, "queued": 0, "device": 0, "context": 1, "stream": 20, \
"correlation": %(id)d, "Collective name": "allreduce", "In msg nelems": 33554432, \
"Out msg nelems": 33554432, "Group size": 8, "dtype": "BFloat16", "In split size": "[]", \
"Out split size": "[]", "Process Group Name": "1", "Process Group Description": "tp", \
"Process Group Ranks": "[0, 1, 2, ..., 7]", "Seq": %(seq)d
    }
  },
"""
HOST_NAMES: Final = ("aten::linear", "aten::matmul", "aten::mm", "aten::empty_strided")
KERNEL_NAMES: Final = (
    "nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_TNT",
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float> >(int)",
    "void flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64> >(Flash_fwd_params)",
)


def pieces() -> Iterator[str]:
    """Yield the events of one layer after another, without end."""
    number, now, layer = 0, 4_821_113_901.0, 0
    while True:
        layer += 1
        found = []
        for step in range(KERNELS_PER_LAYER):
            for name in HOST_NAMES:
                number += 1
                found.append(HOST % {"op": name, "ts": now, "id": number})
            found.append(LAUNCH % {"ts": now + 2, "id": number})
            name = KERNEL_NAMES[step % len(KERNEL_NAMES)]
            found.append(KERNEL % {"op": name, "ts": now + 7, "id": number})
            now += 24.125
        found.append(COLLECTIVE % {"ts": now - 60, "id": number, "seq": layer})
        now += 90
        yield "".join(found)


def write_trace(path: Path, size: int) -> None:
    """Write a trace of about so many bytes."""
    zipped = path.suffix == ".gz"
    with gzip.open(path, "wt", compresslevel=1) if zipped else path.open("w") as file:
        written = file.write(HEAD)
        for piece in pieces():
            if written >= size:
                file.write(piece.rstrip().rstrip(",") + TAIL)
                return
            written += file.write(piece)


def command(path: Path) -> list[str]:
    """Return what inspects a trace: the command, or its functions where it knows no traces yet."""
    by_command = [sys.executable, "-m", "shardcost", "inspect", str(path), "--json"]
    small = path.with_name("small.json")
    write_trace(small, 10_000)
    asked = [*by_command[:-2], str(small), "--json"]
    if subprocess.run(asked, capture_output=True, check=False).returncode == 0:
        return by_command
    by_functions = (
        "import json, pathlib, sys; from shardcost.formats import kineto;"
        "from shardcost.inspect.trace import inspected;"
        "from shardcost.report.inspect_trace import as_data;"
        "print(json.dumps(as_data(inspected([kineto.read(pathlib.Path(sys.argv[1]))]))))"
    )
    return [sys.executable, "-c", by_functions, str(path)]


def peak_mb() -> float:
    """Return the most megabytes that any process had which was started from here."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * unit / 1e6


def measured(gib: float, *, zipped: bool) -> dict[str, Any]:
    """Return what inspecting a trace takes."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / ("trace.json.gz" if zipped else "trace.json")
        write_trace(path, int(gib * 2**30))
        asked = command(path)
        before = os.times()
        start = time.perf_counter()
        done = subprocess.run(asked, capture_output=True, text=True, check=True)
        seconds = time.perf_counter() - start
        after = os.times()
        found = json.loads(done.stdout)
        size = gib * 2**30
        return {
            "bytes": round(size),
            "file_bytes": path.stat().st_size,
            "seconds": round(seconds, 2),
            "cpu_seconds": round(after.children_user - before.children_user, 2),
            "mb_per_s": round(size / 1e6 / seconds, 1),
            "peak_memory_mb": round(peak_mb(), 1),
            "calls": sum(each["calls"] for each in found["groups"]),
            "unread": found["unread"],
            "by": "command" if "-m" in asked else "functions",
        }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--gib", type=float, default=1.0, help="size of the trace (1)")
    parser.add_argument("--gzip", action="store_true", help="compressed, as profilers often write")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    options = parser.parse_args()
    found = measured(options.gib, zipped=options.gzip)
    if options.json:
        print(json.dumps(found))
        return
    fast, small = found["mb_per_s"] >= LEAST_MB_PER_S, found["peak_memory_mb"] <= MOST_MB
    print(f"A trace of {options.gib:g} GiB{' gzipped' * options.gzip}, by its {found['by']}")
    print(f"  {found['seconds']} s ({found['cpu_seconds']} s of one core)")
    print(f"  {found['mb_per_s']} MB/s (at least {LEAST_MB_PER_S})  {'pass' if fast else 'FAIL'}")
    print(
        f"  {found['peak_memory_mb']} MB at most (under {MOST_MB})  {'pass' if small else 'FAIL'}"
    )
    print(f"  {found['calls']:,.0f} collectives found, {len(found['unread'])} kinds of damage")


if __name__ == "__main__":
    main()
