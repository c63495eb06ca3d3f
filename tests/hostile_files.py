"""Files that are damaged or meant to harm, made from small sound ones; and a process to read them.

`batches` names the groups of files, `write_batch` writes one to a folder: the same bytes in every
run. ``python hostile_files.py FOLDER …``, folders named by their batch, gives each file there to
every command that would take it and prints one line of JSON for each: what it took, and what was
wrong with the way it was taken.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import random
import re
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from types import FrameType
from typing import Any, Final

MOST_SECONDS: Final = 5.0
"""Of the processor. Files are meant to take less than two; a slow or busy machine is no fault."""
MOST_MEGABYTES: Final = 500
SAMPLES: Final = Path(__file__).with_name("samples")
SERVING: Final = (
    "vllm-bench-detailed.json", "sglang-bench.jsonl", "genai-perf.json", "genai-perf.csv",
    "inference-perf.json",
)  # fmt: skip
_ADDRESS_SPACE: Final = 3 * 2**29
_LONGEST_LINE: Final = 700
_GIVEN_UP_AFTER_S: Final = 30

NCCL_TESTS: Final = """\
# nThread 1 nGpus 8 minBytes 1024 maxBytes 1048576 step: 2(factor) warmup iters: 5 iters: 20
#
# Using devices
#  Rank  0 Group  0 Pid  41234 on  node-a device  0 [0x1b] NVIDIA H100 80GB HBM3
#  Rank  1 Group  0 Pid  41234 on  node-a device  1 [0x43] NVIDIA H100 80GB HBM3
#  Rank  2 Group  0 Pid  41234 on  node-a device  2 [0x52] NVIDIA H100 80GB HBM3
#  Rank  3 Group  0 Pid  41234 on  node-a device  3 [0x61] NVIDIA H100 80GB HBM3
#  Rank  4 Group  0 Pid  41234 on  node-a device  4 [0x9d] NVIDIA H100 80GB HBM3
#  Rank  5 Group  0 Pid  41234 on  node-a device  5 [0xc3] NVIDIA H100 80GB HBM3
#  Rank  6 Group  0 Pid  41234 on  node-a device  6 [0xd1] NVIDIA H100 80GB HBM3
#  Rank  7 Group  0 Pid  41234 on  node-a device  7 [0xdf] NVIDIA H100 80GB HBM3
NCCL version 2.21.5+cuda12.4
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
"""  # noqa: E501
RCCL_TESTS: Final = """\
# Collective test starting: all_gather_perf
# nThreads: 1 nGpus: 1 minBytes: 1024 maxBytes: 1048576 step: 2(factor) warmupIters: 5
rccl-tests: Version develop:448c4c7
RCCL version : 2.22.3-HEAD:1a2b3c
#   Rank  0 Pid  1201 on node-b device  0 [0000:05:00] AMD Instinct MI300X
#   Rank  1 Pid  1202 on node-b device  1 [0000:26:00] AMD Instinct MI300X
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
"""  # noqa: E501
OSU: Final = """\
mpirun -np 8 ./osu_allreduce -d cuda
# OSU MPI-CUDA Allreduce Latency Test v7.3
# Datatype: MPI_CHAR.
# Size       Avg Latency(us)   Min Latency(us)   Max Latency(us)  Iterations
"""
MATRIX_LEGEND: Final = """
Legend:
  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect

NIC Legend:

  NIC0: mlx5_0
  NIC1: mlx5_1
"""
GRAPH: Final = """\
<graphs version="1">
  <graph id="0" pattern="4" crossnic="0" nchannels="2" speedintra="20" speedinter="20" latencyinter="0" typeintra="NVL" typeinter="PIX" samechannels="1">
    <channel><net dev="0"/><gpu dev="0"/><gpu dev="1"/><net dev="0"/></channel>
    <channel><net dev="1"/><gpu dev="1"/><gpu dev="0"/><net dev="1"/></channel>
  </graph>
</graphs>
"""  # noqa: E501
TUNER: Final = """\
# collective_type,min_bytes,max_bytes,algorithm,protocol,channels,nNodes,nRanks,numPipeOps,regBuff
allreduce,0,65535,tree,ll,-1,1,8,-1,-1
allreduce,65536,1048575,ring,ll128,16,1,8,-1,-1
allgather,0,4194304,ring,simple,-1,-1,-1,-1,-1
reducescatter,4194305,9223372036854775807,ring,simple,-1,2,16
"""
PROFILE: Final = """\
# A profile of shardcost: the constants of one cluster.
name = "mine"
based_on = "h100_sxm"

