"""The simulation as a queue: formulas of queueing theory, and what every load conserves.

Step times are constants here, because it is the queue that is tested.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shardcost.cluster import Cluster
from shardcost.errors import BadValueError
from shardcost.layout import Layout
from shardcost.load import simulate as simulation
from shardcost.load.deployment import Deployment, Pool
from shardcost.load.engine import Engine
from shardcost.load.requests import Lengths, Requests, Stream
from shardcost.load.result import Load
from shardcost.load.simulate import simulate
from shardcost.load.worker import KVRoom, Worker
from shardcost.model import Model
from shardcost.scheduler import POLICIES, Scheduler
from shardcost.software import Software

STEP_S = 1e-3
"""Of decoding, where the queue has one place."""


class OnePlace:
    """Step times of a worker that serves one request at a time: prompts take no time."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def decode_s(self, sequences: int, context: float) -> float:
        """Return a step's seconds."""
        del sequences, context
        return STEP_S

    def step_s(self, *_: Any, **__: Any) -> float:
        """Return those of a step with prompts."""
        return 1e-12


class Shared(OnePlace):
    """Step times of a worker that shares itself among its sequences."""

    def decode_s(self, sequences: int, context: float) -> float:
        """Return a step's seconds."""
        del context
        return STEP_S * sequences


class Linear(OnePlace):
    """Step times that grow with what is in the step."""

    def decode_s(self, sequences: int, context: float) -> float:
        """Return a step's seconds."""
        return 5e-3 + 1e-4 * sequences + 1e-8 * context

    def step_s(
        self, chunks: Sequence[tuple[int, int]], sequences: int = 0, context: float = 0.0, *_: Any
    ) -> float:
        """Return those of a step with prompts."""
        tokens = sum(chunk for chunk, _ in chunks)
        return 6e-3 + 2e-5 * tokens + 1e-4 * sequences + 1e-8 * context


@lru_cache
def engine(scheduler: Scheduler, dp: int = 1, pp: int = 1, draft_tokens: int = 0) -> Engine:
    software = replace(Software.named("vllm"), scheduler=scheduler)
    layout = Layout(dp=dp, pp=pp)
    cluster = Cluster.named("h100_sxm")
    return Engine(Model.named("llama3.2-1b"), cluster, layout, software, draft_tokens=draft_tokens)


def queue(times: type, **requests: Any) -> Load:
    """Return the load of a worker with one place, or with many that share it."""
    one = times is OnePlace
    scheduler = Scheduler(max_num_seqs=1 if one else 4096, prefix_caching=False)
    scheduler = replace(scheduler, frontend_s=requests.pop("think_s", 1e-12))
    scheduler = replace(scheduler, frontend_per_request_s=1e-12)
    deployment = Deployment(Pool(engine(scheduler)))
    with patch.object(simulation, "StepTimes", times):
        return simulate(deployment, Requests(prompt=Lengths(mean=1), **requests))


def waits(load: Load) -> np.ndarray[Any, np.dtype[np.float64]]:
    return np.asarray(load.first_token_s - load.arrival_s)


def lindley(arrival_s: Any, service_s: Any) -> Any:
    """Return the waits of one place, first come first served (Lindley 1952): w + s - a, or 0."""
    walk = np.append(0.0, np.cumsum(service_s[:-1] - np.diff(arrival_s)))
    return walk - np.minimum.accumulate(walk)


@pytest.mark.parametrize(
    ("output", "share"), [("exponential:500", 0.5), ("401", 0.7), ("lognormal:400:0.7", 0.4)]
)
def test_one_place_is_the_queue_of_pollaczek_and_khinchine(output: str, share: float) -> None:
    """M/M/1, M/D/1, M/G/1. The mean of 20,000 waits scatters by several percent from seed to seed.

    So the waits of the same requests by Lindley's recursion are a control variate: the simulation
    equals them, and their mean over many more requests that of Pollaczek and Khinchine.
    """
    lengths = Lengths.parse(output)
    many = lengths.draw(4_000_000, np.random.default_rng(99)) - 1.0
    service, square = STEP_S * many.mean(), STEP_S**2 * (many**2).mean()
    rate = share / service
    load = queue(OnePlace, rate_per_s=rate, count=20_000, output=lengths)
    control = lindley(load.arrival_s, STEP_S * (load.output_tokens - 1))
    assert waits(load) == pytest.approx(control, abs=1e-6)
    gaps = np.random.default_rng(98).exponential(1 / rate, len(many))
    expected = lindley(np.cumsum(gaps), STEP_S * many).mean()
    found = waits(load).mean() - control.mean() + expected
    formula = rate * square / (2 * (1 - rate * service))
    assert found == pytest.approx(formula, rel=0.01)


@pytest.mark.parametrize("output", ["exponential:400", "400"])
def test_shared_places_take_the_same_for_any_lengths(output: str) -> None:
    """M/G/1 with processor sharing: mean sojourn is service / (1 - share), however distributed.

    Means of 30,000 requests scatter by 1.4 %.
    """
    lengths = Lengths.parse(output)
    share, service = 0.5, STEP_S * 399.5
    load = queue(Shared, rate_per_s=share / service, count=30_000, output=lengths, seed=3)
    assert load.e2e_s.mean == pytest.approx(service / (1 - share), rel=0.05)
    mean = float((load.finished_s - load.arrival_s).sum() / load.span_s)
    assert load.mean_running == pytest.approx(mean, rel=0.02)


