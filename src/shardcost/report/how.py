"""How each algorithm of a collective works, in a few sentences for somebody who has not met it."""

from __future__ import annotations

from typing import Final


def how(collective: str, algorithm: str) -> list[str]:
    """Return how an algorithm does a collective.

    >>> how("all_gather", "ring")[0]
    'Each rank sends only to its right neighbour, and in every step the block it received last.'
    """
    text = _TEXTS.get((collective, algorithm)) or _TEXTS["", algorithm]
    return [" ".join(item.split()) for item in text.split("\n        - ")[1:]]


_TEXTS: Final[dict[tuple[str, str], str]] = {
    ("", "bidirectional_ring"): """
        - A ring that uses both directions: half of each block goes round to the right, the
          other half to the left, at the same time.
        - Where links have separate ports to both neighbours, as in a torus, that halves the
          time; behind one port of a switch it changes nothing.
    """,
    ("all_reduce", "binary_tree"): """
        - Up: each rank adds what its children send to its own buffer and passes the sum on
          to its parent; the root ends with the sum of all.
        - Down: the root sends the sum to its children, they to theirs.
        - The buffer is cut into pieces that follow each other through the tree, so that all
          levels work at once; latency grows with the depth, log2 n, instead of with n.
        - Inner ranks send and receive twice as much as leaves, so half of the links' rate
          is idle.
    """,
    ("", "binary_tree"): """
        - Each rank passes on to its two children what its parent sends; a reduce is the
          same backwards, adding.
        - The buffer is cut into pieces that follow each other through the tree, so that all
          levels work at once; latency grows with the depth, log2 n, instead of with n.
    """,
    ("", "binomial"): """
        - In every step each rank that has the buffer gives it to one that has not, so that
          their number doubles: ceil(log2 n) steps. A reduce is the same backwards, adding.
        - The whole buffer travels in every step: good for small buffers.
    """,
    ("all_to_all", "bruck"): """
        - Rank r sends in step i every chunk whose distance to its target has bit i set, to
          the rank 2^i away: ceil(log2 n) steps instead of n - 1.
        - A chunk travels as many times as its distance has bits, so about log2 n / 2 times
          the buffer is sent: good for small chunks.
    """,
    ("", "bruck"): """
        - Blocks travel by the bits of their distance: in step i each rank sends what it has
          gathered to the rank 2^i away.
        - Takes ceil(log2 n) steps for any n, with as many bytes as a ring.
    """,
    ("", "chain"): """
        - From rank to rank along a chain. The buffer is cut into pieces: while a rank
          passes one on, it receives the next.
        - With many pieces the time nears one buffer over the rate, plus n - 2 latencies.
    """,
    ("send_recv", "direct"): """
        - Each rank sends its buffer to the next one, all at once.
    """,
    ("", "direct"): """
        - Every rank sends to every other what that one must get, all at once: one latency.
        - No rank sends more than it must; a switch must take n - 1 streams into each port.
    """,
    ("all_reduce", "double_binary_tree"): """
        - Two trees, each for one half of the buffer: a rank that is a leaf of one is an
          inner node of the other, so that every rank sends and receives alike.
        - Each half goes up its tree, adding, and down again.
        - The buffer is cut into pieces that follow each other through the tree, so that all
          levels work at once; latency grows with the depth, log2 n, instead of with n.
    """,
    ("", "double_binary_tree"): """
        - Two trees, each for one half of the buffer; leaves of one are inner nodes of the
          other, so that every rank sends and receives alike.
        - The buffer is cut into pieces that follow each other through the tree, so that all
          levels work at once; latency grows with the depth, log2 n, instead of with n.
    """,
    ("", "halving_doubling"): """
        - Halving: partners exchange and add halves, quarters, …, until each rank has 1/n of
          the sum.
        - Doubling: the same partners in reverse order gather the parts.
        - As many bytes as a ring in 2 log2 n latencies; where n is no power of two, the
          ranks beyond it first hand their buffers to partners and get the sum in the end.
    """,
    ("all_reduce", "hierarchical"): """
        - Ranks stand in a grid. Rings run along the rows first, here the GPUs of a node,
          and then along the columns, across nodes, on what is left.
        - Reduce-scatter inside the node, all-reduce of each piece across nodes, all-gather
          inside the node: only 1/(GPUs per node) of the buffer crosses the network from
          each GPU.
    """,
    ("", "hierarchical"): """
        - Ranks stand in a grid. Rings run along the rows first, here the GPUs of a node,
          and then along the columns, across nodes, on what is left.
        - Most of the steps stay on the fast links inside a node.
    """,
    ("all_reduce", "nvls"): """
        - The switch computes: the owner of a block asks it for the sum of that block over
          all ranks (a multicast load), which the switch adds up on the way.
        - The owner stores the sum to the multicast address, and the switch copies it to
          all.
        - A port carries little more than the buffer, instead of almost twice as in a ring.
    """,
    ("", "nvls"): """
        - The switch adds up, or copies, on the way: a rank loads the sum of its block from
          a multicast address, or stores its block to it.
        - A port carries the buffer about once, whatever the number of ranks.
    """,
    ("", "one_shot"): """
        - Every rank reads the whole buffers of all others at once and adds them up itself.
        - One latency, but n - 1 times the buffer through every port: best for small
          messages, which is what inference engines use it for.
    """,
    ("", "pairwise"): """
        - There are n - 1 steps, in each of which every rank exchanges with one partner only.
        - As many bytes as at once, without many streams into one port.
    """,
    ("all_reduce", "recursive_doubling"): """
        - In step i each rank exchanges its whole buffer with the partner 2^i away and adds
          what it gets: after log2 n steps all hold the sum.
        - Few latencies, but log2 n times the buffer is sent: good for small buffers.
    """,
    ("", "recursive_doubling"): """
        - In step i each rank exchanges all that it has with the partner 2^i away: what it
          holds doubles, and after log2 n steps it has everything.
        - As many bytes as a ring, in log2 n latencies; partners are far apart in later
          steps.
    """,
    ("", "recursive_halving"): """
        - Partners n/2, n/4, … 1 away exchange the half of the buffer that the other one is
          to own, and add: what a rank is responsible for halves in every step.
        - As many bytes as a ring, in log2 n latencies.
    """,
    ("all_reduce", "ring"): """
        - Reduce-scatter: the buffer is cut into n chunks. In n - 1 steps every chunk goes
          round the ring while each rank adds its own part, until each rank holds one chunk
          of the finished sum.
        - All-gather: in n - 1 more steps the finished chunks go round once more, and every
          rank keeps a copy.
        - Each link carries 2 (n - 1)/n of the buffer, hardly more for 400 ranks than for 4.
          That is the lower bound where ranks do the adding: every byte of the sum takes n -
          1 transfers to add up and n - 1 to reach the others. The price is 2 (n - 1)
          latencies.
    """,
    ("reduce_scatter", "ring"): """
        - The buffer is cut into n chunks. In n - 1 steps every chunk goes round the ring
          while each rank adds its own part, until each rank holds one chunk of the finished
          sum.
        - Each link carries (n - 1)/n of the buffer, the lower bound, at n - 1 latencies.
    """,
    ("", "ring"): """
        - Each rank sends only to its right neighbour, and in every step the block it
          received last.
        - After n - 1 steps every block has been everywhere. Each link carries (n - 1)/n of
          the buffer, the lower bound, at n - 1 latencies.
    """,
    ("", "sharp"): """
        - Every rank sends its whole buffer up to the switch, which adds them and sends the
          sum down to all.
        - The buffer crosses each port once each way, half of a ring's bytes; pieces follow
          each other, so that both ways are used at once.
    """,
    ("all_reduce", "torus_2d"): """
        - Ranks stand in a grid. Rings run along the rows first, here the GPUs of a node,
          and then along the columns, across nodes, on what is left.
        - Reduce-scatter along the row, all-reduce along the column, all-gather along the
          row: 2 (X - 1) + 2 (Y - 1) steps instead of 2 (X Y - 1), with as many bytes as a
          ring.
    """,
    ("", "torus_2d"): """
        - Ranks stand in a grid. Rings run along the rows first, here the GPUs of a node,
          and then along the columns, across nodes, on what is left.
        - Fewer steps than one ring over all ranks, with as many bytes.
    """,
    ("", "two_shot"): """
        - First shot: each rank reads its own block from all others and adds them up.
        - Second shot: each rank reads the finished blocks of the others.
        - Two latencies, and as many bytes as a ring: for messages of medium size.
    """,
}
"""By collective and algorithm; with no collective, of all that the algorithm does alike."""
