"""Timelines as they are drawn: they add up to the estimate, and every picture is a real one."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import numpy as np
import pytest
from cases import usual_passes

from shardcost import Cluster, Layout, Model
from shardcost.errors import BadTypeError, BadValueError, UnknownNameError
from shardcost.estimate import Estimate, estimate
from shardcost.estimate.pieces import PassParts, walls_s
from shardcost.estimate.timeline.events import COMMUNICATION, Break, Drawing, Event
from shardcost.estimate.timeline.layer import layer_timeline
from shardcost.estimate.timeline.step import MOST_EVENTS, step_timeline
from shardcost.estimate.why import figures
from shardcost.formats.kineto import read
from shardcost.report.estimate import title
from shardcost.report.estimate_data import drawing_of, timeline_as_data
from shardcost.report.pictures import write_picture
from shardcost.report.timeline_plot import sketch
from shardcost.report.trace import events_of, write_timeline
from shardcost.software import Software
from shardcost.workload import Decode, Prefill, Train, Workload

H100 = Cluster.named("h100_sxm", network="ib_8x400g")
KINDS = {"gemm": "gemm", "attention": "attention", "elementwise": "elementwise"}
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
            work = Train(global_batch=16, sequence_length=rng.choice([1024, 8192]))
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
        for name, busy in usual_passes(found).items():
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
            assert {event.group for event in own} - {None} <= set(busy.comm_s)
        parts, software = usual_passes(found), found.program.setting.software
        backward = parts["backward"].time.plus(parts["weight"].time)
        for names, time in (
            (("forward",), parts["forward"].time),
            (("backward", "weight"), backward),
        ):
            own = [event for event in inside if event.passing in names]
            waits = float(time.wall_s(software) - time.device_s)
            assert seconds(own, kind="host") == pytest.approx(waits, abs=1e-12)
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


SCHEMES = ("2d", "2.5d", "3d", "weight_gathered")


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("overlap", ["none", "async", "chunked"])
def test_other_partitions_of_a_layer_add_up_too(scheme: str, overlap: str) -> None:
    software = replace(Software.named("megatron_core"), tp_overlap=overlap)
    tp = 4 if scheme in {"2d", "weight_gathered"} else 8
    train = Train(global_batch=8, sequence_length=4096)
    layout = Layout(tp=tp, scheme=scheme, micro_batch=8)
    found = estimate("llama2-7b", H100, layout, train, software=software)
    drawn = layer_timeline(found)
    check_sound(drawn)
    passes = usual_passes(found).values()
    comm_s = sum(each.comm_s.get("tp", 0.0) for each in passes)
    assert seconds(drawn.events, kind="comm") == pytest.approx(comm_s, rel=1e-9)
    exposed = seconds(drawn.events, kind="comm", exposed=True)
    waits_s = sum(each.exposed_s.get("tp", 0.0) for each in passes)
    assert exposed == pytest.approx(waits_s, rel=1e-9)
    assert (exposed < seconds(drawn.events, kind="comm")) == (overlap != "none")


def test_sharded_weights_of_the_next_layer_are_gathered_beside_a_layer() -> None:
    train = Train(global_batch=64, sequence_length=512)
    found = estimate("llama3-8b", H100, Layout(dp=64, zero=3), train)
    drawn = layer_timeline(found)
    check_sound(drawn)
    ledger, software = found.ledger, found.program.setting.software
    sent = {
        "forward": ledger.gather.seconds,
        "backward": ledger.gather.seconds + ledger.scatter.seconds,
    }
    forward, backward, weight = walls_s(ledger.layer, software)
    computes = {"forward": forward, "backward": backward + weight}
    for name, total in sent.items():
        own = [event for event in drawn.events if event.group == "dp" and event.passing == name]
        assert sum(event.seconds for event in own) == pytest.approx(total, rel=1e-9)
        late = max(0.0, total - computes[name])
        assert late > 0  # so few tokens hide nothing much
        assert seconds(own, exposed=True) == pytest.approx(late, rel=1e-9)
    assert drawn.span_s == pytest.approx(sum(sent.values()), rel=1e-9)


def test_a_step_ends_when_the_estimate_says(estimates: list[Estimate]) -> None:
    for found in estimates:
        drawn = step_timeline(found)
        check_sound(drawn)
        assert drawn.cut is None
        train = isinstance(found.workload, Train)
        assert drawn.span_s == pytest.approx(found.time_s, rel=5e-3 if train else 1e-9)
        assert max(event.end_s for event in drawn.events) == pytest.approx(drawn.span_s, rel=1e-9)
        assert drawn.totals["compute_s"] == pytest.approx(sum(found.compute_s.values()))
        assert drawn.totals["exposed_s"] == pytest.approx(sum(found.exposed_s.values()))


def test_a_served_step_adds_up_to_the_estimate(estimates: list[Estimate]) -> None:
    for found in estimates:
        if isinstance(found.workload, Train):
            continue
        events = step_timeline(found).events
        for kind, counted in KINDS.items():
            assert seconds(events, kind=kind) == pytest.approx(found.compute_s[counted], rel=1e-9)
        for group, total in found.comm_s.items():
            assert seconds(events, group=group) == pytest.approx(total, rel=1e-9)
            exposed = seconds(events, group=group, exposed=True)
            assert exposed == pytest.approx(found.exposed_s[group], rel=1e-9)
        host = found.parts_s["host and overhead"]
        assert seconds(events, kind="host") == pytest.approx(host, rel=1e-6)


def test_a_trained_step_computes_what_its_stages_have_to(estimates: list[Estimate]) -> None:
    for found in estimates:
        if not isinstance(found.workload, Train):
            continue
        events, program, ledger = step_timeline(found).events, found.program, found.ledger
        runs = program.micro_batches
        counts = [each.count for each in program.layers]
        pieces = [*zip(counts, ledger.layers, strict=True), (1, ledger.first), (1, ledger.last)]
        passes = [PassParts.of(pieces, each) for each in ("forward", "backward", "weight")]
        computed = sum(seconds(events, kind=kind) for kind in ("forward", "backward", "weight"))
        compute_s = sum(sum(each.compute_s.values()) for each in passes)
        assert computed == pytest.approx(runs * compute_s, rel=1e-6)
        for group in {group for each in passes for group in each.exposed_s}:
            waits_s = sum(each.exposed_s.get(group, 0.0) for each in passes)
            exposed = seconds(events, group=group, exposed=True)
            assert exposed == pytest.approx(runs * waits_s, rel=1e-6, abs=1e-9)
        sends = seconds(events, kind="send")
        pp = found.layout.pp
        assert sends == pytest.approx(2 * (pp - 1) * runs * ledger.send.seconds, rel=1e-6)
        line = found.timeline()
        for stage in range(pp):
            early = [each for each in events if each.start_s < line.lanes[stage].ends[-1]]
            ending = line.pipeline_s - line.computed_s(stage)
            idle = seconds(early, stage=stage, kind="idle", name="wait")
            assert idle == pytest.approx(line.bubble_s(stage) - ending, rel=1e-6, abs=1e-9)


def test_communication_of_replicas_is_drawn_whole_and_exposed_where_a_stage_waits() -> None:
    for layout in (
        Layout(tp=2, pp=2, dp=4, zero=1),
        Layout(dp=8),
        Layout(pp=4, dp=4),
        Layout(pp=4, dp=4, virtual_stages=2, zero=2, schedule="interleaved"),
        Layout(pp=4, dp=4, schedule="zero_bubble"),
        Layout(tp=2, dp=8, zero=3, shard_degree=4),
    ):
        train = Train(global_batch=32, sequence_length=512)
        found = estimate("llama3-8b", H100, layout, train)
        drawn, line = step_timeline(found), found.timeline()
        check_sound(drawn)
        for stage in range(layout.pp):
            own = [event for event in drawn.events if event.stage == stage]
            ledger, layers = found.ledger, found.program.stages.first.layers
            sharded = (
                found.program.micro_batches
                * layers
                * (2 * ledger.gather.seconds + ledger.scatter.seconds)
            )
            sent = line.busy_s(stage, "dp") + sharded
            assert seconds(own, group="dp") == pytest.approx(sent, rel=1e-6)
            blocked = seconds(own, group="dp", exposed=True)
            assert blocked == pytest.approx(line.exposed_comm_s(stage), rel=1e-6, abs=1e-6)
    alone = replace(Software.named("megatron_core"), dp_overlap=False)
    train = Train(global_batch=32, sequence_length=512)
    found = estimate("llama3-8b", H100, Layout(dp=8, zero=1), train, software=alone)
    drawn = step_timeline(found)
    check_sound(drawn)
    both = found.ledger.reduce.seconds + found.ledger.collect.seconds
    assert seconds(drawn.events, group="dp", exposed=True) == pytest.approx(both, rel=1e-9)
    assert drawn.span_s == pytest.approx(found.time_s, rel=1e-9)


def test_a_very_long_step_is_cut_and_says_so() -> None:
    train = Train(global_batch=2048, sequence_length=2048)
    layout = Layout(tp=8, pp=64, dp=4, micro_batch=1)
    data = timeline_as_data(estimate("megatron-1t", H100, layout, train))
    assert data["cut"].startswith("left out: stages 8 to 55 of 64 and micro-batches ")
    assert data["cut"].endswith("of 512, numbered from 0")
    assert 2000 < len(data["events"]) <= MOST_EVENTS
    assert {each["stage"] for each in data["streams"]} == {*range(8), *range(56, 64)}
    idle = [each for each in data["events"] if each["kind"] == "idle"]
    assert sum(each["end_s"] - each["start_s"] for each in idle) < 3 * data["span_s"]
    gap = data["break"]
    assert gap["words"] == f"… {gap['micro_batches']} micro-batches …"
    assert gap["end_s"] - gap["start_s"] > data["span_s"] / 2
    inside = [
        each
        for each in data["events"]
        if each["start_s"] < gap["end_s"] and each["end_s"] > gap["start_s"]
    ]
    assert inside == []


def test_a_break_is_drawn_narrow_and_times_stay_in_order() -> None:
    gap = Break(2.0, 10.0, 96)
    times = [0.0, 1.0, 2.0, 6.0, 10.0, 12.0]
    assert [gap.shortened(time, 0.5) for time in times] == [0.0, 1.0, 2.0, 2.25, 2.5, 4.5]


@pytest.mark.parametrize(
    "work", [Prefill(batch=1, prompt_tokens=512), Decode(batch=8, context_tokens=512)]
)
def test_a_served_step_is_a_trace_too(tmp_path: Path, work: Workload) -> None:
    layout = Layout(tp=2, pp=2, cp=2)
    found = estimate("llama3-8b", H100, layout, work)
    events, names = events_of(found)
    assert set(names.ranks) == {0, 4}
    computed = sum(each.end_s - each.start_s for each in events if each.call is None)
    assert computed == pytest.approx(sum(found.compute_s.values()), rel=1e-9)
    for group, exposed in found.exposed_s.items():
        own = [each for each in events if each.call and each.call.kind.group.description == group]
        assert sum(each.end_s - each.start_s for each in own) == pytest.approx(exposed, rel=1e-9)
    for lane in {(each.rank, each.stream) for each in events}:
        own = sorted(
            (each for each in events if (each.rank, each.stream) == lane),
            key=lambda each: each.start_s,
        )
        assert all(one.end_s <= other.start_s * (1 + 1e-11) for one, other in pairwise(own))
    write_timeline(found, tmp_path / "served.json")
    trace = read(tmp_path / "served.json")
    assert (trace.unread, trace.world_size, len(trace.ranks)) == ((), 8, 2)


def test_very_many_buckets_are_not_too_many_events() -> None:
    software = replace(Software.named("megatron_core"), bucket_bytes=2e6)
    train = Train(global_batch=64, sequence_length=2048)
    found = estimate("llama3-70b", H100, Layout(pp=8, dp=4), train, software=software)
    data = timeline_as_data(found)
    assert data["cut"] == "left out: stages 1 to 6 of 8, numbered from 0"
    assert len(data["events"]) <= MOST_EVENTS


def test_many_layers_are_drawn_together() -> None:
    model = Model.named("llama3-8b")
    deep = replace(model, blocks=tuple(replace(each, count=400) for each in model.blocks))
    found = estimate(deep, H100, Layout(tp=2, pp=2), Prefill(batch=1, prompt_tokens=512))
    drawn = step_timeline(found)
    assert drawn.cut == "the 400 layers are drawn together, stage by stage"
    assert len(drawn.events) < 50
    assert drawn.span_s == pytest.approx(found.time_s, rel=1e-9)


ASKS = (
    ("llama3-70b", Layout(tp=4, pp=4, dp=4, zero=1), Train(global_batch=32, sequence_length=4096)),
    ("llama3-70b", Layout(tp=8), Decode(batch=64, context_tokens=4096)),
    ("llama3-8b", Layout(tp=2, pp=4), Prefill(batch=1, prompt_tokens=4096)),
    ("llama3-8b", Layout(), Decode(batch=1, context_tokens=128)),
    ("llama3-8b", Layout(), Train(global_batch=2, sequence_length=512)),
)


@pytest.mark.parametrize("of", ["step", "layer"])
@pytest.mark.parametrize(("model", "layout", "work"), ASKS)
def test_the_data_have_the_shape_that_the_page_reads(
    model: str, layout: Layout, work: Workload, of: str
) -> None:
    found = estimate(model, H100, layout, work)
    data, known = timeline_as_data(found, of), set(figures(found))
    assert data == json.loads(json.dumps(data))
    assert set(data) == {"of", "title", "span_s", "cut", "break", "streams", "events", "totals"}
    assert (data["of"], data["cut"], data["break"]) == (of, False, None)
    for stream in data["streams"]:
        assert set(stream) == {"name", "stage", "stream"}
    keys = {"name", "stream", "start_s", "end_s", "kind", "exposed", "group", "micro_batch"}
    for event in data["events"]:
        assert set(event) == keys | {"chunk", "pass", "why"}
        assert event["why"] in known
        assert (of == "layer" and event["kind"] != "host") == event["why"].startswith("op.")
        assert 0 <= event["stream"] < len(data["streams"])
        assert 0 <= event["start_s"] < event["end_s"] <= data["span_s"] * (1 + 1e-12)
        assert event["kind"] in {*KINDS, *COMMUNICATION, *WHOLE, "optimizer", "idle", "host"}
    assert {each["stream"] for each in data["events"]} == set(range(len(data["streams"])))
    totals = data["totals"]
    assert {"compute_s", "exposed_s", "hidden_s", "bubble_s"} <= set(totals)
    if layout.devices == 1:
        assert totals["exposed_s"] == totals["hidden_s"] == totals["bubble_s"] == 0
        assert [each["name"] for each in data["streams"]] == ["compute"]


WHOLE = ("forward", "backward", "weight")


@pytest.mark.parametrize("of", ["step", "layer"])
@pytest.mark.parametrize(("model", "layout", "work"), ASKS)
def test_pictures_are_real_and_name_streams_and_kinds(
    tmp_path: Path, model: str, layout: Layout, work: Workload, of: str
) -> None:
    found = estimate(model, H100, layout, work)
    write_picture(sketch(found, of), tmp_path / "a.svg")
    root = ET.fromstring((tmp_path / "a.svg").read_text())
    texts = {"".join(each.itertext()) for each in root.iter("{http://www.w3.org/2000/svg}text")}
    drawn = drawing_of(found, of)
    assert title(found) in texts
    assert {each.name for each in drawn.streams} <= texts
    comm = {f"{each.group.upper()} exposed" for each in drawn.events if each.group and each.exposed}
    hidden = {
        f"{each.group.upper()} hidden" for each in drawn.events if each.group and not each.exposed
    }
    assert comm | hidden <= texts
    assert ("bubble" in texts) == any(each.kind == "idle" for each in drawn.events)
    write_picture(sketch(found, of), tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")


def test_what_cannot_be_drawn_is_refused_with_one_line(tmp_path: Path) -> None:
    train = Train(global_batch=64, sequence_length=512)
    many = estimate("llama3-8b", H100, Layout(tp=np.array([1, 2])), train)
    for of in ("step", "layer"):
        with pytest.raises(BadTypeError, match="one layout, not an array of them") as told:
            timeline_as_data(many, of)
        assert "\n" not in str(told.value)
    one = estimate("llama3-8b", H100, Layout(tp=2), train)
    with pytest.raises(UnknownNameError, match="of 'day'"):
        timeline_as_data(one, "day")
    with pytest.raises(BadValueError, match=r"ends in \.png or \.svg"):
        write_picture(sketch(one), tmp_path / "a.pdf")
    assert list(tmp_path.iterdir()) == []


def test_a_long_step_is_drawn_in_few_shapes_with_its_break(tmp_path: Path) -> None:
    train = Train(global_batch=2048, sequence_length=2048)
    layout = Layout(tp=8, pp=64, dp=4, micro_batch=1)
    found = estimate("megatron-1t", H100, layout, train)
    drawn = drawing_of(found)
    write_picture(sketch(found, "step", drawn), tmp_path / "a.svg")
    text = (tmp_path / "a.svg").read_text()
    assert drawn.gap is not None
    assert drawn.gap.words in text
    # Thousands of events of one look are one path: a picture is drawn in a fraction of a second.
    assert text.count("<path") < 400 < len(drawn.events)
