"""Loads over HTTP: the command's figures, its refusals, and limits of their own."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from typing import Any

import pytest
from page_server import Client, served
from running import run_error, run_json

from shardcost.options import LOAD
from shardcost.web import asks, limits
from shardcost.web.worker import answer

BASE: dict[str, Any] = {"model": "llama3-8b", "on": "h100_sxm", **asks.LOAD_EXAMPLE}
SMALL = BASE | {"requests": 100}
TRACE = "arrival_s,prompt_tokens,output_tokens\n" + "".join(
    f"{0.25 * index},{200 + index},{20 + index % 7}\n" for index in range(80)
)

LONG = "arrival_s,prompt_tokens,output_tokens\n" + "".join(
    f"{index},20,4\n" for index in range(limits.MOST_REQUESTS + 1)
)


@pytest.fixture(scope="module")
def page() -> Iterator[Client]:
    with served() as client:
        yield client


def told(fields: dict[str, Any], task: str = "load") -> tuple[dict[str, Any], Any]:
    """Return what a worker replies, and its data."""
    kind = asks.LoadAsk if task == "load" else asks.DeploymentAsk
    head, content = answer(
        {"task": task, "fields": asks.field_values(kind, fields)}, b"", lambda _done, _cells: None
    )
    return head, json.loads(content) if content else None


LOADS: dict[str, dict[str, Any]] = {
    "poisson": {"rate": 4},
    "closed": {"users": 8, "arrival": "closed", "chunked_prefill": False},
    "at once": {"arrival": "all-at-once", "memory_share": "80%", "price": 2.5},
    "workers": {"rate": 4, "gpus": 4, "tp": 2, "isl": "819-1024", "max_ttft": None},
    "pools": {"rate": 4, "prefill_workers": 2, "decode_workers": 1, "prefill_tp": 2},
    "sweep": {"sweep": "rate=1,4"},
    "sweep of users": {"sweep": "concurrency=1,4", "requests": None},
}


@pytest.mark.parametrize("name", LOADS)
def test_a_load_is_the_commands_and_says_its_command(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    head, data = told(SMALL | LOADS[name])
    assert head["state"] == "done", head
    words = shlex.split(data["command"])
    assert words[:3] == ["shardcost", "load", "llama3-8b"]
    printed = run_json(capsys, *words[1:])
    assert {key: data[key] for key in printed} == printed


def test_the_server_answers_a_load_a_sweep_and_a_ratio(page: Client) -> None:
    found = page.answer("load", SMALL | {"rate": 4})
    assert found["ttft_ms"]["p50"] < found["ttft_ms"]["p99"]
    timeline = found["timeline"]
    spans = {len(timeline[key]) for key in ("start_s", "sequences", "waiting", "kv_share")}
    assert spans == {160}
    assert timeline["start_s"][0] == 0.0
    assert timeline["start_s"][-1] < timeline["end_s"]
    assert 0 < max(timeline["kv_share"]) <= found["kv_peak_share"] <= 1
    assert [found["lines"][0][0], found["lines"][-1][0]] == ["served", "limit"]
    swept = page.answer("load", BASE | {"sweep": "rate", "requests": 200})
    values = [point["value"] for point in swept["points"]]
    assert values == sorted(values)
    assert swept["holds"] in values
    assert swept["breaks_at"] in values
    assert swept["words"].startswith(f"Holds {swept['holds']:g} requests/s at TTFT p90 1 s")
    assert swept["requests_each"] == [200, 200]
    divided = page.answer("load/ratio", SMALL | {"prefill_workers": 1, "decode_workers": 1})
    assert [each["workers"] for each in divided["splits"]] == [2, 1]


def test_a_ratio_divides_the_gpus_of_both_pools() -> None:
    head, found = told(SMALL | {"prefill_workers": 1, "decode_workers": 2}, "ratio")
    assert head["state"] == "done", head
    assert found["gpus"] == 3
    splits = [(each["prefill_workers"], each["workers"]) for each in found["splits"]]
    assert splits == [(0, 3), (1, 2), (2, 1)]
    assert [each["own"] for each in found["splits"]] == [False, True, False]
    best = max(found["splits"], key=lambda each: each["requests_per_s"])
    assert [each["best"] for each in found["splits"]].count(True) == 1
    assert best["best"]
    assert best["requests_per_s_per_gpu"] == pytest.approx(best["requests_per_s"] / 3)
    assert found["words"].startswith("Of 3 GPUs, ")


def test_without_a_number_of_requests_a_sweep_has_those_of_the_page() -> None:
    _, found = told(BASE | {"sweep": "rate=1", "workers": 2})
    assert found["requests_each"] == [2000, 2000]
    _, found = told(BASE | {"sweep": "rate=1", "workers": 9})
    assert found["requests_each"] == [limits.MOST_SWEPT_REQUESTS] * 2
    _, found = told(BASE | {"sweep": "concurrency", "osl": 2, "isl": 8})
    assert found["points"][-1]["value"] == limits.SWEPT_USERS


def test_a_pasted_trace_is_served_as_it_was_recorded() -> None:
    recorded = {name: value for name, value in BASE.items() if name not in {"isl", "osl"}}
    _, found = told(recorded | {"trace": TRACE})
    assert found["requests"]["count"] == found["served"] == 80
    assert "--trace requests.csv" in found["command"]
    _, found = told(recorded | {"trace": TRACE, "sweep": "rate=1,100", "requests": 50})
    assert found["requests_each"] == [50, 50]
    head, found = told(recorded | {"trace": LONG, "sweep": "rate=1"})
    assert found["requests_each"] == [1000, 1000], head
    head, _ = told(recorded | {"trace": LONG})
    assert "--requests must be at most 20000 on the page" in head["detail"]
    _, found = told(recorded | {"trace": TRACE, "prefill_workers": 1, "decode_workers": 1}, "ratio")
    assert len(found["splits"]) == 2
    head, _ = told(recorded | {"trace": "arrival_s,prompt_tokens,output_tokens\n0,x,1\n"})
    assert head["state"] == "refused"
    assert "line 2" in head["detail"]
    for path in ("/etc/passwd", "requests.csv", ""):
        head, _ = told(recorded | {"trace": path})
        assert head["state"] == "refused", path


REFUSED: dict[str, dict[str, Any]] = {
    "no load": {},
    "a rate of zero": {"rate": 0},
    "a rate below zero": {"rate": -1},
    "a rate of users": {"users": 4, "arrival": "poisson"},
    "negative lengths": {"rate": 1, "isl": "-5"},
    "no lengths": {"rate": 1, "isl": "many"},
    "no requests": {"rate": 1, "requests": 0},
    "a limit without a unit": {"rate": 1, "max_ttft": "soon"},
    "an impossible percentile": {"rate": 1, "percentile": 100},
    "more memory than there is": {"rate": 1, "memory_share": "200%"},
    "an unknown policy": {"rate": 1, "policy": "odd"},
    "GPUs of two pools": {"rate": 1, "prefill_workers": 1, "gpus": 16},
    "prefill by itself": {"rate": 1, "prefill_tp": 2},
    "a rate and a sweep": {"rate": 1, "sweep": "rate"},
    "an unknown sweep": {"sweep": "gpus"},
    "a sweep of words": {"sweep": "rate=1,x"},
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals_are_the_commands(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    fields = SMALL | REFUSED[name]
    head, _ = told(fields)
    assert head["state"] == "refused", head
    words = ["load", fields["model"]]
    for field, value in fields.items():
        if field != "model":
            words += [f"--{field.replace('_', '-')}", str(value)]
    printed = run_error(capsys, *words)
    # The command line has texts only: it may say more of a value's type.
    assert printed.split(", got ")[0].strip() == f"shardcost: {head['detail']}".split(", got ")[0]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"rate": 1, "requests": limits.MOST_REQUESTS + 1}, "--requests must be at most 20000 on"),
        ({"users": 4000, "requests": None}, "--requests must be at most 20000 on"),
        ({"sweep": "rate", "requests": 10**6}, "--requests must be at most 20000 on"),
        ({"sweep": "concurrency=1,5000", "requests": None}, "--requests must be at most 20000"),
        ({"sweep": "rate=" + ",".join(map(str, range(1, 26)))}, "--sweep must be at most 24 loads"),
        ({"rate": 1, "isl": 10**8}, "every request is longer than the KV cache of a worker holds"),
        ({"sweep": "rate", "isl": 10**8}, "every request is longer than the KV cache of a worker"),
        ({"rate": 1, "model": "llama3-70b"}, "leaves memory for a KV cache beside the weights"),
        ({"rate": 1, "tp": 3}, "tp does not divide"),
    ],
)
def test_what_is_too_much_or_impossible_is_refused_in_one_line(
    fields: dict[str, Any], said: str
) -> None:
    head, _ = told(SMALL | fields)
    assert head["state"] == "refused"
    assert said in head["detail"]
    assert head["detail"].isprintable()


def test_a_ratio_needs_two_pools_of_the_same_gpus() -> None:
    head, _ = told(SMALL, "ratio")
    assert "one pool has no GPUs to divide" in head["detail"]
    other = {"prefill_workers": 1, "decode_workers": 1, "prefill_on": "h200_sxm"}
    head, _ = told(SMALL | other, "ratio")
    assert "have no GPUs that could be divided otherwise" in head["detail"]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("rate", "4"), ("rate", True), ("rate", 1e300), ("isl", [1024]), ("isl", 10.5),
        ("requests", 1.5), ("requests", 10**12), ("memory_share", ["80%"]), ("price", False),
        ("chunked_prefill", "on"), ("sweep", 5), ("sweep", "x" * 300), ("trace", {"a": 1}),
        ("phase", "decode"), ("prefill_on", 7),
    ],
)  # fmt: skip
def test_fields_of_a_wrong_kind_are_refused_in_one_line(
    field: str, value: Any, page: Client
) -> None:
    said = page.refusal("load", SMALL | {field: value})
    assert field.replace("_", "-") in said.replace("_", "-")


def test_the_api_and_the_page_take_every_option_of_a_load() -> None:
    assert set(LOAD) <= set(asks.LoadAsk.model_fields)
    for name, option in LOAD.items():
        if name != "trace":
            description = asks.LoadAsk.model_fields[name].description
            assert description is not None
            assert description.startswith(option.help)
    table = json.loads(asks.page_module().decode().partition(" = ")[2].rstrip(";\n"))["load"]
    placed = [each["name"] for each in table["options"]]
    assert sorted([*placed, *table["taken"]]) == sorted(LOAD)
    assert set(table["first"]) <= set(placed)