@pytest.mark.parametrize("users", [2, 5])
def test_users_of_one_place_are_machines_of_a_repairman(users: int) -> None:
    think, service = 1.0, STEP_S * 499.5
    load = queue(
        OnePlace, arrival="closed", users=users, count=30_000, think_s=think,
        output=Lengths.parse("exponential:500"),
    )  # fmt: skip
    line, rate = 0.0, 0.0  # mean value analysis (Reiser and Lavenberg 1980, JACM 27)
    for number in range(1, users + 1):
        stay = service * (1 + line)
        rate = number / (think + stay)
        line = rate * stay
    assert load.requests_per_s == pytest.approx(rate, rel=0.02)
    assert load.e2e_s.mean == pytest.approx(users / rate, rel=0.02)


# --- what every load conserves -------------------------------------------------------------------
@contextmanager
def recorded(blocks: int) -> Iterator[list[Worker]]:
    """Simulate with so many KV blocks a rank; the workers are handed out."""
    made: list[Worker] = []

    class Recorded(Worker):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            made.append(self)

    class Small(KVRoom):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            self.blocks = blocks

    with (
        patch.object(simulation, "StepTimes", Linear),
        patch.object(simulation, "KVRoom", Small),
        patch.object(simulation, "Worker", Recorded),
    ):
        yield made


schedulers = st.builds(
    Scheduler,
    policy=st.sampled_from(POLICIES),
    chunked_prefill=st.booleans(),
    max_num_seqs=st.integers(1, 32),
    max_num_batched_tokens=st.integers(64, 2048),
    block_tokens=st.sampled_from([1, 16, 32]),
    watermark=st.sampled_from([0.01, 0.05]),
    reserved_output=st.sampled_from([0.1, 1.0]) | st.just(1e-9),
    receive_interval=st.integers(1, 5),
    frontend_s=st.just(2e-3),
    frontend_per_request_s=st.just(1e-4),
)
lengths = st.sampled_from(["1", "40", "5-200", "exponential:60", "lognormal:100:1.5"])
arrivals: st.SearchStrategy[dict[str, Any]] = st.one_of(
    st.builds(dict, arrival=st.just("poisson"), rate_per_s=st.floats(0.5, 500)),
    st.builds(dict, arrival=st.just("closed"), users=st.integers(1, 40)),
    st.just({"arrival": "all-at-once"}),
)


@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.too_slow])
@given(
    scheduler=schedulers, arrival=arrivals, prompt=lengths, output=lengths,
    blocks=st.integers(150, 3000), dp=st.integers(1, 3), pp=st.sampled_from([1, 2]),
    draft_tokens=st.sampled_from([0, 3]), workers=st.integers(1, 2), apart=st.booleans(),
    prefix=st.sampled_from([0, 16]), seed=st.integers(0, 1000),
)  # fmt: skip
def test_no_request_is_lost_and_no_block_kept(
    scheduler: Scheduler, arrival: dict[str, Any], prompt: str, output: str, blocks: int,
    dp: int, pp: int, draft_tokens: int, workers: int, apart: bool, prefix: int, seed: int,
) -> None:  # fmt: skip
    pool = Pool(engine(scheduler, dp, pp, draft_tokens), workers)
    deployment = Deployment(pool, prefill=pool if apart else None)
    requests = Requests(
        count=60, prompt=Lengths.parse(prompt), output=Lengths.parse(output), seed=seed,
        prefix_tokens=prefix, **arrival,
    )  # fmt: skip
    with recorded(blocks) as made:
        load = simulate(deployment, requests)
        again = simulate(deployment, requests)
    assert len(load.served) + load.rejected == len(requests.stream())
    assert (load.arrival_s <= load.first_token_s).all()
    assert (load.first_token_s <= load.finished_s).all()
    if len(load.served):
        assert sum(load.ttft_parts_s.values()) == pytest.approx(waits(load).mean())
    assert (load.gaps_s >= 0).all()
    assert (load.gap_counts >= 0).all()
    assert 0 <= load.kv_peak_share <= 1
    for name in ("first_token_s", "finished_s", "served"):
        assert np.array_equal(getattr(load, name), getattr(again, name))
    for worker in made:
        assert worker.load == 0
        for rank in worker.ranks:
            assert rank.context == 0
            assert rank.committed == pytest.approx(0, abs=1e-6)
            assert worker.running_time >= 0


