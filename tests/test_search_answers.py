"""What one asks next of a search: sums that add up, limits that are known, tries that hold."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from importlib import import_module

import numpy as np
import pytest

from shardcost import Cluster, Decode, Layout, Prefill, Train, estimate, search
from shardcost.collectives.library_time import collective_time
from shardcost.errors import BadValueError
from shardcost.search.found import Candidate, Found
from shardcost.search.plan import crossovers, losses
from shardcost.search.relaxations import Relaxation, relaxations, shortfall
from shardcost.search.sensitivity import Gain, adjusted_time_s, sensitivity
from shardcost.search.stability import stability
from shardcost.workload import Workload

H100 = Cluster.named("h100_sxm", network="ib_8x400g")
TRAIN = Train(global_batch=64, sequence_length=4096)
DECODE = Decode(batch=16, context_tokens=2048)
PREFILL = Prefill(batch=4, prompt_tokens=4096)


@pytest.fixture(scope="module")
def trained() -> Found:
    space = {"gpus": (16, 32), "cp": 1, "schedule": ("1f1b", "interleaved"), "zero": (0, 1)}
    return search("llama3-8b", H100, TRAIN, space=space, top=20)


@pytest.fixture(scope="module")
def decoded() -> Found:
    clusters = ["h100_sxm", "h200_sxm"]
    space = {"gpus": (2, 4, 8), "batch": (8, 16, 32)}
    return search("llama3-70b", clusters, DECODE, space=space, objective="throughput", top=20)


@pytest.fixture(scope="module")
def prefilled() -> Found:
    space = {"gpus": 8, "tp": (4, 8)}
    return search("llama3-70b", "h100_sxm", PREFILL, space=space, objective="energy", top=20)


@pytest.fixture(params=["trained", "decoded", "prefilled"])
def found(request: pytest.FixtureRequest) -> Found:
    result: Found = request.getfixturevalue(request.param)
    return result


def one(
    model: str, cluster: str | Cluster, work: Workload, layout: Layout, **space: object
) -> Found:
    """Return the search of one mesh."""
    degrees = {name: getattr(layout, name) for name in ("tp", "pp", "dp", "cp", "ep")}
    return search(model, cluster, work, space={"gpus": layout.devices, **degrees, **space})


def gains(candidate: Candidate, more: float = 0.1) -> dict[str, Gain]:
    return {each.what: each for each in sensitivity(candidate, more)}


# Losses


def test_losses_add_up_to_the_difference_of_the_times(found: Found) -> None:
    first = found.best[0]
    for other in found.best[1:6]:
        parts = losses(first, other)
        lost = sum(each.lost_s for each in parts)
        assert lost == pytest.approx(other.time_s - first.time_s, abs=1e-9 * first.time_s)
        sizes = [abs(each.lost_score) for each in parts]
        assert sizes == sorted(sizes, reverse=True)
        assert {each.part for each in parts} >= set(first.estimate.parts_s)


def test_losses_are_in_the_unit_of_the_objective() -> None:
    space = {"gpus": (4, 8), "batch": (32, 64)}
    work = Decode(batch=32, context_tokens=4096)
    found = search("llama3-70b", "h100_sxm", work, space=space, objective="throughput")
    first, second = found.best[:2]
    lost = losses(first, second)
    assert second.time_s < first.time_s  # slower by its objective alone
    assert sum(each.lost_s for each in lost) < 0
    assert sum(each.lost_score for each in lost) == pytest.approx(second.score - first.score)
    assert [abs(each.lost_score) for each in lost] == sorted(
        (abs(each.lost_score) for each in lost), reverse=True
    )


def test_a_part_that_only_one_layout_has_counts_as_nothing_for_the_other() -> None:
    alone = one("llama3-8b", H100, PREFILL, Layout()).best[0]
    shared = one("llama3-8b", H100, PREFILL, Layout(dp=2)).best[0]
    found = {each.part: each for each in losses(shared, alone)}
    for part in set(alone.estimate.parts_s) ^ set(shared.estimate.parts_s):
        assert 0.0 in (found[part].winner_s, found[part].other_s)


# Sensitivity


def test_a_layout_bound_by_compute_gains_by_compute_alone() -> None:
    work = Train(global_batch=512, sequence_length=4096)
    found = gains(one("llama3-70b", H100, work, Layout(dp=64)).best[0])
    assert found["FLOP/s"].elasticity > 0.9
    assert 0 < found["memory bandwidth"].elasticity < 0.1
    assert 0 <= found["bandwidth inside a node"].elasticity < 0.02


def test_decoding_one_sequence_gains_by_memory_bandwidth() -> None:
    work = Decode(batch=1, context_tokens=1024)
    found = gains(one("qwen2.5-32b", "h100_sxm", work, Layout()).best[0])
    assert found["memory bandwidth"].elasticity > 0.8
    assert found["FLOP/s"].elasticity < 0.05
    assert found["bandwidth inside a node"].elasticity == 0
    assert found["bandwidth inside a node"].note


def test_a_tensor_group_across_nodes_gains_by_the_network() -> None:
    found = gains(one("llama3-70b", H100, TRAIN, Layout(tp=64)).best[0])
    assert found["network bandwidth"].elasticity > 0.2
    assert found["network bandwidth"].elasticity > found["bandwidth inside a node"].elasticity


def test_a_tensor_group_inside_a_node_gains_by_its_links() -> None:
    found = gains(one("llama3-8b", H100, PREFILL, Layout(tp=8)).best[0])
    assert found["bandwidth inside a node"].elasticity > 0.1
    assert found["network bandwidth"].elasticity == 0
    assert found["network bandwidth"].note == "no group crosses it"


@pytest.mark.parametrize("more", [0.01, 0.1, 1.0])
def test_more_never_makes_slower_and_never_brings_more_than_itself(
    found: Found, more: float
) -> None:
    for candidate in found.best[:4]:
        every = gains(candidate, more)
        for each in every.values():
            assert -0.01 <= each.faster_pct <= 100 * more + 0.5, each
            assert each.time_s <= candidate.time_s * 1.0001
        resources = [each.elasticity for what, each in every.items() if what != "memory"]
        assert 0 < sum(resources) < 1.02


def test_elasticities_are_what_small_differences_of_the_estimate_are(trained: Found) -> None:
    best = trained.best[0]
    asked = best.question
    network = asked.cluster.network
    assert network is not None
    faster = replace(network, nic_bytes_per_s=1.1 * network.nic_bytes_per_s)
    cluster = replace(asked.cluster, network=faster)
    direct = estimate(asked.model, cluster, best.layout, best.workload, software=best.software)
    # A library may switch paths on a faster network; the gain keeps to the one that runs.
    assert gains(best)["network bandwidth"].time_s == pytest.approx(direct.time_s, rel=0.01)


def test_memory_brings_what_the_layout_beyond_it_would(trained: Found) -> None:
    first, later = trained.best[0], trained.best[5]
    better = sensitivity(later, beyond=first)[-1]
    assert better.what == "memory"
    assert better.time_s == first.time_s
    assert better.faster_pct == pytest.approx(100 * (later.score / first.score - 1))
    assert first.layout.short() in better.note
    assert sensitivity(first, beyond=later)[-1].faster_pct == 0
    assert sensitivity(first)[-1].faster_pct == 0


def test_a_device_that_borrows_constants_keeps_its_lender() -> None:
    for name in ("h20_sxm", "gh200_quad", "h100_nvl"):
        found = gains(one("llama3-8b", name, DECODE, Layout(tp=2)).best[0])
        assert 0.3 < found["memory bandwidth"].elasticity < 1, name
        assert 0 <= found["FLOP/s"].elasticity < 0.4, name


def test_more_is_a_share_above_nothing(trained: Found) -> None:
    with pytest.raises(BadValueError, match="more"):
        sensitivity(trained.best[0], 0)


@pytest.mark.parametrize("library", ["nccl", "vllm", "trtllm"])
@pytest.mark.parametrize("collective", ["all_reduce", "all_gather", "all_to_all", "send_recv"])
@pytest.mark.parametrize("gpus", [4, 8, 32])
def test_links_of_the_same_rate_take_the_same_time(
    library: str, collective: str, gpus: int
) -> None:
    found = collective_time(collective, 64e6, H100, gpus, library=library)
    same = found.time_on_links_s()
    assert same == pytest.approx(found.time_s, rel=1e-12)
    faster = np.array([1.0, 1.1, 2.0, 1e9])
    inside, outside = np.broadcast_arrays(
        found.time_on_links_s(faster), found.time_on_links_s(1.0, faster), faster
    )[:2]
    for times in (inside, outside):
        assert times[0] == pytest.approx(same, rel=1e-12)
        assert (np.diff(times) <= 1e-15).all()
        assert (times > same / 2.0 - 1e-12)[:3].all()
    assert (outside == outside[0]).all() == (gpus <= 8)
    # What is left with links of any rate are latencies.
    both = found.time_on_links_s(1e9, 1e9)
    assert both < same


# Crossovers


def test_crossovers_name_the_best_value_of_each_axis(found: Found) -> None:
    best = found.best[0]
    every = {each.axis: each for each in crossovers(found)}
    for axis, each in every.items():
        known = [score for _, score in each.best if score is not None]
        assert len(each.best) > 1
        assert min(known) == dict(each.best)[each.value]
        assert min(known) == pytest.approx(best.score, rel=1e-9)
        assert each.words
        if axis in best.row:
            same = dict(each.best)[best.row[axis]]
            assert same == pytest.approx(best.score, rel=1e-9)


def test_crossovers_say_where_an_axis_stops_to_pay(trained: Found) -> None:
    every = {each.axis: each for each in crossovers(trained)}
    assert every["gpus"].value == 32
    assert every["gpus"].words.startswith(
        "more GPUs help up to 32 (the largest feasible tried); 16: +"
    )
    assert "cp" not in every
    assert "order" not in every
    tensor = every["tp"]
    scores = dict(tensor.best)
    behind = 100 * (scores[2 * tensor.value] / scores[tensor.value] - 1)
    assert f"{2 * tensor.value}: +{behind:.2g} % time" in tensor.words
    assert every["recompute"].words.startswith(f"recompute {every['recompute'].value} is best; ")


def test_crossovers_say_what_nothing_fits_with() -> None:
    space = {"gpus": 8, "recompute": ("none", "full"), "tp": (1, 8), "pp": 1, "cp": 1, "zero": 0}
    space["micro_batch"] = 1
    found = search("llama2-13b", "h100_sxm", TRAIN, space=space)
    every = {each.axis: each for each in crossovers(found)}
    assert every["tp"].words == "tp: only 8 is feasible"
    assert every["tp"].best[0] == (1, None)


def test_crossovers_speak_of_the_objective(decoded: Found, prefilled: Found) -> None:
    words = " ".join(each.words for each in crossovers(decoded))
    assert "% GPU time per token" in words
    assert "% time" not in words
    assert " energy per token" in " ".join(each.words for each in crossovers(prefilled))


# Stability


def test_stability_is_the_same_for_the_same_seed_and_fast(found: Found) -> None:
    started = time.process_time()
    one_time = stability(found)
    assert time.process_time() - started < 1.5
    assert stability(found) == one_time
    assert one_time.layouts == len(found.best)
    assert one_time.shown == 5
    assert 0 <= one_time.first_stays_pct <= 100
    assert 0 <= one_time.changed <= 5
    assert one_time.worst_loss_pct >= 0
    assert {"gemm", "elementwise", "attention", "host"} <= set(one_time.errors)
    assert all(error > 0 for error in one_time.errors.values())


def test_without_errors_nothing_changes(found: Found, monkeypatch: pytest.MonkeyPatch) -> None:
    module = import_module("shardcost.search.stability")
    monkeypatch.setattr(module, "_MEDIAN_IN_SIGMAS", 1e15)
    same = stability(found, draws=3)
    assert same.changed == 0
    assert same.worst_loss_pct == pytest.approx(0, abs=1e-9)


def test_larger_errors_change_more(trained: Found, monkeypatch: pytest.MonkeyPatch) -> None:
    module = import_module("shardcost.search.stability")
    small = stability(trained)
    monkeypatch.setattr(module, "_MEDIAN_IN_SIGMAS", module._MEDIAN_IN_SIGMAS / 10)
    large = stability(trained)
    assert large.worst_loss_pct > small.worst_loss_pct
    assert large.changed >= small.changed


def test_half_of_the_draws_lie_within_the_median_error() -> None:
    module = import_module("shardcost.search.stability")
    drawn = module._Drawn(4000, 1)
    factors = drawn.factors("h100_sxm", module.Kind("gemm", 3.0))
    assert np.median(np.abs(np.log(factors))) == pytest.approx(0.03, rel=0.05)
    other = drawn.factors("h100_sxm", module.Kind("elementwise", 3.0))
    assert abs(np.corrcoef(factors, other)[0, 1]) < 0.05


def test_adjusted_prices_change_the_step_and_nothing_that_is_kept(trained: Found) -> None:
    best = trained.best[0]
    program = best.estimate.program
    plain = adjusted_time_s(best.estimate, lambda _, seconds: seconds)
    assert plain == pytest.approx(best.time_s, rel=1e-9)
    longer = adjusted_time_s(best.estimate, lambda _, seconds: seconds * np.array([1.0, 2.0]))
    overhead = program.setting.software.step_overhead_s
    assert longer[0] == pytest.approx(plain, rel=1e-12)
    assert longer[1] - overhead <= 2 * (plain - overhead) * (1 + 1e-9)
    assert longer[1] > 1.9 * plain - overhead
    assert adjusted_time_s(best.estimate, lambda _, seconds: seconds) == plain


def test_a_search_that_found_nothing_has_nothing_to_change() -> None:
    nothing = search("llama3-70b", "h100_sxm", DECODE, space={"gpus": 1})
    assert stability(nothing).layouts == 0
    assert crossovers(nothing) == ()


# Relaxations


def relaxed(*question: object, **rest: object) -> tuple[Found, tuple[Relaxation, ...]]:
    """Return a search in vain, and what would help; each of which must hold."""
    found = search(*question, **rest)  # type: ignore[arg-type]
    assert found.feasible == 0
    results = relaxations(found.questions, found)
    for each in results:
        assert each.candidate.estimate.memory.fits(each.candidate.question.cluster.device)
        assert each.candidate.time_s == pytest.approx(each.candidate.estimate.time_s, rel=1e-9)
    return found, results


def test_more_gpus_where_memory_does_not_suffice() -> None:
    found, results = relaxed("llama3-405b", "h100_sxm", DECODE, space={"gpus": 8})
    assert [each.words for each in results] == ["16 GPUs instead of 8, joined by ib_8x400g"]
    assert results[0].candidate.layout.devices == 16
    assert found.smallest is not None
    said = shortfall(found)
    assert said.startswith("memory: the smallest layout needs")
    assert said.endswith(found.smallest.layout.short())


def test_an_axis_is_freed_that_was_fixed() -> None:
    space = {"gpus": 8, "tp": 1, "cp": 1, "pp": 1, "zero": 0, "recompute": "none"}
    _, results = relaxed("llama3-8b", "h100_sxm", TRAIN, space=space)
    words = [each.words for each in results]
    assert any(re.fullmatch("zero [123] instead of 0", each) for each in words)
    assert any(re.fullmatch("tp [248] instead of 1", each) for each in words)
    assert not any("GPUs" in each for each in words)  # more replicas do not make any smaller


def test_degrees_that_contradict_the_devices_are_named_and_freed() -> None:
    found, results = relaxed("llama3-8b", "h100_sxm", PREFILL, space={"gpus": 8, "tp": 7})
    assert "tp=7" in shortfall(found)
    assert [each.words for each in results] == ["tp 1 instead of 7"]


def test_the_limit_that_rejects_most_is_dropped() -> None:
    limits = {"max_tpot_s": 1e-3, "max_time_s": 10.0}
    found, results = relaxed("llama3-8b", "h100_sxm", DECODE, space={"gpus": 1}, constraints=limits)
    assert results[0].words == "limit dropped (TPOT at most 1 ms)"
    assert results[0].candidate.time_s > 1e-3
    assert shortfall(found).startswith("limits: ")


def test_more_gpus_keep_a_limit_on_the_step() -> None:
    space = {"gpus": 8, "cp": 1, "schedule": "1f1b", "micro_batch": (1, 2), "zero": 1, "tp": 1}
    best = search("llama3-8b", H100, TRAIN, space=space).best[0]
    limits = {"max_time_s": best.time_s / 1.7}
    _, results = relaxed("llama3-8b", H100, TRAIN, space=space, constraints=limits)
    words = {each.words.split(":")[0]: each.candidate for each in results}
    assert words["16 GPUs instead of 8"].time_s <= limits["max_time_s"]
    assert any("limit dropped (Step at most" in each for each in words)


def test_headroom_is_dropped() -> None:
    space = {"gpus": 1}
    least = search("qwen2.5-32b", "h100_sxm", DECODE, space=space).best[0]
    share = 1 - least.memory_bytes / least.question.cluster.device.memory_bytes
    _, results = relaxed(
        "qwen2.5-32b",
        "h100_sxm",
        DECODE,
        space=space,
        constraints={"memory_headroom": share + 0.01},
    )
    assert results[0].words.startswith("memory headroom dropped")


def test_a_network_is_named_where_nodes_have_none() -> None:
    found, results = relaxed("llama3-8b", "h100_sxm", PREFILL, space={"gpus": 16})
    assert [each.words for each in results] == ["a network between the nodes (ib_8x400g)"]
    assert "need a network" in shortfall(found)


def test_all_is_let_go_of_where_nothing_else_helps() -> None:
    space = {"gpus": (1, 2), "tp": 1}
    limits = {"max_tpot_s": 1e-2}
    clusters = ["h100_sxm", "h200_sxm"]
    work = Decode(batch=64, context_tokens=8192)
    _, results = relaxed("llama3-70b", clusters, work, space=space, constraints=limits)
    assert len(results) == 1
    assert results[0].words.startswith("all axes free, all limits dropped")
    assert results[0].candidate.question.cluster.name == "h200_sxm"


def test_nothing_is_let_go_of_where_something_is_feasible(trained: Found) -> None:
    assert relaxations(trained.questions, trained) == ()
    assert shortfall(trained) == ""
