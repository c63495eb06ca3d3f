"""The process that computes: questions come in on standard input, answers leave on standard output.

``python -m shardcost.web.worker`` is started by `shardcost.web.crew`, and ends with it. It is a
process of its own so that it can be ended: a question that takes too long, or too much memory,
takes nothing away from others.

A message is a length and a text of JSON, then a length and bytes::

    {"task": "estimate", "ask": {…}, "gzip": true}, b""   ──►
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
"""Bytes: what is shorter fits one packet anyway."""
IN_NO_HURRY: Final = "--in-no-hurry"
"""Told to a process whose answers may take a while."""
_NICENESS: Final = 10
_TELL_EVERY_S: Final = 0.1
Head = dict[str, Any]


def packed(head: Head, body: bytes = b"") -> bytes:
    """Return a message as it travels."""
    text = json.dumps(head).encode()
    return SIZES.pack(len(text), len(body)) + text + body


def main() -> None:
    """Answer until nobody asks any more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the server, which ends this
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints is no answer
    _bound_memory()
    later = list(sys.argv[1:])
    if later == [IN_NO_HURRY]:
        later = []
        _step_back()
    asked: SimpleQueue[tuple[Head, bytes]] = SimpleQueue()
    threading.Thread(target=_read, args=(sys.stdin.buffer, asked), daemon=True).start()
    warm_up(("estimate",))
    _send(out, {"state": "ready"})
    while True:
        while later and asked.empty():
            warm_up((later.pop(0),))
        _send(out, *answered(*asked.get(), _teller(out)))


def _read(stream: BinaryIO, asked: SimpleQueue[tuple[Head, bytes]]) -> None:
    """Hand on what is asked; when there can be no more, end at once, whatever is under way."""
    while True:
        sizes = stream.read(SIZES.size)
        if len(sizes) < SIZES.size:
            os._exit(0)
        head, body = SIZES.unpack(sizes)
        asked.put((json.loads(stream.read(head)), stream.read(body)))


def _send(out: BinaryIO, head: Head, body: bytes = b"") -> None:
    out.write(packed(head, body))
    out.flush()


def _teller(out: BinaryIO) -> Callable[[int, int], None]:
    """Return what tells now and then how far a search is."""
    last = 0.0

    def tell(done: int, cells: int) -> None:
        nonlocal last
        if time.monotonic() - last >= _TELL_EVERY_S or done == cells:
            last = time.monotonic()
            _send(out, {"state": "progress", "done": int(done), "cells": int(cells)})

    return tell


def answered(head: Head, body: bytes, tell: Callable[[int, int], None]) -> tuple[Head, bytes]:
    """Return the answer to a message, whatever happens on the way to it."""
    from shardcost.request.errors import ImpossibleError

    started = time.perf_counter()
    try:
        answer, content = _content(_answer(head, body, tell), zipped=bool(head.get("gzip")))
        answer |= {"state": "done"}
    except ImpossibleError as error:
        answer, content = {"state": "refused", "detail": str(error), "impossible": True}, b""
    except ShardcostError as error:
        answer, content = {"state": "refused", "detail": str(error)}, b""
    except MemoryError:
        answer, content = {"state": "unable", "detail": "this takes more memory than there is"}, b""
    except Exception as error:
        answer, content = {"state": "broken", "detail": _told(error)}, b""
    answer["seconds"] = time.perf_counter() - started
    answer["retire"] = _most_memory() > RETIRE_BYTES
    return answer, content


def _answer(head: Head, body: bytes, tell: Callable[[int, int], None]) -> Any:
    from shardcost.web import answers

    if head["task"] == "plan":
        return answers.plan(head["ask"], tell)
    if head["task"] == "file":
        from shardcost.web.dropped import dropped

        return dropped(head["name"], body)
    return answers.QUESTIONS[head["task"]](head["ask"])


def _content(answer: Any, *, zipped: bool) -> tuple[Head, bytes]:
    """Return an answer as it is sent to the browser."""
    from shardcost.web.answers import Document

    head: Head = {}
    if isinstance(answer, Document):
        content = answer.content
        head |= {"kind": answer.kind, "name": answer.name}
    else:
        content = json.dumps(
            answer, ensure_ascii=False, allow_nan=False, separators=(",", ":")
        ).encode()
    if zipped and len(content) >= _ZIPPED_FROM:
        content = gzip.compress(content, 1, mtime=0)
        head["zipped"] = True
    return head, content


def _told(error: Exception) -> str:
    """Return what went wrong and where, in one line."""
    from traceback import extract_tb

    where = [f"{each.filename}:{each.lineno}" for each in extract_tb(error.__traceback__)]
    return " ".join(f"{type(error).__name__}: {error} ({' < '.join(where[::-1][:4])})".split())


def warm_up(tasks: Sequence[str]) -> None:
    """Answer the page's first questions, so that nobody waits for modules to be imported."""
    from shardcost.web.answers import QUESTIONS
    from shardcost.web.asks import FIRST, field_values

    for task in tasks:
        with suppress(Exception):  # whoever asks is told
            QUESTIONS[task](field_values(*FIRST[task]))


def _step_back() -> None:
    """Leave the processor to whoever answers questions in the meantime."""
    with suppress(AttributeError, OSError):
        os.nice(_NICENESS)


def _bound_memory() -> None:
    try:
        import resource
    except ImportError:  # not on this system
        return
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    most = MEMORY_BYTES if hard == resource.RLIM_INFINITY else min(hard, MEMORY_BYTES)
    resource.setrlimit(resource.RLIMIT_DATA, (most, hard))


def _most_memory() -> int:
    """Return the most memory that this process has had; 0 where that is not known."""
    try:
        import resource
    except ImportError:
        return 0
    unit = 1 if sys.platform == "darwin" else 1024
    return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


if __name__ == "__main__":
    main()