# --- what a scheduler does -----------------------------------------------------------------------
@pytest.mark.parametrize("steps_ahead", [0, 1])
def test_a_request_waits_for_half_the_steps_between_two_looks(steps_ahead: int) -> None:
    scheduler = Scheduler(
        receive_interval=30, steps_ahead=steps_ahead, frontend_s=1e-12, frontend_per_request_s=1e-12
    )
    arrival_s = np.append(0.0, 1.0 + 0.0377 * np.arange(200))
    ones = np.ones(len(arrival_s), dtype=np.int64)
    outputs = ones.copy()
    outputs[0] = 12_000
    asked = Requests(arrival="trace", count=len(ones), trace=Stream(arrival_s, ones, outputs))
    with patch.object(simulation, "StepTimes", OnePlace):
        load = simulate(Deployment(Pool(engine(scheduler))), asked)
    mean_s = waits(load)[1:].mean()
    assert mean_s == pytest.approx((15 + steps_ahead) * STEP_S, rel=0.05)


def test_what_a_preempted_sequence_left_is_not_computed_again() -> None:
    asked = Requests(
        arrival="all-at-once", count=40, prompt=Lengths(mean=200), output=Lengths(mean=200)
    )

    def load(*, kept: bool) -> Load:
        scheduler = Scheduler(prefix_caching=kept, max_num_seqs=40)
        with recorded(300):
            return simulate(Deployment(Pool(engine(scheduler))), asked)

    kept, dropped = load(kept=True), load(kept=False)
    assert kept.preemptions
    assert kept.span_s < dropped.span_s


def test_a_first_token_waits_for_a_place_at_the_worker_that_decodes() -> None:
    asked = Requests(
        arrival="all-at-once", count=20, prompt=Lengths(mean=16), output=Lengths(mean=100)
    )
    prefill = Pool(engine(Scheduler()))

    def load(places: int) -> Load:
        decode = Pool(engine(Scheduler(max_num_seqs=places)))
        with patch.object(simulation, "StepTimes", Linear):
            return simulate(Deployment(decode, prefill), asked)

    few, enough = load(5), load(20)
    assert few.ttft_s.mean > 10 * enough.ttft_s.mean
    assert few.tpot_s.mean < enough.tpot_s.mean


def test_chunked_prefill_that_is_off_unless_told_otherwise() -> None:
    usual = Scheduler(policy="prefill-first", chunked_prefill=False, chunk_tokens=512)
    chunked = usual.prefilling(chunked=True, context_tokens=131_072)
    assert (chunked.policy, chunked.max_num_batched_tokens) == ("mixed", 512)
    whole = usual.prefilling(chunked=False, context_tokens=131_072)
    assert (whole.policy, whole.max_num_batched_tokens) == ("prefill-first", 131_072)
    other = Scheduler().prefilling(chunked=False, context_tokens=131_072)
    assert other == replace(Scheduler(), chunked_prefill=False)


@pytest.mark.parametrize(("workers", "dp"), [(10**9, 1), (1, 10**9)])
def test_a_pool_beyond_any_cluster_is_refused_at_once(workers: int, dp: int) -> None:
    pool = Pool(engine(Scheduler(), dp), workers)
    requests = Requests(count=2, prompt=Lengths(mean=8), output=Lengths(mean=8), rate_per_s=1)
    with pytest.raises(BadValueError, match=r"workers x dp must be at most 65536 .* 1000000000"):
        simulate(Deployment(pool), requests)


def test_a_tokeniser_takes_longer_for_longer_prompts() -> None:
    def ttft_s(prompt: int, **scheduler: Any) -> float:
        asked = Requests(
            arrival="closed", users=1, count=3, prompt=Lengths(mean=prompt), output=Lengths(mean=4)
        )
        serving = Deployment(Pool(engine(replace(Scheduler(), **scheduler))))
        with patch.object(simulation, "StepTimes", OnePlace):
            return float(simulate(serving, asked).ttft_s.mean)

    for prompt in (100, 8000):
        more = ttft_s(prompt, frontend_per_token_s=5e-6) - ttft_s(prompt)
        assert more == pytest.approx(5e-6 * prompt)


@pytest.mark.parametrize(("prompt", "waiting"), [(100, 0), (101, 1)])
def test_a_whole_prompt_waits_until_sequences_leave_it_room(prompt: int, waiting: int) -> None:
    """Of 8 users one always waits for the next sequence to end where its prompt is a token longer.

    The step has room for 100 tokens beside 7 sequences; so one of 8 lives is spent waiting.
    """
    scheduler = Scheduler(chunked_prefill=False, max_num_batched_tokens=107)
    asked = Requests(
        arrival="closed", users=8, count=800, prompt=Lengths(mean=prompt),
        output=Lengths(mean=200),
    )  # fmt: skip
    with patch.object(simulation, "StepTimes", Linear):
        load = simulate(Deployment(Pool(engine(scheduler))), asked)
    lives = load.finished_s - load.arrival_s
    assert 8 * waits(load).mean() / lives.mean() == pytest.approx(waiting, abs=0.15)


def test_a_prompt_that_no_step_has_room_for_goes_in_all_the_same() -> None:
    scheduler = Scheduler(chunked_prefill=False, max_num_batched_tokens=64)
    asked = Requests(
        arrival="closed", users=4, count=40, prompt=Lengths(mean=100), output=Lengths(mean=200)
    )
    with patch.object(simulation, "StepTimes", Linear):
        load = simulate(Deployment(Pool(engine(scheduler))), asked)
    assert len(load.served) == 40
    assert load.mean_running > 2
