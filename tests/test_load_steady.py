"""The closed form of a load: against the simulation, at its bounds, on arrays."""

from __future__ import annotations

from dataclasses import fields, replace
from functools import lru_cache
from typing import Any

import numpy as np
import pytest

from lab.load_agreement import compared
from shardcost.cluster import Cluster
from shardcost.errors import BadValueError, UsageError
from shardcost.layout import Layout
from shardcost.load.deployment import Deployment, Pool
from shardcost.load.engine import Engine
from shardcost.load.requests import Lengths, Requests
from shardcost.load.result import Limits
from shardcost.load.simulate import simulate
from shardcost.load.steady import LIMITS, Steady, capacity, steady
from shardcost.model import Model
from shardcost.software import Software

LENGTHS: dict[str, Any] = {"prompt": Lengths(mean=1024), "output": Lengths(mean=256)}


@lru_cache
def pool(engine: str = "vllm", workers: int = 1, **scheduler: Any) -> Pool:
    software = Software.named(engine)
    software = replace(software, scheduler=replace(software.scheduler, **scheduler))
    cluster = Cluster.named("h100_sxm")
    return Pool(Engine(Model.named("llama3-8b"), cluster, Layout(), software), workers)


def test_it_agrees_with_the_simulation_on_random_loads() -> None:
    rows = list(compared(60, seed=1000, least=400, most=1500, with_capacity=False))
    assert len(rows) >= 15
    assert np.median([abs(row.tpot) for row in rows]) < 0.05
    assert np.median([abs(row.ttft) for row in rows]) < 0.15


def test_models_whose_layers_have_a_state_alone_are_served() -> None:
    layout = Layout(pp=2, cp=3)
    model = Model.named("codestral-mamba-7b")
    engine = Engine(model, Cluster.named("rtx4080_super"), layout, Software.named("trtllm"))
    form = steady(Deployment(Pool(engine)), **LENGTHS, users=1)
    load = simulate(
        Deployment(Pool(engine)), Requests(arrival="closed", users=1, count=3, **LENGTHS)
    )
    assert form.tpot_s == pytest.approx(load.tpot_s.mean, rel=0.01)


def test_capacity_is_what_is_served_of_more() -> None:
    """The median of a dozen cases scatters; `lab.load_agreement` prints that of 300."""
    rows = list(compared(45, seed=2000, least=400, most=1000))
    assert len(rows) >= 6
    assert np.median([abs(row.capacity) for row in rows]) < 0.08


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
def test_the_least_load_is_a_request_by_itself(engine: str) -> None:
    served = Deployment(pool(engine))
    form = steady(served, **LENGTHS, rate_per_s=1e-3)
    alone = simulate(served, Requests(rate_per_s=1e-3, count=5, **LENGTHS))
    assert form.ttft_s == pytest.approx(alone.ttft_s.mean, rel=0.01)
    assert form.tpot_s == pytest.approx(alone.tpot_s.mean, rel=0.01)
    user = steady(served, **LENGTHS, users=1)
    assert user.tpot_s == pytest.approx(alone.tpot_s.mean, rel=0.01)
    assert user.requests_per_s == pytest.approx(1 / alone.e2e_s.mean, rel=0.02)


@pytest.mark.parametrize("load", ["rate_per_s", "users"])
def test_arrays_hold_what_single_loads_do(load: str) -> None:
    served = Deployment(pool())
    loads = np.array([[1.0, 5.0, 9.0], [2.0, 14.0, 900.0]])
    given: dict[str, Any] = {load: loads}
    form = steady(served, **LENGTHS, **given)
    for place in np.ndindex(loads.shape):
        given = {load: float(loads[place])}
        single = steady(served, **LENGTHS, **given)
        for each in fields(Steady):
            one, many = getattr(single, each.name), getattr(form, each.name)[place]
            assert one == (many if isinstance(one, str) else pytest.approx(many, rel=1e-9))


def test_many_rates_are_interpolated() -> None:
    served = Deployment(pool())
    most = capacity(served, **LENGTHS).requests_per_s
    rates = np.linspace(0.05, 0.95, 1000) * most
    many = steady(served, **LENGTHS, rate_per_s=rates)
    few = steady(served, **LENGTHS, rate_per_s=rates[::50])
    assert many.ttft_s[::50] == pytest.approx(few.ttft_s, rel=0.01)
    assert many.tpot_s[::50] == pytest.approx(few.tpot_s, rel=0.01)


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
def test_more_load_takes_longer_up_to_capacity(engine: str) -> None:
    served = Deployment(pool(engine))
    found = capacity(served, **LENGTHS)
    form = steady(
        served, **LENGTHS, rate_per_s=np.array([0.1, 0.5, 0.9, 1.1]) * found.requests_per_s
    )
    for figure in (form.ttft_s, form.tpot_s, form.e2e_s, form.running):
        assert (np.diff(figure[:3]) > 0).all()
    assert form.saturated.tolist() == [False, False, False, True]
    assert form.limit[:3].tolist() == ["arrivals"] * 3
    assert form.limit[3] == found.limit in LIMITS
    assert np.isinf(form.ttft_s[3])
    assert form.requests_per_s[3] == pytest.approx(found.requests_per_s)
    by_little = form.requests_per_s[:3] * (form.e2e_s[:3] - form.ttft_s[:3])
    assert form.running[:3] == pytest.approx(by_little, rel=1e-6)


