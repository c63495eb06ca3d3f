"""Seconds of one step of a worker, for any batch: `estimate` on a grid, interpolated.

A step decodes n sequences with C tokens of context in all, and prefills chunks of prompts. Its time
is split by `estimate` in what attention takes, which depends on each sequence's context, and the
rest (GEMMs, elementwise kernels, communication, the host), which depends on how many tokens pass::

    decode step   R_d(n) + A_d(n, C / n)
    prefill step  R_p(p) + sum of A_p(l, c) over chunks of l tokens behind c others, p = sum of l
    mixed step    R_p(p + n) + (R_d(n) - R_p(n)) + A_d(n, C / n) + sum of A_p(l, c)

In a mixed step the tokens of both pass through the GEMMs together (Agrawal et al. 2024,
arXiv:2403.02310); what decoding has beyond a prompt of as many tokens, such as its samples and the
host's work for each sequence, comes on top.

Batches are of one rank of attention's data parallelism. The ranks step together: attention and
dense layers take as long as on the rank with most tokens, experts, which all ranks share, as long
as the mean of the ranks' tokens needs. A pipeline of pp stages keeps pp batches in flight: each
passes all stages while the others are in the other stages.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from functools import cached_property
from typing import Any, Final

import numpy as np

from shardcost.load.engine import Engine
from shardcost.program.operations import ExpertKernels

_CONTEXTS: Final = 7
_SHORTEST: Final = 64
_FEW: Final = (1, 2, 3, 4, 6, 8, 12, 16, 20, 24, 28)
"""Batch sizes that are priced, up to 32; from there on eight to a doubling."""
_CHUNKS_TO_A_DOUBLING: Final = 4


class StepTimes:
    """Seconds of steps of one worker, by what is in them."""

    def __init__(
        self, engine: Engine, *, most_context: int, most_prompt: int, most_sequences: int
    ) -> None:
        """Price the grid.

        Args:
            engine: What runs.
            most_context: Tokens of the longest sequence.
            most_prompt: Tokens of the longest prompt.
            most_sequences: That decode together on one rank, at most.
        """
        self.engine, scheduler = engine, engine.software.scheduler
        self._graph_step, self._graph_most = scheduler.graph_step, scheduler.graph_most
        self._most_context = max(most_context, 2)
        budget = scheduler.max_num_batched_tokens
        self._most_chunk = max(
            min(budget, most_prompt) if scheduler.chunked_prefill else most_prompt, 1
        )
        self._most_tokens = max(budget, self._most_chunk) + most_sequences
        self._most_sequences = max(most_sequences, 1)
        self._per_sequence_s = float(engine.software.host_per_sequence_s)
        self._decode_cells: dict[int, tuple[float, list[float]]] = {}
        self._rest_cells: dict[tuple[int, int | None], float] = {}

    # --- decoding ------------------------------------------------------------------------------
    @cached_property
    def _sequences(self) -> list[int]:
        most, sizes = self._most_sequences, list(_FEW)
        size = 32
        while size < most:
            sizes += [size + size * i // 8 for i in range(8)]
            size *= 2
        return sorted({*(each for each in sizes if each < most), self._padded(most), 1})

    @cached_property
    def _contexts(self) -> list[int]:
        grid = np.geomspace(min(_SHORTEST, self._most_context - 1), self._most_context, _CONTEXTS)
        return sorted({1, *map(int, np.rint(grid))})

    @cached_property
    def _decode_grid(self) -> tuple[Any, Any]:
        """What is not attention, by sequences; attention, by sequences and context."""
        dp = self.engine.layout.dp
        batch = np.array(self._sequences)[:, None] * dp
        contexts = np.array(self._contexts)[None, :]
        step = self.engine.decode(batch, contexts)
        attention = step.compute_s["attention"] + 0.0 * (batch + contexts)
        return (step.time_s - attention).mean(axis=1), attention

    def _decode_of(self, padded: int) -> tuple[float, list[float]]:
        known = self._decode_cells.get(padded)
        if known is None:
            rest, attention = self._decode_grid
            place = np.array(self._sequences, dtype=float)
            row = [float(np.interp(padded, place, column)) for column in attention.T]
            known = self._decode_cells[padded] = (float(np.interp(padded, place, rest)), row)
        return known

    def _padded(self, sequences: int) -> int:
        """Return the batch that runs: that of the next recorded graph."""
        step = self._graph_step
        if sequences > self._graph_most:
            return sequences
        if sequences <= step:
            return 1 << (sequences - 1).bit_length()
        return -(-sequences // step) * step

    def decode_s(self, sequences: int, context: float) -> float:
        """Return a step in which sequences decode that have so many tokens of context in all."""
        padded = self._padded(sequences)
        rest, attention = self._decode_of(padded)
        return rest + _between(self._contexts, attention, context / padded)

    # --- prefill -------------------------------------------------------------------------------
    @cached_property
    def _chunks(self) -> list[int]:
        return _doublings(self._most_chunk)

    @cached_property
    def _befores(self) -> list[int]:
        return (
            [0, *self._contexts[1:]]
            if self._most_context > self._most_chunk
            else [0, *self._contexts[-1:]]
        )

    @cached_property
    def _attention_grid(self) -> list[list[float]]:
        dp = self.engine.layout.dp
        chunks, befores = np.array(self._chunks)[:, None], np.array(self._befores)[None, :]
        step = self.engine.prefill(dp, chunks, befores)
        # Layers with a state alone take the same after any context.
        attention = step.compute_s["attention"] + 0.0 * (chunks + befores)
        grid: list[list[float]] = attention.tolist()
        return grid

    @cached_property
    def _tokens(self) -> list[int]:
        return _doublings(self._most_tokens)

    @cached_property
    def _rest_grid(self) -> tuple[list[float], list[float]]:
        """What is not attention, by tokens: all of it, and what experts take of it."""
        step = self.engine.prefill(self.engine.layout.dp, np.array(self._tokens), 0)
        rest = np.asarray(step.time_s - step.compute_s["attention"])
        shared = np.zeros_like(rest)
        if self.engine.layout.dp > 1:
            for entry in step.entries:
                if entry.group == "ep" or isinstance(entry.op, ExpertKernels):
                    shared = shared + entry.exposed_s
        return rest.tolist(), shared.tolist()

    def rest_s(self, tokens: float, mean_tokens: float | None = None) -> float:
        """Return a pass of so many tokens of a rank, without attention.

        Args:
            tokens: Of the rank that has most.
            mean_tokens: Of all ranks, where they differ.
        """
        key = (int(tokens), None if mean_tokens is None else int(mean_tokens))
        known = self._rest_cells.get(key)
        if known is None:
            rest, shared = self._rest_grid
            known = _between(self._tokens, rest, tokens)
            if mean_tokens is not None:
                known -= _between(self._tokens, shared, tokens)
                known += _between(self._tokens, shared, max(mean_tokens, 1.0))
            self._rest_cells[key] = known
        return known

    def attention_s(self, chunk: int, before: int) -> float:
        """Return the attention of a chunk of a prompt behind `before` tokens that are cached."""
        place = min(max(bisect_right(self._chunks, chunk) - 1, 0), len(self._chunks) - 2)
        low, high = self._chunks[place], self._chunks[place + 1]
        share = (chunk - low) / (high - low)
        one = _between(self._befores, self._attention_grid[place], before)
        two = _between(self._befores, self._attention_grid[place + 1], before)
        return one + share * (two - one)

    def step_s(
        self,
        chunks: Sequence[tuple[int, int]],
        sequences: int = 0,
        context: float = 0.0,
        mean_tokens: float | None = None,
    ) -> float:
        """Return a step with chunks of prompts, each of so many tokens behind others.

        Args:
            chunks: Tokens of each chunk, and those of the same prompt before it.
            sequences: That decode in the same step.
            context: Of all of these together.
            mean_tokens: Of chunks and sequences, the mean of all ranks, where they differ.
        """
        if not chunks:
            return self.decode_s(sequences, context)
        tokens = sum(chunk for chunk, _ in chunks)
        attention = sum(self.attention_s(*chunk) for chunk in chunks)
        host = self._per_sequence_s * (len(chunks) - 1)
        if not sequences:
            return self.rest_s(tokens, mean_tokens) + attention + host
        rest, row = self._decode_of(sequences)
        queries = sequences * self.engine.query_tokens
        more = max(0.0, rest - self.rest_s(queries))
        decoding = _between(self._contexts, row, context / sequences)
        rest_s = self.rest_s(tokens + queries, mean_tokens)
        return rest_s + more + attention + decoding + host


def _doublings(most: int) -> list[int]:
    """Return 1 to 16, then a few sizes to each doubling, up to at least `most` and 2."""
    sizes, size, most = list(range(1, 17)), 16, max(most, 2)
    while size < most:
        sizes += [
            size + size * i // _CHUNKS_TO_A_DOUBLING for i in range(1, 1 + _CHUNKS_TO_A_DOUBLING)
        ]
        size *= 2
    return [*(each for each in sizes if each < most), most]


def _between(places: Sequence[int], values: Sequence[float], at: float) -> float:
    """Return the value at a place, on straight lines between places, and beyond the last."""
    if len(places) == 1:
        return values[0]
    index = min(max(bisect_right(places, at) - 1, 0), len(places) - 2)
    low, high = places[index], places[index + 1]
    share = (at - low) / (high - low)
    return values[index] + share * (values[index + 1] - values[index])
