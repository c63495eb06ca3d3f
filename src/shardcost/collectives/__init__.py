"""Collectives: the time they take on real machines, and their algorithms as exact schedules."""

from typing import Final

COLLECTIVES: Final = (
    "all_reduce",
    "reduce_scatter",
    "all_gather",
    "all_to_all",
    "broadcast",
    "reduce",
    "send_recv",
)
ALGORITHMS: Final = {
    "ring": "each GPU passes blocks on to the next",
    "tree": "two binary trees over the domains, a chain inside each",
    "nvls": "the switch adds up and multicasts (NVLink SHARP)",
    "nvls_tree": "the switches add up, and a tree joins the domains",
    "p2p": "each GPU sends to each other one directly",
    "send": "each GPU sends to the next",
    "chain": "from GPU to GPU along a chain, in chunks",
    "torus": "rings along all axes of the torus that the group covers, at once",
    "one_shot": "each GPU reads all other buffers and adds them up itself",
    "two_shot": "each GPU adds up one share, then gathers the others'",
    "recursive": "pairs exchange halves, quarters and so on",
    "multicast": "each GPU has the switch add up one share and multicast it",
}
"""Every algorithm by name, with what it does."""
PROTOCOLS: Final = {
    "LL": "a flag in every 8 bytes: low latency, half of the rate",
    "LL128": "a flag in every 128 bytes: low latency, most of the rate",
    "Simple": "whole chunks behind a fence: high latency, full rate",
    "rings": "both directions of each axis at once, by engines beside the matrix units",
    "direct": "a kernel of the engine, reading and writing peers' memory",
}
"""Every protocol by name, with what it does."""
