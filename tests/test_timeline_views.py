"""Timelines as they are drawn: they add up to the estimate, and every picture is a real one."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from shardcost import Cluster, Layout, Model
from shardcost.estimate import Estimate, estimate
from shardcost.estimate.busy import Busy
from shardcost.estimate.events import COMMUNICATION, Drawing, Event
from shardcost.estimate.layer_timeline import layer_timeline, usual_layers
from shardcost.estimate.placement import places
from shardcost.estimate.price import Prices
from shardcost.estimate.work import piece_work
from shardcost.software import Software
from shardcost.workload import Decode, Prefill, Train, Workload

H100 = Cluster.named("h100_sxm", network="ib_8x400g")
KINDS = {"product": "products", "attention": "attention", "pass": "passes"}
TRAINERS = ("megatron_core", "megatron_lm", "megatron_2021", "nanotron", "torchtitan", "torch")
SERVERS = ("trtllm", "vllm", "fastertransformer", "tokenweave", "megatron_inference")


def asked(number: int) -> list[tuple[str, Layout, Workload, Software]]:
    """Return layouts of all kinds, workloads and software that go together."""
    rng = random.Random(7)
    found: list[tuple[str, Layout, Workload, Software]] = []
    while len(found) < number:
        model = rng.choice(
            ["llama3-8b", "llama3-70b", "mixtral-8x7b", "deepseek-v3", "gpt-neox-20b"]
        )
        tp = rng.choice([1, 2, 4, 8])
        train = rng.random() < 0.6
        schedule = rng.choice(["1f1b", "1f1b", "zero_bubble"]) if train else "1f1b"
        layout = Layout(
            tp=tp,
            cp=rng.choice([1, 1, 2, 4]),
            dp=rng.choice([1, 4]) if train else 1,
            pp=rng.choice([1, 2]),
            ep=1,
            sequence_parallel=tp > 1 and rng.random() < 0.5,
            recompute=rng.choice(["none", "selective", "full"]) if train else "none",
            zero=rng.choice([0, 1, 3]) if train else 0,
            schedule=schedule,
            context_scheme=rng.choice(["ring", "all_gather"]),
        )
        if model in {"mixtral-8x7b", "deepseek-v3"} and layout.dp * layout.tp >= 4:
            layout = replace(layout, ep=4)
        software = Software.named(rng.choice(TRAINERS if train else SERVERS))
        overlap = rng.choice(["none", "async", "chunked"])
        software = replace(software, tp_overlap=overlap) if rng.random() < 0.5 else software
        work: Workload = rng.choice(
            [Prefill(batch=2, prompt_tokens=4096), Decode(batch=32, context_tokens=4096)]
        )
        if train:
            work = Train(global_batch=64, sequence_length=rng.choice([1024, 8192]))
        if Model.named(model).num_layers % layout.pp == 0:
            found.append((model, layout, work, software))
    return found


@pytest.fixture(scope="module")
def estimates() -> list[Estimate]:
    found = []
    for model, layout, work, software in asked(300):
        try:
            found.append(estimate(model, H100, layout, work, software=software))
        except ValueError:  # heads that do not divide: other tests are on that
            continue
    assert len(found) > 200
    return found


def check_sound(drawn: Drawing) -> None:
    """Hold a drawing to what every drawing is: events in the span, in order, on known streams."""
    streams = {(each.stage, each.stream) for each in drawn.streams}
    assert len(streams) == len(drawn.streams)
    assert len({each.name for each in drawn.streams}) == len(streams)
    assert streams == {(each.stage, each.stream) for each in drawn.events}
    lanes: dict[tuple[int, str], list[Event]] = {}
    for event in drawn.events:
        assert 0 <= event.start_s < event.end_s <= drawn.span_s * (1 + 1e-12), event
        assert (event.group is not None) == (event.kind in COMMUNICATION), event
        assert event.exposed or event.kind in COMMUNICATION, event
        lanes.setdefault((event.stage, event.stream), []).append(event)
    for lane in lanes.values():
        for one, other in pairwise(sorted(lane, key=lambda each: each.start_s)):
            assert one.end_s <= other.start_s * (1 + 1e-11), (one, other)


def seconds(events: Iterable[Event], **like: Any) -> float:
    return sum(
        event.seconds
        for event in events
        if all(getattr(event, name) == value for name, value in like.items())
    )


def layer_of(found: Estimate) -> dict[str, Busy]:
    prices = Prices(found.cluster, found.program.setting.software, places(found.layout))
    work = piece_work(usual_layers(found).passes, prices, found.program.setting.software)
    if len(found.program.layers) == 1:
        assert work.forward.device_s == found.work.layer.forward.device_s
        assert work.backward.device_s == found.work.layer.backward.device_s
    return {"forward": work.forward, "backward": work.backward, "weight": work.weight}


def test_a_layers_events_add_up_to_what_the_estimate_counts(estimates: list[Estimate]) -> None:
    hiding = set()
    for found in estimates:
        drawn = layer_timeline(found)
        check_sound(drawn)
        inside = [
            event._replace(passing="backward") if event.passing == "recompute" else event
            for event in drawn.events
            if event.stream != "dp"
        ]
        for name, busy in layer_of(found).items():
            own = [event for event in inside if event.passing == name]
            for kind, counted in KINDS.items():
                assert seconds(own, kind=kind) == pytest.approx(busy.compute_s[counted], abs=1e-15)
            for group, total in busy.comm_s.items():
                sent = seconds(own, kind="comm", group=group)
                assert sent == pytest.approx(total, rel=1e-9, abs=1e-15)
                exposed = seconds(own, kind="comm", group=group, exposed=True)
                assert exposed == pytest.approx(busy.exposed_s[group], rel=1e-9, abs=1e-15)
                if exposed < 0.99 * sent:
                    hiding.add((group, name))
            waits = float(busy.wall_s(found.program.setting.software) - busy.device_s)
            assert seconds(own, kind="host") == pytest.approx(waits, abs=1e-12)
            assert {event.group for event in own} - {None} <= set(busy.comm_s)
    assert {("tp", "forward"), ("tp", "backward"), ("cp", "forward"), ("cp", "backward")} <= hiding


def test_nothing_but_exposed_communication_and_the_host_keeps_a_layer_from_computing(
    estimates: list[Estimate],
) -> None:
    for found in estimates:
        drawn = layer_timeline(found)
        parts = drawn.totals
        assert drawn.span_s == pytest.approx(
            parts["compute_s"] + parts["exposed_s"] + parts["host_s"], rel=1e-9
        )
        comm = sum(event.seconds for event in drawn.events if event.kind == "comm")
        assert parts["exposed_s"] + parts["hidden_s"] == pytest.approx(comm, rel=1e-9)
        exposed = [each for each in drawn.events if each.kind == "comm" and each.exposed]
        working = [each for each in drawn.events if each.stream == "compute"]
        busy = sum(
            max(0.0, min(one.end_s, other.end_s) - max(one.start_s, other.start_s))
            for one in exposed
            for other in working
        )
        assert busy <= 1e-9 * drawn.span_s
