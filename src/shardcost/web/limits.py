"""Every limit on what a request may contain and use."""

from __future__ import annotations

from typing import Final

HEAD_BYTES: Final = 2**16
"""Of the address and headers of a request."""
JSON_BYTES: Final = 2**20
"""Of a JSON body, including a pasted config or profile."""
FILE_BYTES: Final = 16 * 2**20
"""Of a file that is dropped on the page."""
HEAD_S: Final = 10.0
"""Time for the head of a request to arrive; twice that on a connection that was used before."""
ANSWER_LOOKS: Final = 12
"""Times `HEAD_S` for the client to receive the response."""
BODY_S: Final = 10.0
"""Time for a body to arrive."""
CONNECTIONS: Final = 512
"""At a time; one more takes the place of the one that has been idle longest."""
IDLE_CONNECTIONS: Final = 128
"""Of one address, without a request that is being answered; one more takes the place of the
oldest. A browser holds six."""

MOST_VALUES: Final = 64
"""In one list."""
MOST_COUNT: Final = 10**9
"""Of any whole number in a request."""
MOST_BYTES: Final = 2**53
"""Of a size: beyond it a browser has no whole numbers."""
MOST_NUMBER: Final = 1e12
"""Of any other number."""
MOST_CHARACTERS: Final = 200
"""Of a name or a word."""
MOST_PASSES: Final = 100_000
"""Passes of micro-batches through stages in a step that is drawn, of which a part is shown."""
MOST_WRITTEN_PASSES: Final = 10_000
"""The same of a step that is written in full, as a trace."""
MOST_REQUESTS: Final = 20_000
"""Requests of one load that is simulated."""
MOST_LOADS: Final = 24
"""Loads of a sweep whose values are given."""
SWEPT_REQUESTS: Final = 1000
"""Requests for each worker at every rate of a sweep, where their number is not given …"""
MOST_SWEPT_REQUESTS: Final = 2400
"""… and at most, of all workers."""
SWEPT_USERS: Final = 512
"""Users of a sweep for each worker, at most …"""
MOST_SWEPT_USERS: Final = 2048
"""… and of all workers."""
MOST_SPLITS: Final = 6
"""Divisions of GPUs between prefill and decode that are compared …"""
SPLIT_REQUESTS: Final = 300
"""… by so many requests for each worker …"""
MOST_SPLIT_REQUESTS: Final = 1200
"""… and at most, of all workers."""

MOST_DEPLOYED: Final = 4096
"""GPUs of a search over deployments."""
MOST_SIMULATED: Final = 24
"""Deployments of one that are simulated."""

START_S: Final = 60.0
"""Time for a worker to start, on a busy machine."""
TASK_S: Final = 10.0
"""Computing time of one request."""
FILE_S: Final = 20.0
"""Time to read a file, to draw a report, or to simulate loads."""
CALIBRATE_S: Final = 40.0
"""Time to fit constants to a file beside reading it; one that takes longer is only explained."""
SEARCH_S: Final = 120.0
"""Time of one search …"""
REVIEW_S: Final = 20.0
"""… and of what follows it: the estimates of the best, or what to relax where there is none."""
MEMORY_BYTES: Final = 2 * 2**30
"""Memory of one worker."""
RETIRE_BYTES: Final = 2**30
"""A worker that has used more is replaced: its caches are full."""

TASKS_WAITING: Final = 400
"""Requests that may wait for a worker."""
FILES: Final = 2
"""Files that are read at a time."""
FILES_WAITING: Final = 8
SEARCHES: Final = 2
"""Searches that run at a time."""
SEARCHES_WAITING: Final = 8
ABANDONED_S: Final = 15.0
"""A search that has not been polled for this long is cancelled."""
KEPT_S: Final = 300.0
"""Time that the result of a search is kept."""
KEPT_SEARCHES: Final = 32
CACHED: Final = 512
"""Replies in the cache."""
CACHED_BYTES: Final = 2**17
"""Of one cached reply and its request, at most."""
