"""What one rank holds: weights, gradients, optimizer state, activations, cache, buffers.

`memory_of` joins the parts. All of them run on plain numbers and on arrays that broadcast::

    policy       what a framework keeps beyond what the mathematics needs
    parameters   the weights of a rank, by tensor, expert and pipeline parallelism
    saved        the tensors that a layer's forward pass keeps for its backward pass
    stages       layers and micro-batches in flight of a pipeline stage
    account      the sum of all by kind, with keys, values and states of a decoder
    footprint    the result: `Memory`
"""

from shardcost.memory.account import checkpoint_bytes, memory_of
from shardcost.memory.footprint import KINDS, Footprint, Memory
from shardcost.memory.policy import MemoryPolicy
from shardcost.memory.saved import saved_bytes_per_layer

__all__ = [
    "KINDS",
    "Footprint",
    "Memory",
    "MemoryPolicy",
    "checkpoint_bytes",
    "memory_of",
    "saved_bytes_per_layer",
]
