"""What one rank does, free of hardware: Model x Layout x Workload -> operations.

`program_of` returns a `Program`: for each kind of layer, for the embedding and for the head, the
matrix products with their shapes, attention, memory-bound passes and collectives with their bytes
and group, forward, backward and recomputed; and what happens once a step. Nothing here knows how
long anything takes::

    operations   the kinds of operation, and how they are grouped
    setting      the tokens of a pass, who shares them, and what a matrix of weights does to them
    attention    the attention part of a layer       ┐ each by partition scheme: Megatron's 1-D,
    feed_forward the feed-forward part, experts too  ┘ with or without sequence parallelism
    edges        embedding, head and loss; norms and residual sums
    layer        one layer of these
    partitions   matrix products split otherwise: 2-D, 2.5-D, 3-D, weight-gathered
    step         once a step: gradients, weights, optimizer
    flops        operations as papers count them
    feasibility  the rules that a layout must keep, with typed reasons
    assemble     the program of a layout
"""

from shardcost.program.assemble import Program, program_of

__all__ = ["Program", "program_of"]
