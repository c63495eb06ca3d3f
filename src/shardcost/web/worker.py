"""A worker process: tasks are read from standard input, replies written to standard output.

`shardcost.web.pool` starts ``python -m shardcost.web.worker``, and ends it when a task takes too
long or too much memory.

A message is a length and a text of JSON, then a length and bytes::

    {"task": "estimate", "fields": {…}, "gzip": true}, b""   ──►
                           ◄──  {"state": "done", …}, b"{…}"      and before it any number of
                           ◄──  {"state": "progress", "done": 10, "cells": 100}, b""
"""

from __future__ import annotations

import gzip
import json
import os
import signal
import struct
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, BinaryIO, Final

from shardcost.errors import ShardcostError
from shardcost.web.limits import MEMORY_BYTES, RETIRE_BYTES

SIZES: Final = struct.Struct("!II")
_ZIPPED_FROM: Final = 1400
"""Bytes: anything shorter fits one packet."""
LOW_PRIORITY: Final = "--low-priority"
"""Argument of a worker that leaves the processor to others."""
_NICENESS: Final = 10
_PROGRESS_EVERY_S: Final = 0.1
Head = dict[str, Any]
Progress = Callable[[int, int], None]


def packed(head: Head, body: bytes = b"") -> bytes:
    """Return a message as bytes."""
    text = json.dumps(head).encode()
    return SIZES.pack(len(text), len(body)) + text + body


def main() -> None:
    """Reply to tasks until the server closes the pipe."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the server, which ends this
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # a library may print
    _bound_memory()
    later = list(sys.argv[1:])
    if later == [LOW_PRIORITY]:
        later = []
        with suppress(AttributeError, OSError):
            os.nice(_NICENESS)
    tasks: SimpleQueue[tuple[Head, bytes]] = SimpleQueue()
    threading.Thread(target=_read, args=(sys.stdin.buffer, tasks), daemon=True).start()
    warm_up(("estimate",))
    _send(out, {"state": "ready"})
    while True:
        while later and tasks.empty():
            warm_up((later.pop(0),))
        _send(out, *answer(*tasks.get(), _reporter(out)))


def _read(stream: BinaryIO, tasks: SimpleQueue[tuple[Head, bytes]]) -> None:
    """Queue the tasks that arrive; end the process at once when the pipe is closed."""
    while True:
        sizes = stream.read(SIZES.size)
        if len(sizes) < SIZES.size:
            os._exit(0)
        head, body = SIZES.unpack(sizes)
        tasks.put((json.loads(stream.read(head)), stream.read(body)))


def _send(out: BinaryIO, head: Head, body: bytes = b"") -> None:
    out.write(packed(head, body))
    out.flush()


def _reporter(out: BinaryIO) -> Progress:
    last = 0.0

    def report(done: int, cells: int) -> None:
        nonlocal last
        if time.monotonic() - last >= _PROGRESS_EVERY_S or done == cells:
            last = time.monotonic()
            _send(out, {"state": "progress", "done": int(done), "cells": int(cells)})

    return report


def answer(head: Head, body: bytes, progress: Progress) -> tuple[Head, bytes]:
    """Return the reply to a task, whatever goes wrong."""
    from shardcost.request import ImpossibleError

    started = time.perf_counter()
    try:
        reply, content = _content(_result(head, body, progress), zipped=bool(head.get("gzip")))
        reply |= {"state": "done"}
    except ShardcostError as error:
        reply, content = {"state": "refused", "detail": str(error)}, b""
        if isinstance(error, ImpossibleError):
            reply["impossible"] = True
    except MemoryError:
        reply, content = {"state": "unable", "detail": "this takes more memory than there is"}, b""
    except Exception as error:
        reply, content = {"state": "broken", "detail": _described(error)}, b""
    reply["seconds"] = time.perf_counter() - started
    reply["retire"] = _most_memory() > RETIRE_BYTES
    return reply, content


def _result(head: Head, body: bytes, progress: Progress) -> Any:
    from shardcost.web import answers

    if head["task"] in answers.SEARCHES:
        return answers.SEARCHES[head["task"]](head["fields"], progress)
    if head["task"] == "file":
        from shardcost.calibrate.gather import Stated
        from shardcost.web.uploads import explain

        return explain(head["name"], body, Stated(**head.get("stated", {})))
    return answers.QUESTIONS[head["task"]](head["fields"])


def _content(result: Any, *, zipped: bool) -> tuple[Head, bytes]:
    """Return a result as it is sent to the browser."""
    from shardcost.web.answers import Document

    head: Head = {}
    if isinstance(result, Document):
        content = result.content
        head |= {"kind": result.kind, "name": result.name}
    else:
        content = json.dumps(
            result, ensure_ascii=False, allow_nan=False, separators=(",", ":")
        ).encode()
    if zipped and len(content) >= _ZIPPED_FROM:
        content = gzip.compress(content, 1, mtime=0)
        head["zipped"] = True
    return head, content


def _described(error: Exception) -> str:
    """Return the exception and where it was raised, in one line."""
    from traceback import extract_tb

    where = [f"{frame.filename}:{frame.lineno}" for frame in extract_tb(error.__traceback__)]
    return " ".join(f"{type(error).__name__}: {error} ({' < '.join(where[::-1][:4])})".split())


def warm_up(tasks: Sequence[str]) -> None:
    """Run the page's first tasks, so that no user waits for modules to be imported."""
    from shardcost.web.answers import QUESTIONS
    from shardcost.web.asks import FIRST, field_values

    for task in tasks:
        with suppress(Exception):  # a request will report it
            QUESTIONS[task](field_values(*FIRST[task]))


def _bound_memory() -> None:
    try:
        import resource
    except ImportError:  # not on this system
        return
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    most = MEMORY_BYTES if hard == resource.RLIM_INFINITY else min(hard, MEMORY_BYTES)
    resource.setrlimit(resource.RLIMIT_DATA, (most, hard))


def _most_memory() -> int:
    """Return the peak memory of this process; 0 where it is not known."""
    try:
        import resource
    except ImportError:
        return 0
    unit = 1 if sys.platform == "darwin" else 1024
    return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


if __name__ == "__main__":
    main()