"""


def _rows(factor: float, word: str = "float     sum") -> str:
    """Return rows of nccl-tests whose bandwidths follow from their times."""
    lines = []
    for k in range(10, 21):
        size, time_us = 2**k, round(12.0 + 2**k / 40e3, 2)
        algbw = size / time_us / 1e3
        half = f"{time_us:8.2f}  {algbw:6.2f}  {algbw * factor:6.2f}      0"
        lines.append(f"{size:12d} {size // 4:13d} {word:>13}      -1 {half} {half}")
    return "\n".join(lines) + "\n# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 12.5\n"


def _json_report() -> str:
    results = [
        {
            "experiment_name": "all_reduce_perf",
            "size": 2**k,
            "type": "float",
            "redop": "sum",
            "root": "-1",
            "out_of_place": {
                "time": 10.0 + k,
                "alg_bw": round(2**k / (10.0 + k) / 1e3, 6),
                "bus_bw": round(1.75 * 2**k / (10.0 + k) / 1e3, 6),
            },
            "in_place": {
                "time": 11.0 + k,
                "alg_bw": round(2**k / (11.0 + k) / 1e3, 6),
                "bus_bw": round(1.75 * 2**k / (11.0 + k) / 1e3, 6),
            },
        }
        for k in range(10, 20)
    ]
    devices = [
        {"rank": i, "group": 0, "hostname": "a", "device_info": "NVIDIA H100 80GB HBM3"}
        for i in range(8)
    ]
    report = {
        "args": ["./build/all_reduce_perf", "-J", "out.json"],
        "env": ["PATH=/bin", "HOME=/root"],
        "nccl_version": 22105,
        "config": {"nthreads": 1, "ngpus": 1, "minimum_bytes": 1024, "devices": devices},
        "results": results,
    }
    return json.dumps(report, indent=1)


def _inspector() -> str:
    lines = []
    for call in range(24):
        header = {"id": "0x7f8c496ae9f661", "rank": 0, "n_ranks": 8, "nnodes": 1}
        size = 2 ** (10 + call % 8)
        perf = {
            "coll": "AllReduce", "coll_sn": call, "coll_msg_size_bytes": size,
            "coll_exec_time_us": 20 + call, "coll_timing_source": "kernel_gpu",
            "coll_algobw_gbs": 0.1, "coll_busbw_gbs": 0.2,
        }  # fmt: skip
        lines.append(json.dumps({"header": header, "metadata": {"pid": 1}, "coll_perf": perf}))
    return "\n".join(lines) + "\n"


def _kernel(number: int, **changes: Any) -> dict[str, Any]:
    args = {
        "device": 0, "stream": 20, "correlation": number, "External id": number + 1000,
        "Collective name": "allreduce", "In msg nelems": 4096, "Out msg nelems": 4096,
        "Group size": 8, "dtype": "BFloat16", "Process Group Name": "0", "Seq": number,
        "Process Group Description": "default_pg",
        "Process Group Ranks": "[0, 1, 2, 3, 4, 5, 6, 7]",
    }  # fmt: skip
    name = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgs)"
    event = {
        "ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 20, "ts": 100.0 + 60 * number,
        "dur": 30.5, "args": args,
    }  # fmt: skip
    return event | changes


def _kineto() -> str:
    head = {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "name": "NVIDIA H100 80GB HBM3"}],
        "distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 8},
    }
    events = []
    for k in range(20):
        events.append(_kernel(k))
        compute = {"device": 0, "stream": 7}
        events.append(_kernel(k, name=f"gemm_{k % 3}", tid=7, ts=120.0 + 60 * k, args=compute))
        launch = {"correlation": k}
        events.append(
            _kernel(k, cat="cuda_runtime", name="cudaLaunchKernel", ts=90.0 + 60 * k, args=launch)
        )
    lines = ",\n".join(json.dumps(event) for event in events)
    return f'{json.dumps(head)[:-1]}, "traceEvents": [\n{lines}\n]}}\n'


def _matrix() -> str:
    names = [f"GPU{i}" for i in range(8)] + ["NIC0", "NIC1"]
    lines = ["\t" + "\t".join(names) + "\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID"]
    for one in names:
        both = "GPU" in one
        cells = [
            "X" if one == other else "NV18" if both and "GPU" in other else "PXB" for other in names
        ]
        lines.append("\t".join([one, *cells, *(["0-47", "0", "N/A"] if both else [])]))
    return "\n".join(lines) + "\n" + MATRIX_LEGEND


def _topology() -> str:
    gpus = "".join(
        f'<pci busid="0000:{i + 10:02x}:00.0" class="0x030200" vendor="0x10de" device="0x2330"'
        ' link_speed="32.0 GT/s PCIe" link_width="16">'
        f'<gpu dev="{i}" sm="90" rank="{i}" gdr="1"><nvlink target="fffffff:ff:ff.0" count="18"'
        ' tclass="0x068000"/></gpu></pci>\n'
        for i in range(8)
    )
    nic = (
        '<pci busid="0000:80:00.0" class="0x020700" vendor="0x15b3" link_speed="32.0 GT/s"'
        ' link_width="16"><nic><net name="mlx5_0" dev="0" speed="400000" port="1" gdr="1"/></nic>'
        "</pci>\n"
    )
    cpu = '<cpu numaid="0" arch="x86_64" vendor="GenuineIntel">'
    return f'<system version="1">\n{cpu}\n{gpus}{nic}</cpu>\n</system>\n'


def _measurements() -> str:
    head = "collective,size_bytes,algorithm,protocol,channels,nodes,ranks,latency_us,bandwidth_gbps"
    rows = [
        f"allreduce,{2**k},ring,simple,-1,1,8,{20 + k},{2**k / (20 + k) / 1e3:.4f}"
        for k in range(10, 22)
    ]
    return "\n".join([head, *rows]) + "\n"


def _table() -> str:
    head = (
        "dataset,cluster,network,nodes,gpus_per_node,num_gpus,library,mode,single_process,"
        "collective,dtype,size_bytes,time_us"
    )
    rows = [
        f"mine,h100_sxm,,1,8,8,nccl,graph,0,all_reduce,bf16,{2**k},{15 + 2**k / 4e4:.2f}"
        for k in range(10, 24)
    ]
    return "\n".join([head, *rows]) + "\n"


def _profile() -> str:
    constants = "".join(
        f"{name} = {value}\n"
        for name, value in {
            "ll_base_us": 4.251, "ll_hop_us": 0.8825, "ll_spread_us": 1.396,
            "ll_spread_bytes": 1781.0, "ll_gb_per_s": 198.2, "ll_copy_gb_per_s": 293.2,
            "ll128_base_us": 9.182, "ll128_hop_us": 2.298, "ll128_gb_per_s": 398.8,
            "simple_base_us": 12.18, "simple_hop_us": 1.376, "simple_gb_per_s": 382.9,
            "simple_copy_gb_per_s": 944.9, "fill": 0.5043, "p2p_ll_base_us": 6.126,
            "p2p_ll_gb_per_s": 6.826, "p2p_base_us": 9.724, "p2p_hop_us": 0.3345,
            "p2p_gb_per_s": 357.4, "nvls_small_base_us": 25.45, "nvls_small_gb_per_s": 153.5,
            "nvls_base_us": 66.11, "nvls_gb_per_s": 264.2,
        }.items()
    )  # fmt: skip
    return (
        PROFILE
        + '[[library]]\nname = "nccl"\nkind = "ring"\nsince = "0"\nchooser = "nccl-tuner"\n\n'
        + '[library.fit]\nsource = "fitted to mine"\nrows = 24\nmedian_pct = 3.5\np90_pct = 9.0\n'
        + "least_gpus = 2\nmost_gpus = 8\nleast_bytes = 1024\nmost_bytes = 1048576\n"
        + f'collectives = ["all_reduce"]\n\n[library.constants]\n{constants}'
    )


def _config() -> str:
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 1024,
        "intermediate_size": 4096,
        "num_hidden_layers": 4,
        "num_attention_heads": 16,
        "num_key_value_heads": 4,
        "vocab_size": 32000,
        "max_position_embeddings": 8192,
        "torch_dtype": "bfloat16",
        "tie_word_embeddings": False,
        "rope_theta": 500000.0,
    }
    return json.dumps(config, indent=2) + "\n"


def samples() -> dict[str, str]:
    """Return a small sound file of each kind that is read."""
    return {
        "config": _config(),
        "nccl-tests": NCCL_TESTS + _rows(1.75),
        "rccl-tests": RCCL_TESTS + _rows(0.5, "int8    none"),
        "excerpt": "\n".join(_rows(1.75).splitlines()[:9]) + "\n",
        "nccl-json": _json_report(),
        "inspector": _inspector(),
        "osu": OSU + "".join(f"{2**k:<10d} {9 + 2**k / 1e4:>16.2f}\n" for k in range(21)),
        "kineto": _kineto(),
        "matrix": _matrix(),
        "topology": _topology(),
        "graph": GRAPH,
        "tuner": TUNER,
        "measurements": _measurements(),
        "table": _table(),
        "profile": _profile(),
        **{name: (SAMPLES / name).read_text() for name in SERVING},
    }


# ---------------------------------------------------------------------------- what is done to them

ESCAPES: Final = "\x1b[31m\x1b]0;owned\x07\x9b31m\x7f\u202e\x08\r"
NUMBERS: Final = (
    "0", "-1", "-7", "1e400", "-1e400", "NaN", "nan", "inf", "-Infinity", "1e308", "9" * 400,
    "1000000000000000000", "9223372036854775808", "0.0000001", "1e-300", "0x10", "1_0", "",
    "\u0663", "9" * 5000, "1e", "--", "true", "null", '"8"', "[8]", "{}",
)  # fmt: skip
"""What takes the place of a number."""
_A_NUMBER: Final = re.compile(r"(?<![\w.])[0-9]+(?:\.[0-9]+)?(?![\w.])")
Files = Iterator[tuple[str, bytes]]


def damaged(text: str, others: list[str], seed: str) -> Files:
    """Yield many ways in which a file is damaged, each with a name."""
    rng = random.Random(seed)
    data = text.encode()
    yield "sound", data
    yield from _cut_and_flipped(data, rng)
    yield from _lines_astray(text, others, rng)
    yield from _numbers_changed(text, rng)
    yield from _characters_astray(text, rng)
    yield from _zipped(data, rng)


def _cut_and_flipped(data: bytes, rng: random.Random) -> Files:
    for part in range(1, 10):
        yield f"cut-{part}", data[: len(data) * part // 10 + rng.randrange(7)]
    for k in (1, 2, 8, 40, 200):
        flipped = bytearray(data)
        for place in rng.choices(range(len(data)), k=k):
            flipped[place] ^= 1 << rng.randrange(8)
        yield f"flipped-{k}", bytes(flipped)
    for k in range(4):
        first = rng.randrange(len(data))
        yield f"hole-{k}", data[:first] + data[first + rng.randrange(1, len(data) // 3) :]


def _lines_astray(text: str, others: list[str], rng: random.Random) -> Files:
    lines = text.splitlines(keepends=True)
    for k in range(3):
        yield f"shuffled-{k}", "".join(rng.sample(lines, len(lines))).encode()
    yield "twice", (text + text).encode()
    yield "every-line-twice", "".join(line + line for line in lines).encode()
    for k, other in enumerate(rng.sample(others, 4)):
        place = rng.randrange(len(lines))
        mixed = [*lines[:place], *other.splitlines(keepends=True), *lines[place:]]
        yield f"mixed-{k}", "".join(mixed).encode()
    yield "one-line", text.replace("\n", " ").encode()
    yield "indented", text.replace("\n", "\n" + " " * 200).encode()


def _numbers_changed(text: str, rng: random.Random) -> Files:
    places = list(_A_NUMBER.finditer(text))
    for k, number in enumerate(NUMBERS):
        found = rng.choice(places)
        yield f"number-{k}", (text[: found.start()] + number + text[found.end() :]).encode()
    for k, number in enumerate(("0", "-3", "9" * 400, "1e308", "1000000000000000000", "nan", "")):
        yield f"numbers-{k}", _A_NUMBER.sub(number, text).encode()
    for k in range(3):
        some = _A_NUMBER.sub(
            lambda found: found[0] if rng.random() < 0.7 else rng.choice(NUMBERS), text
        )
        yield f"some-numbers-{k}", some.encode()
    thousand = _A_NUMBER.sub(lambda found: f"{float(found[0]) / 1000:.6g}", text)
    yield "thousandth", thousand.encode()


def _characters_astray(text: str, rng: random.Random) -> Files:
    data = text.encode()
    yield "utf16", text.encode("utf-16")
    yield "bom", b"\xef\xbb\xbf" + data
    yield "crlf", text.replace("\n", "\r\n").encode()
    yield "nul", data[: len(data) // 2] + bytes(5) + data[len(data) // 2 :]
    words = re.split(r"(\W+)", text)
    for k in range(3):
        for place in rng.choices(range(len(words)), k=12):
            words[place] += ESCAPES
        yield f"escapes-{k}", "".join(words).encode()
    marked = re.sub(r'(?<=: ")(?=[^"]{1,60}",?)', r"\\u001b[31m\\n\\u202e\\u009b", text)
    yield "quoted-escapes", marked.encode()
    yield "cells-escapes", text.replace(",", "\x1b[31m\x9b\u202e,").encode()
    yield (
        "odd-words",
        re.sub(r"[A-Za-z]{4,}", lambda w: w[0] + "\u00e9\u4e2d", text, count=9).encode(),
    )
    for name, run in (("digits", "1"), ("spaces", " "), ("dashes", "-"), ("quotes", '"')):
        place = rng.randrange(len(text))
        yield f"run-of-{name}", (text[:place] + run * 50_000 + text[place:]).encode()


def _zipped(data: bytes, rng: random.Random) -> Files:
    packed = gzip.compress(data, mtime=0)
    yield "plain.gz", packed
    yield "twice.gz", gzip.compress(packed, mtime=0)
    yield "cut.gz", packed[: len(packed) // 2]
    yield "head-only.gz", packed[:12]
    yield "trailing.gz", packed + b"garbage after the end" * 9
    flipped = bytearray(packed)
    flipped[rng.randrange(20, len(packed))] ^= 0x55
    yield "flipped.gz", bytes(flipped)


# ------------------------------------------------------------------------------ meant to do harm


def nested() -> Files:
    """Yield files nested without end."""
    for depth in (100, 900, 3_000, 100_000):
        arrays, objects = "[" * depth, '{"a":' * depth
        yield f"array-{depth}", f"{arrays}{']' * depth}".encode()
        yield f"object-{depth}", f"{objects}1{'}' * depth}".encode()
        config = f'{{"model_type": "llama", "hidden_size": {arrays}1{"]" * depth}}}'
        yield f"config-{depth}", config.encode()
        yield f"trace-{depth}", f'{{"traceEvents": [{arrays}{"]" * depth}]}}'.encode()
        args = (
            f'{{"ph":"X","ts":1,"cat":"kernel","name":"a","dur":1,"args":{objects}1{"}" * depth}}}'
        )
        yield f"event-{depth}", f'{{"traceEvents": [{args}]}}'.encode()
        line = f'{{"coll_perf":{{"coll_exec_time_us":{arrays}{"]" * depth}}}}}'
        yield f"inspector-{depth}", line.encode()
        report = f'{{"args":["all_reduce_perf"],"nccl_version":{objects}1{"}" * depth}}}'
        yield f"report-{depth}", report.encode()
        yield f"xml-{depth}", ("<system>" + "<cpu><pci>" * depth).encode()
        yield f"toml-{depth}", f"based_on = {arrays}1{']' * depth}\n".encode()
        dotted = ".".join(["a"] * depth)
        yield f"dotted-{depth}", f'name = "x"\nbased_on.{dotted} = 1\nlibrary = []\n'.encode()
        tables = f'name = "x"\nbased_on = "h100_sxm"\n[[library]]\nkind.{dotted} = 1\n'
        yield f"dotted-library-{depth}", tables.encode()


def markup() -> Files:
    """Yield XML that expands, fetches or never ends."""
    laughs = '<!ENTITY a0 "ha">' + "".join(
        f'<!ENTITY a{k} "{f"&a{k - 1};" * 10}">' for k in range(1, 12)
    )
    yield "laughs", f'<!DOCTYPE system [{laughs}]><system><cpu arch="&a11;"/></system>'.encode()
    big = "A" * 100_000
    quadratic = f'<!DOCTYPE system [<!ENTITY a "{big}">]><system>{"&a;" * 10_000}</system>'
    yield "quadratic", quadratic.encode()
    for k, target in enumerate(("file:///etc/passwd", "http://127.0.0.1:9/x", "/dev/zero")):
        outside = f'<!DOCTYPE system [<!ENTITY x SYSTEM "{target}">]><system>&x;</system>'
        yield f"external-{k}", outside.encode()
        parameter = f'<!DOCTYPE system [<!ENTITY % p SYSTEM "{target}"> %p;]><system/>'
        yield f"parameter-{k}", parameter.encode()
        yield f"dtd-{k}", f'<!DOCTYPE graphs SYSTEM "{target}"><graphs/>'.encode()
    yield "late", f"<system>{TUNER}<!DOCTYPE x []></system>".encode()
    yield "comment-first", b"<!-- <system> -->" * 4000 + b"<system/>"
    yield "encoding", b'<?xml version="1.0" encoding="utf-99"?><system><cpu/></system>'
    yield "utf7", b'<?xml version="1.0" encoding="utf-7"?><system><cpu/></system>'
    yield "utf16", _topology().encode("utf-16")
    gpu = '<gpu dev="1" sm="90"><nvlink target="fffffff:ff:ff.0" count="18"/></gpu>'
    yield "many-gpus", f"<system><cpu>{gpu * 20_000}</cpu></system>".encode()
    net = '<pci class="0x020700"><nic><net name="a" speed="1"/></nic></pci>'
    yield "many-nics", f"<system><cpu>{gpu * 400}{net * 16_000}</cpu></system>".encode()
    yield "many-cpus", f"<system>{'<cpu/>' * 40_000}{'<cpu>' + gpu + '</cpu>'}</system>".encode()
    channel = '<channel><gpu dev="0"/></channel>'
    graph = (
        f'<graph id="0" pattern="4" nchannels="2" speedintra="2" speedinter="0">{channel}</graph>'
    )
    yield "many-graphs", f"<graphs>{graph * 16_000}</graphs>".encode()
    attributes = " ".join(f'a{k}="{k}"' for k in range(100_000))
    yield "attributes", f"<system><cpu {attributes}/></system>".encode()
    yield "long-name", f"<system><{'x' * 10**6}/></system>".encode()


def many() -> Files:
    """Yield files with far more of everything than any machine has."""
    call = '{{"header":{{"n_ranks":{0},"nnodes":1}},"coll_perf":{{"coll":"AllReduce","coll_sn":{0},"coll_msg_size_bytes":{0},"coll_exec_time_us":9}}}}\n'  # noqa: E501
    yield "inspector-ranks", "".join(call.format(k) for k in range(1, 50_000)).encode()
    row = "{} {} float sum -1 10.00 0.10 0.10 0 10.00 0.10 0.10 0\n"
    tables = "".join(
        f"# Collective test starting: all_reduce_perf\n{row.format(1024 - k % 9, k)}"
        for k in range(20_000)
    )
    yield "nccl-tables", (NCCL_TESTS + tables).encode()
    ranks = "".join(
        f"#  Rank {k} Group {k} Pid {k} on node-{k} device 0 [0x1b] NVIDIA H100 80GB HBM3\n"
        for k in range(100_000)
    )
    yield "nccl-ranks", (NCCL_TESTS + ranks + _rows(1.75)).encode()
    tables = "".join(_rows(1.75) for _ in range(500))
    yield "nccl-ranks-tables", (NCCL_TESTS + ranks + tables).encode()
    sources = "".join(f"[1,{k}]<stdout>: {row.format(1024, 256)}" for k in range(30_000))
    yield "nccl-sources", (NCCL_TESTS + sources).encode()
    yield (
        "osu-tables",
        "".join(f"# OSU MPI Allreduce Latency Test\n{k} 1.0\n" for k in range(1, 20_000)).encode(),
    )
    results = ",".join(
        f'{{"experiment_name":"{k}","size":{k + 1},"out_of_place":{{"time":1}}}}'
        for k in range(60_000)
    )
    report = f'{{"args":["all_reduce_perf"],"nccl_version":1,"config":{{"nthreads":1}},"results":[{results}]}}'  # noqa: E501
    yield "nccl-json-results", report.encode()
    rows = "".join(f"allreduce,{k},ring,simple,{k},1,{k},9.5,1\n" for k in range(1, 60_000))
    yield "measurements-runs", (_measurements().partition("\n")[0] + "\n" + rows).encode()
    rules = "".join(f"allreduce,{k},{k},ring,ll,-1,{k % 1000},{k},-1,-1\n" for k in range(60_000))
    yield "tuner-rules", rules.encode()
    result = '{"completed":1,"request_rate":1,"total_input_tokens":1,"mean_ttft_ms":1}\n'
    yield "serving-runs", (result * 30_000).encode()
    gaps = ",".join(["[0.1,0.1,0.1]"] * 150_000)
    ones = ",".join(["1"] * 150_000)
    lists = f'"input_lens":[{ones}],"output_lens":[{ones}],"itls":[{gaps}]'
    yield "serving-requests", (result[:-2] + f",{lists}}}").encode()
    yield "matrix-devices", ("\t" + "\t".join(f"GPU{k}" for k in range(9000)) + "\n").encode()
    names = [f"GPU{k}" for k in range(128)] + [f"NIC{k}" for k in range(128)]
    square = ["\t".join(["", *names])] + ["\t".join([n] + ["PIX"] * 256) for n in names]
    yield "matrix-square", "\n".join(square).encode()
    yield (
        "table-columns",
        (_table().partition("\n")[0] + "".join(f",c{k}" for k in range(60_000)) + "\n").encode(),
    )
    head, _, body = _table().partition("\n")
    yield "table-rows", (head + "\n" + body * 3000).encode()
    yield "table-tiny-cells", (head + "\n" + "1,1,1,1,1,1,1,1,1,1,1,1,11\n" * 1_500_000).encode()
    ranks_list = json.dumps(list(range(10**6)))
    yield (
        "kineto-rank-list",
        (
            '{"schemaVersion":1,"distributedInfo":{"pg_config":[{"pg_name":"0","ranks":'
            + ranks_list
            + '}]},"traceEvents":['
            + json.dumps(_kernel(1))
            + "]}"
        ).encode(),
    )
    text_list = _kernel(1)
    text_list["args"] = text_list["args"] | {"Process Group Ranks": str(list(range(10**5)))}
    yield "kineto-rank-text", json.dumps({"traceEvents": [text_list] * 20}).encode()


def traces() -> Files:
    """Yield traces with far more of everything than any job has."""

    def written(events: Iterator[dict[str, Any]]) -> bytes:
        return b'{"traceEvents":[' + b",".join(json.dumps(each).encode() for each in events) + b"]}"

    def called(k: int, **args: Any) -> dict[str, Any]:
        event = _kernel(k)
        event["args"] = event["args"] | args
        return event

    yield (
        "groups",
        written(
            called(k, **{"Process Group Name": str(k), "Group size": k, "device": k % 2000})
            for k in range(12_000)
        ),
    )
    yield "devices", written(called(k, device=k) for k in range(6_000))
    yield "collectives", written(called(k, **{"Collective name": f"c{k}"}) for k in range(20_000))
    yield "sizes", written(called(k, **{"In msg nelems": 2**59, "Seq": 0}) for k in range(2_000))
    bare = {"correlation": 0}

    def threads() -> Iterator[dict[str, Any]]:
        for k in range(1, 15_000):
            yield _kernel(k, args={"correlation": k, "device": 0})
            said = {"Collective name": "allreduce", "In msg nelems": 8, "dtype": "Float"}
            yield _kernel(k, cat="cpu_op", name="record_param_comms", tid=k, args=said)
            yield _kernel(
                k, cat="cuda_runtime", name="cudaLaunch", tid=k, args=bare | {"correlation": k}
            )

    yield "threads", written(threads())
    yield "names", written(_kernel(k, name=f"k{k}" * 50, args={}) for k in range(30_000))
    yield "broken", b'{"traceEvents":[' + b'{"ph":"X","cat":"kernel",,},' * 60_000 + b"]}"
    yield "strings", b'{"traceEvents":[' + b'"a",' * 400_000 + b'"b"]}'
    yield "bare-numbers", b'{"ph":1,"ts":2,"traceEvents":[' + b"1," * 1_000_000 + b"1]}"
    yield "absurd-numbers", b'{"traceEvents":[' + (b"9" * 5000 + b",") * 2_000 + b"1]}"
    yield "nan-events", written(_kernel(k, ts=float("nan"), dur=float("inf")) for k in range(9_000))
    yield "open-string", b'{"traceEvents":["' + b"a" * (8 * 2**20)
    yield "open-array", b'{"traceEvents":[' + b"[" * 300 + b"1," * 3_000_000
    yield (
        "members",
        b"{" + b",".join(b'"a%d":1' % k for k in range(200_000)) + b',"traceEvents":[]}',
    )
    yield "spaces", b'{"traceEvents":[' + b" " * (8 * 2**20) + b"]}"
    yield "commas", b'{"traceEvents":[' + b"," * (2 * 2**20) + b"]}"
    yield "braces", b'{"traceEvents":[' + b"} , " * 2**20


def patterns() -> Files:
    """Yield files on which a careless regular expression would take for ever."""
    heads = {
        "nccl": NCCL_TESTS,
        "osu": OSU,
        "matrix": _matrix(),
        "tuner": TUNER,
        "measurements": _measurements(),
        "profile": _profile(),
        "nothing": "x\n",
    }
    runs = {
        "spaces": " " * 290 + "x\n",
        "row-spaces": "1 1" + " " * 285 + "x\n",
        "tabs": "\t \t" * 90 + "x float\n",
        "digits": "1" * 290 + "x float\n",
        "numbers": "1 " * 140 + "x float\n",
        "dotted": "1.1." * 70 + "x\n",
        "rank": "# Rank 1 Pid 1 on " + "a" * 200 + " device 1 [" + "[" * 60 + "\n",
        "sharp": "# Rank " * 140 + "\n",
        "dashes": "-" * 290 + "_perf -n -n -np osu_\n",
        "title": "OSU MPI " * 30 + "Test\n",
        "names": "GPU0 " * 60 + "\n",
        "codes": "\x1b[" + "1;" * 140 + "\n",
        "blank": "\n" * 290,
        "equals": "based_on" + " " * 280 + "\n",
    }
    for head, text in heads.items():
        for run, line in runs.items():
            yield f"{head}-{run}", (text + line * 1_500).encode()


def _bomb(head: str, filler: bytes) -> bytes:
    """Return a gzip of a few hundred kilobytes that unpacks to half a gigabyte, in many parts."""
    return gzip.compress(head.encode(), mtime=0) + 32 * gzip.compress(filler, 9, mtime=0)


def heavy() -> Files:
    """Yield files that are large, or become so."""
    full = 2**24
    event = json.dumps(_kernel(1)).encode() + b","
    rows = _rows(1.75).encode()
    yield "spaces.gz", _bomb("", b" " * full)
    yield "zeros.gz", _bomb("", bytes(full))
    yield "trace.gz", _bomb('{"traceEvents":[', event * (full // len(event)))
    yield "log.gz", _bomb(NCCL_TESTS, rows * (full // len(rows)))
    yield "xml.gz", _bomb("<system>", b" " * full)
    yield "matrix.gz", _bomb(_matrix(), b"\n" * full)
    yield "config.gz", _bomb('{"model_type":"', b"a" * full)
    size = 50 * 10**6
    for name in ("nccl-tests", "kineto", "tuner", "table", "config", "inspector"):
        yield f"long-line-{name}", samples()[name].encode() + b"7" * size
    yield "long-line", b"1 " * (size // 2)
    yield "wide-characters", _matrix().encode() + "\U0001f600".encode() * (15 * 2**20 // 4)
    yield "tuner-lines", TUNER.encode() + b"a\n" * (7 * 2**20)
    yield "nccl-lines", NCCL_TESTS.encode() + b"1\n" * 5_000_000
    yield "osu-lines", OSU.encode() + b"1 1\n" * 3_000_000
    yield "inspector-lines", _inspector().encode() + b"{}\n" * 3_000_000
    yield "inspector-calls", _inspector().encode() * 3_000
    yield "matrix-lines", _matrix().encode() + b"\n" * (12 * 2**20)


GROUPS: Final[dict[str, Callable[[], Files]]] = {
    "nested": nested,
    "markup": markup,
    "many": many,
    "traces": traces,
    "patterns": patterns,
    "heavy": heavy,
}


def batches() -> list[str]:
    """Return the names of all groups of files."""
    return [*samples(), *GROUPS]


def files_of(batch: str) -> Files:
    """Yield the files of a group."""
    if batch in GROUPS:
        yield from GROUPS[batch]()
        return
    sound = samples()
    others = [text for name, text in sound.items() if name != batch]
    yield from damaged(sound[batch], others, batch)


# ------------------------------------------------------------------------------------ the process


def commands_for(file: str, batch: str) -> Iterator[list[str]]:
    """Yield the commands that are given a file."""
    light = batch not in GROUPS
    if light or len(file) % 2:
        yield ["inspect", file]
    if light or not len(file) % 2:
        yield ["inspect", file, "--json", "--on", "h100_sxm"]
    if batch in {"table", "many"}:
        yield ["validate", file]
    if file.endswith(".toml"):
        sized = ["--size", "1MiB", "--gpus", "8"]
        yield ["collective", "all_reduce", *sized, "--on", f"./{file}"]


def fault_in(code: object, out: str, err: str, file: str, *, as_json: bool) -> str:
    """Return what is wrong with how a command ended; empty where all is as it should be."""
    both = out + err
    if code not in {0, 2}:
        return f"exit code {code}"
    if any(not each.isprintable() and each != "\n" for each in both):
        return f"a control character reaches the terminal: {both!r}"[:300]
    if code == 0 and as_json:
        json.loads(out, parse_constant=lambda name: sys.exit(f"{name} is not JSON"))
    if code == 0:
        return f"says {err!r} besides" if err else ""
    if out or err.count("\n") != 1 or not err.startswith("shardcost: "):
        return f"not one line: {err!r}, and {out[:60]!r}"
    if (
        file not in err
        or len(err) > _LONGEST_LINE
        or re.search(r"Traceback|\w(Error|Exception)\b", err)
    ):
        return f"not one clear line that names {file}: {err!r}"
    return ""


def _taken(words: list[str], file: str) -> str:
    """Run a command; return what is wrong with how it ended."""
    from shardcost import cli

    out, err = io.StringIO(), io.StringIO()
    try:
        with redirect_stdout(out), redirect_stderr(err):
            code: object = cli.main(words)
        return fault_in(code, out.getvalue(), err.getvalue(), file, as_json="--json" in words)
    except BaseException as error:  # whatever it is, it is what is looked for
        import traceback

        where = traceback.extract_tb(error.__traceback__)[-1]
        return f"{type(error).__name__}: {str(error)[:200]} at {where.filename}:{where.lineno}"


def _peak_megabytes() -> float:
    status = Path("/proc/self/status")
    if status.exists():
        found = re.search(r"VmHWM:\s+(\d+) kB", status.read_text())
        return int(found[1]) / 1e3 if found else 0.0
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


def _forget_peak() -> None:
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


class _HangError(BaseException):
    """A file took far too long."""


def _give_up(_signal: int, _frame: FrameType | None) -> None:
    raise _HangError(f"over {_GIVEN_UP_AFTER_S} s")


def judge(names: list[str], batch: str) -> None:
    """Give each file to the commands and print what came of it."""
    resource.setrlimit(resource.RLIMIT_AS, (_ADDRESS_SPACE, _ADDRESS_SPACE))
    signal.signal(signal.SIGALRM, _give_up)
    _taken(["inspect", "--help"], "")  # what it takes to start is not the files' doing
    for name in names:
        faults, slowest = [], 0.0
        _forget_peak()
        for words in commands_for(name, batch):
            signal.alarm(_GIVEN_UP_AFTER_S)
            began = time.process_time()
            fault = _taken(words, name)
            signal.alarm(0)
            slowest = max(slowest, time.process_time() - began)
            faults += [f"{' '.join(words)}: {fault}"] if fault else []
        peak = _peak_megabytes()
        faults += [f"{name} took {slowest:.1f} s"] if slowest > MOST_SECONDS else []
        faults += [f"{name} took {peak:.0f} MB"] if peak > MOST_MEGABYTES else []
        print(json.dumps({"file": name, "s": slowest, "MB": peak, "faults": faults}), flush=True)


def write_batch(batch: str, folder: Path) -> list[str]:
    """Write the files of a group to a folder and return their names."""
    names = []
    for bare, content in files_of(batch):
        profile = batch == "profile" or "toml" in bare or "dotted" in bare
        name = bare + ".toml" * profile
        (folder / name).write_bytes(content)
        names.append(name)
    return names


if __name__ == "__main__":
    for folder in map(Path, sys.argv[1:]):
        os.chdir(folder)
        judge(sorted(each.name for each in Path().iterdir()), folder.name)