def in_a_loop(users: int, requests: int, prompt: str, output: str, **scheduler: Any) -> Any:
    """Return the closed form and the simulation of users of TensorRT-LLM."""
    served = Deployment(pool("trtllm", **scheduler))
    lengths: dict[str, Any] = {"prompt": Lengths.parse(prompt), "output": Lengths.parse(output)}
    form = steady(served, **lengths, users=users, requests=requests)
    sent = Requests(arrival="closed", users=users, count=requests, **lengths)
    return form, simulate(served, sent)


def test_no_step_is_longer_than_a_full_one() -> None:
    """Prompts that came before a first token fill the next steps, of which few are left."""
    form, load = in_a_loop(30, 300, "3712-4537", "exponential:23")
    assert form.tpot_s == pytest.approx(load.tpot_s.mean, rel=0.3)
    assert form.ttft_s == pytest.approx(load.ttft_s.mean, rel=0.1)


@pytest.mark.parametrize(
    ("prompt", "output", "within"), [("1024", "256", 0.1), ("200-1090", "exponential:256", 0.6)]
)
def test_whole_prompts_wait_for_room_in_a_step(prompt: str, output: str, within: float) -> None:
    form, load = in_a_loop(100, 600, prompt, output, max_num_batched_tokens=1100)
    assert form.ttft_s == pytest.approx(load.ttft_s.mean, rel=within)
    assert form.running < 90
    chunked, _ = in_a_loop(
        100, 600, prompt, output, max_num_batched_tokens=1100, chunked_prefill=True
    )
    assert chunked.ttft_s < form.ttft_s / 2


def test_what_bounds_capacity_is_named() -> None:
    few = capacity(Deployment(pool(max_num_seqs=4)), **LENGTHS)
    assert few.limit == "max_num_seqs"
    assert few.requests_per_s < capacity(Deployment(pool()), **LENGTHS).requests_per_s
    long = capacity(Deployment(pool()), prompt=Lengths(mean=4096), output=Lengths(mean=4))
    assert long.limit == "tokens of a step"
    assert capacity(Deployment(pool()), **LENGTHS).limit == "KV room"


def test_limits_lower_capacity() -> None:
    served = Deployment(pool())
    free = capacity(served, **LENGTHS).requests_per_s
    loose = capacity(served, **LENGTHS, limits=Limits(ttft_s=10.0, tpot_s=1.0)).requests_per_s
    tight = capacity(served, **LENGTHS, limits=Limits(tpot_s=0.012))
    assert loose == pytest.approx(free, rel=0.01)
    assert tight.requests_per_s < free
    assert tight.limit == "TPOT"
    assert steady(served, **LENGTHS, rate_per_s=tight.requests_per_s).tpot_p90_s == pytest.approx(
        0.012, rel=0.01
    )
    never = capacity(served, **LENGTHS, limits=Limits(ttft_s=1e-3))
    assert (never.requests_per_s, never.limit) == (0.0, "TTFT")


def test_more_workers_hold_more() -> None:
    one, four = (capacity(Deployment(pool(workers=n)), **LENGTHS).requests_per_s for n in (1, 4))
    assert four == pytest.approx(4 * one, rel=0.02)


def test_pools_apart_decode_undisturbed() -> None:
    prefill = pool(workers=3)
    apart = Deployment(pool(), prefill=prefill)
    rate = 0.5 * capacity(apart, **LENGTHS).requests_per_s
    form = steady(apart, **LENGTHS, rate_per_s=rate)
    found = simulate(apart, Requests(rate_per_s=rate, count=1500, **LENGTHS))
    assert form.tpot_s == pytest.approx(found.tpot_s.mean, rel=0.05)
    assert form.ttft_s == pytest.approx(found.ttft_s.mean, rel=0.15)
    assert form.tpot_s < steady(Deployment(pool()), **LENGTHS, rate_per_s=rate).tpot_s


def test_a_prefix_that_all_share_is_not_computed_again() -> None:
    served = Deployment(pool())
    whole, rest = (
        steady(served, **LENGTHS, rate_per_s=10.0, prefix_tokens=n).ttft_s for n in (0, 768)
    )
    assert rest < whole


@pytest.mark.parametrize("load", [{}, {"rate_per_s": 1.0, "users": 1}])
def test_a_load_is_of_rates_or_of_users(load: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="rate_per_s or users"):
        steady(Deployment(pool()), **LENGTHS, **load)


@pytest.mark.parametrize(
    "load",
    [{"rate_per_s": 0.0}, {"rate_per_s": -1.0}, {"rate_per_s": float("nan")}, {"users": 0}],
)
def test_loads_are_positive(load: dict[str, Any]) -> None:
    with pytest.raises(BadValueError):
        steady(Deployment(pool()), **LENGTHS, **load)


def test_static_batches_have_no_closed_form() -> None:
    with pytest.raises(UsageError, match="decode-first"):
        steady(Deployment(pool(policy="decode-first")), **LENGTHS, rate_per_s=1.0)
