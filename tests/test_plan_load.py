"""``plan --load``: what it finds is the best by brute force; contract, errors, report."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from running import run_error, run_json, run_text

from shardcost import Cluster, Layout, Model, cli
from shardcost.cli import load as load_command
from shardcost.cli.options import OnDisk
from shardcost.load.deployment import Deployment, Pool
from shardcost.load.engine import Engine
from shardcost.load.requests import Lengths, Requests
from shardcost.load.result import Limits, Load
from shardcost.load.simulate import simulate
from shardcost.load.steady import capacity
from shardcost.load.sweep import broken_limits, sweep
from shardcost.request.load import deployment_of, requests_of
from shardcost.search.capacities import SLACK
from shardcost.search.deployments import plan_load
from shardcost.search.planned import LoadPlan
from shardcost.search.workers import LoadQuestion, screened
from shardcost.software import Software

WITHIN = Limits(ttft_s=1.0, tpot_s=0.03)
SMALL = (
    "plan llama3-8b --on h100_sxm --gpus 2 --load --isl 1024 --osl 32 --max-ttft 1s"
    " --max-tpot 30ms --simulated 1"
).split()
SCATTER = 1.05
"""Of a 90th percentile near its limit, between simulations of 8,000 requests each: a little more
than twice the standard deviation of 2.1 % between six seeds."""
CONTRACT = ("considered", "feasible", "seconds", "rejected", "best", "front")


@pytest.fixture(autouse=True)
def _columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def question(
    *engines: str, model: str = "llama3-8b", on: str = "h100_sxm", gpus: int = 2,
    isl: int = 1024, osl: int = 128, limits: Limits = WITHIN, **others: Any,
) -> LoadQuestion:  # fmt: skip
    """Return what is looked for, of one model on one machine."""
    place = Model.named(model), Cluster.named(on)
    return LoadQuestion(
        engines=tuple(Engine(*place, Layout(), Software.named(name)) for name in engines),
        gpus=(gpus,),
        prompt=Lengths(mean=isl),
        output=Lengths(mean=osl),
        limits=limits,
        **others,
    )


def run_failing(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """Return what a command says that finds nothing feasible."""
    assert cli.main(words) == 3
    out, err = capsys.readouterr()
    assert out == ""
    return " ".join(err.split())


def by_pools(plan: LoadPlan) -> dict[str, float]:
    """Return what each deployment holds by the closed form, by its pools."""
    return {
        f"{each.engine.software.name} {each.short()}": each.capacity.requests_per_s
        for each in plan.best
    }


# ------------------------------------------------------------------------- against brute force


def test_the_best_of_a_small_space_is_the_best_by_simulation_of_all() -> None:
    asked = question("vllm")
    engine = asked.engines[0]

    def pool(workers: int, **degrees: Any) -> Pool:
        return Pool(replace(engine, layout=Layout(**degrees)), workers)

    every = {
        "2 x tp1": Deployment(pool(2)),
        "1 x tp2": Deployment(pool(1, tp=2)),
        "1 x pp2": Deployment(pool(1, pp=2)),
        "1 x tp1 + 1 x tp1": Deployment(pool(1), pool(1)),
    }
    requests = Requests(rate_per_s=1, prompt=asked.prompt, output=asked.output, seed=5)
    plan = plan_load(asked, simulated=4)
    assert {each.short() for each in plan.best} == set(every)
    held = {}
    for each in plan.best:
        values = [share * each.capacity.requests_per_s for share in (0.6, 0.8, 1.0, 1.25)]
        found = sweep(every[each.short()], requests, values=values, limits=WITHIN, count=3000)
        assert found.knee is not None
        held[each.short()] = found.knee.value
        # Rates of simulations of 1,200 requests scatter by as much.
        assert each.requests_per_s == pytest.approx(found.knee.value, rel=0.12)
    first = plan.best[0]
    assert first.confirmed
    assert held[first.short()] >= 0.93 * max(held.values())
    for one in plan.best:  # the closed form orders what the simulation tells apart by a quarter
        for two in plan.best:
            if held[one.short()] > 1.25 * held[two.short()]:
                assert one.capacity.requests_per_s > two.capacity.requests_per_s


@pytest.mark.parametrize(
    ("isl", "osl", "tpot_s"), [(1024, 256, 0.03), (256, 256, 0.012), (4096, 64, 0.05)]
)
def test_what_is_not_computed_could_not_be_best(isl: int, osl: int, tpot_s: float) -> None:
    limits = Limits(ttft_s=2.0, tpot_s=tpot_s)
    asked = question(
        "trtllm", model="qwen3-30b-a3b", gpus=4, isl=isl, osl=osl, limits=limits, pools="aggregated"
    )
    most = 0.0
    for choice in screened(asked).choices:
        deployment = Deployment(Pool(choice.engine, 4 // choice.gpus))
        found = capacity(deployment, prompt=asked.prompt, output=asked.output, limits=limits)
        most = max(most, found.requests_per_s)
        assert found.requests_per_s / deployment.serving.workers <= SLACK * choice.requests_per_s
    assert plan_load(asked, simulated=0).best[0].requests_per_s == pytest.approx(most)


def test_two_pools_are_split_where_they_balance() -> None:
    limits = Limits(ttft_s=2.0, tpot_s=0.02)
    asked = question(
        "sglang", gpus=6, isl=2048, osl=256, limits=limits, pools="disaggregated",
        degrees={"tp": (1,), "pp": (1,)},
    )  # fmt: skip
    engine = asked.engines[0]
    every = {
        few: capacity(
            Deployment(Pool(engine, 6 - few), Pool(engine, few)),
            prompt=asked.prompt, output=asked.output, limits=limits,
        ).requests_per_s
        for few in range(1, 6)
    }  # fmt: skip
    best = plan_load(asked, simulated=0).best[0]
    assert best.requests_per_s == pytest.approx(max(every.values()))


# ------------------------------------------------------------------------------ which one wins


def kinds(plan: LoadPlan) -> tuple[float, float]:
    """Return what the best with one pool holds, and the best with two."""
    one, two = (
        max(each.requests_per_s for each in plan.best if each.disaggregated == kind)
        for kind in (False, True)
    )
    return one, two


def test_two_pools_win_where_long_prompts_stall_decoding() -> None:
    limits = Limits(ttft_s=5.0, tpot_s=0.012)
    asked = question("sglang", gpus=4, isl=4096, osl=512, limits=limits)
    plan = plan_load(asked, simulated=2)
    one, two = kinds(plan)
    assert two > 1.05 * one
    assert plan.best[0].disaggregated


def test_one_pool_wins_where_nothing_but_throughput_counts() -> None:
    one, two = kinds(plan_load(question("vllm", limits=Limits(), isl=256, osl=512), simulated=2))
    assert one > 1.1 * two


# ----------------------------------------------------------------------------- a load is given


def test_more_load_needs_no_fewer_gpus_and_is_held() -> None:
    used = []
    for rate in (10.0, 110.0):
        asked = question("vllm", gpus=8, rate_per_s=rate, pools="aggregated")
        best = plan_load(asked, simulated=2).best[0]
        used.append(best.gpus)
        assert best.held
        assert best.confirmed
        requests = Requests(
            rate_per_s=rate, prompt=asked.prompt, output=asked.output, count=8000, seed=7
        )
        nearly = Limits(ttft_s=SCATTER * 1.0, tpot_s=SCATTER * 0.03)
        assert not broken_limits(simulate(best.deployment, requests), nearly)
    assert used == sorted(used)
    assert used[0] < used[-1]


def test_users_are_held_by_simulation() -> None:
    asked = question("trtllm", gpus=4, users=150)
    best = plan_load(asked, simulated=2).best[0]
    assert best.held
    assert best.load is not None
    assert best.load.requests.users == 150
    assert best.load.good(WITHIN) >= 0.9


def test_cost_prefers_the_cheaper_machine() -> None:
    places = [Cluster.named(name) for name in ("h100_sxm", "a100_sxm")]
    asked = question("vllm", gpus=1)
    engines = tuple(replace(asked.engines[0], cluster=place) for place in places)
    asked = replace(asked, engines=engines, objective="cost", pools="aggregated")
    for price, wanted in (({"h100_sxm": 50.0, "a100_sxm": 1.0}, "a100_sxm"),
                          ({"h100_sxm": 1.0, "a100_sxm": 1.0}, "h100_sxm")):  # fmt: skip
        plan = plan_load(replace(asked, price=price), simulated=0)
        found = plan.best[0].engine.cluster
        assert isinstance(found, Cluster)
        assert found.name == wanted
        costs = [each.cost_per_million(plan.question) or 0.0 for each in plan.best]
        assert costs == sorted(costs)
        assert all(costs)


def test_the_front_has_no_point_that_another_beats() -> None:
    front = plan_load(question("vllm", gpus=4), simulated=0).front
    assert len(front) > 3
    users = [each.tokens_per_s_per_user for each in front]
    gpus = [each.tokens_per_s_per_gpu for each in front]
    assert users == sorted(users)
    assert gpus == sorted(gpus, reverse=True)


def test_the_same_seed_gives_the_same_plan() -> None:
    asked = question("vllm", gpus=1, osl=16)
    one, two = (plan_load(asked, simulated=1) for _ in range(2))
    assert by_pools(one) == by_pools(two)
    assert one.best[0].requests_per_s == two.best[0].requests_per_s


# ----------------------------------------------------------------------------- the command line


def test_the_document_keeps_the_contract(capsys: pytest.CaptureFixture[str]) -> None:
    data = run_json(capsys, *SMALL, "--software", "vllm,trtllm", "--price", "2.5")
    assert list(data)[: len(CONTRACT)] == list(CONTRACT)
    assert data["feasible"] + sum(each["count"] for each in data["rejected"]) == data["considered"]
    assert 0 < len(data["best"]) <= 5
    assert data["best"][0]["simulated"]
    for each in data["best"]:
        assert each["per_gpu"] == pytest.approx(each["goodput_requests_per_s"] / each["gpus"])
        assert sum(pool["gpus"] for pool in each["pools"]) == each["gpus"] == 2
        assert each["cost_per_million_output_tokens"] > 0
        for name in ("ttft_ms", "tpot_ms", "itl_ms", "e2e_ms"):
            assert set(each[name]) == {"mean", "p50", "p90", "p99"}
        assert each["closed_form"]["requests_per_s"] > 0
    assert {each["software"] for each in data["best"]} == {"vllm", "trtllm"}


def test_the_command_of_the_best_describes_it(capsys: pytest.CaptureFixture[str]) -> None:
    words = [*SMALL, "--pools", "disaggregated", "--max-num-seqs", "64", "--software", "vllm"]
    best = run_json(capsys, *words)["best"][0]
    given: Mapping[str, Any] = vars(
        load_command.parser().parse_args(shlex.split(best["command"])[2:])
    )
    deployment = deployment_of(given, OnDisk())
    shown = [(pool.engine.layout.short(), pool.workers) for pool in deployment.pools]
    assert shown == [(pool["layout"], pool["workers"]) for pool in best["pools"]]
    assert deployment.serving.engine.software.scheduler.max_num_seqs == 64
    requests = requests_of(given, OnDisk())
    assert requests.rate_per_s == pytest.approx(best["goodput_requests_per_s"], rel=1e-3)


def test_the_report_is_one_screen_with_a_verdict(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    picture = tmp_path / "front.svg"
    text = run_text(capsys, *SMALL, "--pareto", "--plot", str(picture))
    screen, _, front = text.partition("Pareto front")
    assert len(screen.splitlines()) <= 45
    assert "tok/s/user" in front
    assert max(len(line) for line in text.splitlines() if str(picture) not in line) <= 80
    flowing = " ".join(text.split())
    assert "holds" in flowing
    assert "requests/s on 2 GPUs at TTFT p90 1 s and TPOT p90 30 ms" in flowing
    assert "first limit: " in flowing
    assert "runner-up" in text
    assert "Rejected workers" in text
    assert "<svg" in picture.read_text()


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("--max-ttft 1ms", "TTFT of a request by itself above 1 ms"),
        ("--rate 5000", "the most is"),
        ("--users 60000", "users needs more than 2 GPUs"),
    ],
)
def test_limits_that_nothing_holds_are_answered_with_reasons(
    capsys: pytest.CaptureFixture[str], more: str, said: str
) -> None:
    text = run_failing(capsys, *SMALL, *more.split())
    assert "no deployment on 2 GPUs holds" in text
    assert said in text


def test_a_best_that_is_not_confirmed_gives_way(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def unlucky(load: Load, limits: Limits) -> tuple[str, ...]:
        """Let every simulation fail that confirms: those have another seed."""
        return ("tpot",) if load.requests.seed else broken_limits(load, limits)

    module = import_module("shardcost.search.deployments")
    monkeypatch.setattr(module, "broken_limits", unlucky)
    words = [*SMALL, "--fix", "tp=1", "--fix", "pp=1", "--pools", "aggregated", "--json"]
    assert cli.main(words) == 3
    data = json.loads(capsys.readouterr().out)
    assert data["best"] == []
    assert data["nearest"]["closed_form"]["requests_per_s"] > 0
    assert not data["nearest"]["confirmed"]


def test_a_model_that_does_not_fit_is_answered_with_reasons(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = "plan llama3-70b --on h100_sxm --gpus 1 --load --isl 128 --osl 16".split()
    text = run_failing(capsys, *words)
    assert "weights and the KV cache of one request do not fit memory" in text


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--load --isl 5", "needs --osl"),
        ("--load --isl 5 --osl 5 --batch 3", "--batch is not for --load"),
        ("--load --isl 5 --osl 5 --headroom 10%", "--headroom is not for --load"),
        ("--load --isl 5 --osl 5 --rate 1 --users 3", "exclude each other"),
        ("--load --isl 5 --osl 5 --objective time", "--objective"),
        ("--load --isl 5 --osl 5 --objective cost", "--price"),
        ("--load --isl -5 --osl 5", "--isl"),
        ("--load --isl 5 --osl 5 --rate 0", "--rate"),
        ("--load --isl 5 --osl 5 --fix zero=1", "--fix"),
        ("--load --isl 5 --osl 5 --fix routing=even,random", "one value with --load"),
        ("--load --isl 5 --osl 5 --pools three", "--pools"),
        ("--load --isl 5 --osl 5 --out t.parquet", "--out is not for --load"),
        ("--load --isl 5 --osl 5 --percentile 90", "--percentile"),
        ("--load --isl 5 --osl 5 --plot t.gif", "t.gif"),
        ("--decode --batch 1 --context-tokens 5 --isl 5", "--isl is for --load"),
    ],
)
def test_bad_input_is_answered_in_one_line(
    capsys: pytest.CaptureFixture[str], words: str, said: str
) -> None:
    text = run_error(capsys, "plan", "llama3-8b", "--on", "h100_sxm", *words.split())
    assert said in text
