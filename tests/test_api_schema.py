"""The API against its own description: whatever it allows, and what it does not, is answered."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as some
from page_server import Client, served
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
)

from shardcost.web import asks
from shardcost.web.app import create_app
from shardcost.web.listing import listing
from shardcost.web.worker import answer

EXAMPLES = 25
"""Of each path."""


@pytest.fixture(scope="module")
def page() -> Iterator[Client]:
    with served() as client:
        yield client


schema = schemathesis.openapi.from_dict(create_app().openapi())


@schema.parametrize()
@settings(
    max_examples=EXAMPLES,
    derandomize=True,
    deadline=None,
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=list(HealthCheck),
)
def test_the_api_keeps_to_its_description(page: Client, case: Any) -> None:
    checks = [
        not_a_server_error,
        status_code_conformance,
        content_type_conformance,
        response_schema_conformance,
        negative_data_rejection,
    ]
    case.call_and_validate(f"http://127.0.0.1:{page.port}", checks=checks, timeout=60)


NAMES = {
    shelf: [each["name"] for each in listing()[shelf]]
    for shelf in ("models", "clusters", "networks", "software")
}
COUNTS = some.sampled_from([1, 2, 4, 8, 3, 16, 64, 1000, 10**5, 10**9, 0])
DEGREES = some.sampled_from([1, 2, 4, 8, 3, 10**9])
SIZES = {"train": "sequence_length", "prefill": "prompt_tokens", "decode": "context_tokens"}
TASKS: dict[str, type[asks.Asked]] = {
    "estimate": asks.Ask,
    "advice": asks.Ask,
    "roofline": asks.Ask,
    "messages": asks.Ask,
    "commands": asks.Ask,
    "csv": asks.Ask,
    "timeline": asks.TimelineAsk,
    "scaling": asks.ScalingAsk,
    "why": asks.WhyAsk,
    "plan_check": asks.PlanAsk,
}


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
        "network": some.sampled_from(NAMES["networks"]),
        "software": some.sampled_from(NAMES["software"]),
        "gpus": COUNTS,
        "zero": some.integers(0, 4),
        "imbalance": some.sampled_from([1.0, 1.5, 1e-9, 1e12]),
        "sequence_parallel": some.booleans(),
    }
    fields = draw(some.fixed_dictionaries({}, optional=free))
    fields |= {"model": draw(some.sampled_from(NAMES["models"])), "phase": phase}
    fields |= {"on": draw(some.sampled_from(NAMES["clusters"])), "batch": draw(COUNTS)}
    fields[SIZES[phase]] = draw(COUNTS)
    if task == "why":
        fields["figure"] = draw(some.sampled_from(["time_s", "mfu", "memory_bytes", "comm_share"]))
    known = TASKS[task].model_fields
    return task, {name: value for name, value in fields.items() if name in known}


@given(question=questions())
@settings(max_examples=400, derandomize=True, deadline=None)
def test_what_means_something_is_answered_or_refused_in_one_line(
    question: tuple[str, dict[str, Any]],
) -> None:
    task, fields = question
    ask = asks.field_values(TASKS[task], fields)
    head, content = answer({"task": task, "fields": ask}, b"", lambda _done, _cells: None)
    assert head["state"] in {"done", "refused"}, head
    assert head["state"] == "done" or head["detail"].isprintable()
    assert bool(content) == (head["state"] == "done")
