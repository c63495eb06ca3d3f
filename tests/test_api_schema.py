"""The API against its own description: whatever it allows, and what it does not, is answered."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as some
from page_server import Client, served

from shardcost.web import asks
from shardcost.web.listing import listing
from shardcost.web.worker import answer

EXAMPLES = 8
"""Of each path."""


@pytest.fixture(scope="module")
def page() -> Iterator[Client]:
    with served() as client:
        yield client


@pytest.mark.parametrize("mode", ["POSITIVE", "NEGATIVE"])
def test_the_api_keeps_to_its_description(page: Client, mode: str) -> None:
    """Bodies that the schema allows, and bodies that it does not, for every path."""
    import schemathesis  # here, as it takes seconds to import
    from schemathesis.checks import not_a_server_error
    from schemathesis.core.result import Ok
    from schemathesis.generation import GenerationMode
    from schemathesis.specs.openapi import checks

    address = f"http://127.0.0.1:{page.port}"
    every = [
        not_a_server_error,
        checks.status_code_conformance,
        checks.content_type_conformance,
        checks.response_schema_conformance,
        checks.negative_data_rejection,
    ]
    tried = 0
    for described in schemathesis.openapi.from_url(f"{address}/openapi.json").get_all_operations():
        assert isinstance(described, Ok)
        operation = described.ok()
        if operation.body or mode == "POSITIVE":

            @given(case=operation.as_strategy(generation_mode=GenerationMode[mode]))
            @settings(
                max_examples=EXAMPLES,
                phases=(Phase.generate,),
                suppress_health_check=list(HealthCheck),
            )
            def keeps(case: Any) -> None:
                case.call_and_validate(address, checks=every, timeout=60)

            keeps()
            tried += 1
    assert tried >= 15


@cache
def names(table: str) -> list[str]:
    """Return the names of a table of the catalog."""
    return [entry["name"] for entry in listing()[table]]


COUNTS = some.sampled_from([1, 2, 4, 8, 3, 16, 64, 1000, 10**5, 10**9, 0])
DEGREES = some.sampled_from([1, 2, 4, 8, 3, 10**9])
SIZES = {"train": "sequence_length", "prefill": "prompt_tokens", "decode": "context_tokens"}
TASKS: dict[str, type[asks.Asked]] = {
    "estimate": asks.RunAsk,
    "advice": asks.Ask,
    "nearest": asks.NearestAsk,
    "roofline": asks.Ask,
    "messages": asks.Ask,
    "commands": asks.Ask,
    "csv": asks.Ask,
    "timeline": asks.TimelineAsk,
    "scaling": asks.ScalingAsk,
    "why": asks.WhyAsk,
    "plan_check": asks.PlanAsk,
    "plan_load_check": asks.PlanLoadAsk,
    "launch": asks.LaunchAsk,
    "load": asks.LoadAsk,
    "ratio": asks.DeploymentAsk,
}

LOADS: tuple[dict[str, Any], ...] = (
    {"rate": 8},
    {"users": 4, "max_num_seqs": 1},
    {"arrival": "all-at-once", "policy": "prefill-first"},
    {"sweep": "rate=1,100", "max_ttft": "1s"},
    {"rate": 8, "prefill_workers": 1, "decode_workers": 2, "gpus": None},
)


@some.composite
def questions(draw: some.DrawFn) -> tuple[str, dict[str, Any]]:
    """Return a task and fields of it that mean something, however odd."""
    phase = draw(some.sampled_from(sorted(SIZES)))
    task = draw(some.sampled_from(sorted(TASKS)))
    words = {
        name: some.sampled_from(listing()["choices"][name])
        for name in ("recompute", "schedule", "scheme", "context_scheme", "order", "dtype")
    }
    degrees = dict.fromkeys(
        ("tp", "cp", "pp", "dp", "ep", "virtual_stages", "micro_batch"), DEGREES
    )
    free = {
        **words,
        **degrees,
        "network": some.sampled_from(names("networks")),
        "software": some.sampled_from(names("software")),
        "gpus": COUNTS,
        "zero": some.integers(0, 4),
        "imbalance": some.sampled_from([1.0, 1.5, 1e-9, 1e12]),
        "sequence_parallel": some.booleans(),
    }
    fields = draw(some.fixed_dictionaries({}, optional=free))
    fields |= {"model": draw(some.sampled_from(names("models"))), "phase": phase}
    fields |= {"on": draw(some.sampled_from(names("clusters"))), "batch": draw(COUNTS)}
    fields[SIZES[phase]] = draw(COUNTS)
    if task == "why":
        fields["figure"] = draw(some.sampled_from(["time_s", "mfu", "memory_bytes", "comm_share"]))
    if task in {"load", "ratio", "plan_load_check"}:
        fields |= draw(some.sampled_from(LOADS)) | {"isl": "64-128", "osl": 16, "requests": 20}
    known = TASKS[task].model_fields
    return task, {name: value for name, value in fields.items() if name in known}


@given(question=questions())
@settings(max_examples=100)
def test_what_means_something_is_answered_or_refused_in_one_line(
    question: tuple[str, dict[str, Any]],
) -> None:
    task, fields = question
    ask = asks.field_values(TASKS[task], fields)
    head, content = answer({"task": task, "fields": ask}, b"", lambda _done, _cells: None)
    assert head["state"] in {"done", "refused"}, head
    assert head["state"] == "done" or head["detail"].isprintable()
    assert bool(content) == (head["state"] == "done")
