"""The noun `Scheduler`: how an engine chooses what one of its steps computes.

Engines that batch in flight (Yu et al. 2022, Orca, OSDI) decide before every step which sequences
it decodes and which prompts, or chunks of prompts, it prefills. Each engine's own settings are data
of the catalog, beside its kernels and its host's constants; a deployment replaces what it was
started with.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from shardcost.checks import Noun, flag, noun, one_of, positive, share, text, whole

POLICIES: Final = ("mixed", "prefill-first", "decode-first")
SHARE_OF: Final = ("device", "free")


@noun
class Scheduler(Noun):
    """Settings of an engine's scheduler. Counts are of one rank of attention's data parallelism."""

    policy: str = one_of(*POLICIES, default="mixed")
    """``mixed``: every running sequence decodes and prompts fill what is left of the step's tokens
    (Agrawal et al. 2024, Sarathi-Serve, arXiv:2403.02310). ``prefill-first``: prompts run by
    themselves, before decoding goes on. ``decode-first``: prompts run when all sequences of the
    batch have ended (static batches)."""
    chunked_prefill: bool = flag(default=True)
    """Prompts are cut so that a step has at most `max_num_batched_tokens`; otherwise whole prompts
    go in, as many as fit, at least one."""
    max_num_seqs: int = whole(default=256)
    """Sequences that decode together."""
    max_num_batched_tokens: int = whole(default=8192)
    """Tokens of one step, those of prompts and one for each sequence that decodes."""
    chunk_tokens: int | None = whole(default=None)
    """The same with chunked prefill, of an engine that takes whole prompts unless told otherwise:
    see `prefilling`."""
    memory_share: float = share(default=0.9)
    """Of the device's memory, or of what weights and workspace leave of it: what is used …"""
    memory_share_of: str = one_of(*SHARE_OF, default="device")
    """… ``device``: weights, workspace and KV cache together have this share of the memory (vLLM's
    gpu_memory_utilization, SGLang's mem_fraction_static); ``free``: the KV cache has this share of
    what the others leave (TensorRT-LLM's free_gpu_memory_fraction)."""
    kv_tokens: int | None = whole(default=None)
    """Tokens that a rank's KV cache holds, where the engine's log states it or a flag sets it;
    None: what fits in its memory."""
    block_tokens: int = whole(default=16)
    """Tokens of one block of the KV cache."""
    watermark: float = share(default=0.0)
    """Share of the blocks that admission of a request leaves free."""
    reserved_output: float = share(default=0.0)
    """Share of its remaining output for which blocks are kept free when a request is admitted:
    1 where no sequence is ever preempted (TensorRT-LLM's GUARANTEED_NO_EVICT), 0 where blocks are
    taken as tokens come."""
    prefix_caching: bool = flag(default=True)
    """Blocks of prompts that were computed before are found again."""
    receive_interval: int = whole(default=1)
    """Steps of decoding between two looks for new requests (SGLang's
    scheduler-recv-interval)."""
    steps_ahead: int = whole(default=0, least=0)
    """Steps that are scheduled already when a request is looked for: 1 where the host schedules a
    step while the one before it runs (vLLM's asynchronous scheduling, SGLang's and TensorRT-LLM's
    overlap schedulers), 0 where it waits for the step's tokens."""
    balance_steps: int = whole(default=0, least=0)
    """With several ranks of attention's data parallelism: steps that a prompt waits at most until
    every rank has one (TensorRT-LLM's attention_dp_config), because all ranks wait for one that
    prefills."""
    graph_step: int = whole(default=8)
    """CUDA graphs are recorded for 1, 2, 4 sequences and multiples of this: a batch is padded to
    the next …"""
    graph_most: int = whole(default=512)
    """… up to this many; larger batches run as they are."""
    frontend_s: float = positive(default=1e-9)
    """Once a request, before its first token: web server, tokeniser, and the way back."""
    frontend_per_request_s: float = positive(default=1e-9)
    """Of it, what requests that come together wait for one after the other."""
    frontend_per_token_s: float = positive(default=1e-12)
    """Beside it, for each token of the prompt: the tokeniser, and handing the tokens on."""
    source: str = text(default="given by the caller")
    """Who says so."""
    handoff_s: float = positive(default=1e-9)
    """Disaggregated, once a request: from the end of its prefill until the decode worker has been
    found and its first token is on its way, beside the transfer of the KV cache."""
    layerwise_transfer: bool = flag(default=False)
    """The KV cache of a layer is sent while the next one is computed; otherwise all at the end."""

    def prefilling(self, *, chunked: bool, context_tokens: int | None) -> Scheduler:
        """Return the settings with chunked prefill on or off.

        Where it is off unless told otherwise (vLLM before its second engine): with it, chunks join
        the sequences that decode; without, a step may have as many tokens as the longest prompt,
        for which memory is kept free (engine arguments of v0.6: max_num_batched_tokens).

        Args:
            chunked: Whether prompts are cut.
            context_tokens: That the model was made for, if known.
        """
        if self.chunk_tokens is None:
            return replace(self, chunked_prefill=chunked)
        if chunked:
            own = self.chunk_tokens
            return replace(self, policy="mixed", chunked_prefill=True, max_num_batched_tokens=own)
        most = max(self.max_num_batched_tokens, context_tokens or 0)
        return replace(self, chunked_prefill=False, max_num_batched_tokens=most)

    def cache_bytes(self, memory_bytes: Any, fixed_bytes: Any) -> Any:
        """Return what an engine sets aside for the KV cache on a device.

        Args:
            memory_bytes: The device's.
            fixed_bytes: Of weights, workspace, activations and whatever else is no cache.
        """
        if self.memory_share_of == "free":
            return self.memory_share * (memory_bytes - fixed_bytes)
        return self.memory_share * memory_bytes - fixed_bytes
