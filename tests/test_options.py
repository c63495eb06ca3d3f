"""One table of options: everything that names an option derives from it."""

from __future__ import annotations

import json
import shlex
from dataclasses import MISSING, fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from running import run_error, run_text

from shardcost import Cluster, Decode, Layout, Model, Prefill, Space, Train, options, request
from shardcost.checks import Noun, noun, one_of, whole
from shardcost.cli import estimate as estimate_command
from shardcost.cli.options import Parser, add_options
from shardcost.estimate.step import software_of
from shardcost.option import PHASES, Option
from shardcost.options import AXES, ESTIMATE, LAYOUT, SEARCH, WORKLOAD
from shardcost.report.command import command_of
from shardcost.search.objectives import OBJECTIVES, Constraints
from shardcost.web import asks

STATIC = Path(asks.__file__).parent / "static"
OTHER = {"word": "", "flag": True, "whole": 2, "number": 1.5}


@pytest.mark.parametrize("kind", [Layout, Train, Prefill, Decode])
def test_every_field_of_a_noun_is_in_the_table_once(kind: Any) -> None:
    rows = LAYOUT if kind is Layout else WORKLOAD
    set_by = [option.field_of(kind).name for option in rows if kind in option.nouns]
    assert sorted(set_by) == sorted(each.name for each in fields(kind))


def test_the_table_has_every_limit_and_axis() -> None:
    assert {option.limit for option in SEARCH if option.limit} == {
        each.name for each in fields(Constraints)
    }
    assert list(AXES) == [each.name for each in fields(Space)]


def test_help_names_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    text = " ".join(run_text(capsys, "estimate", "--help").split())
    for option in ESTIMATE.values():
        assert option.name == "model" or f"{option.flag} " in text or f"{option.flag}]" in text
        assert " ".join(option.help.split()[:3]) in text or option.name == "model"
    assert all(name in text for name in request.names_of(options.SOFTWARE))
    text = run_text(capsys, "plan", "--help")
    assert all(option.flag in text for option in (*WORKLOAD, *SEARCH))
    assert all(name in text for name in (*AXES, *OBJECTIVES))


def test_the_api_takes_every_option_with_its_description() -> None:
    for option in ESTIMATE.values():
        description = asks.Ask.model_fields[option.name].description
        assert description is not None
        assert description.startswith(option.help)
    assert {option.name for option in (*WORKLOAD, *SEARCH)} <= set(asks.PlanAsk.model_fields)


def table_of_the_page() -> Any:
    return json.loads(asks.page_module().decode().partition(" = ")[2].rstrip(";\n"))


def test_the_page_has_every_option() -> None:
    table = table_of_the_page()
    assert [each["name"] for each in table["options"]] == list(ESTIMATE)
    assert all(each["label"] and each["hint"] for each in table["options"])
    placed = {each["name"] for each in table["options"] if each["place"]}
    assert placed == set(ESTIMATE) - {"model", "on", "network", "software", "set"}
    assert [each["name"] for each in table["axes"]] == [
        name for name in AXES if name not in options.OWN_AXES
    ]
    assert set(table["objectives"]) == set(OBJECTIVES)


def test_the_page_keeps_no_list_of_its_own() -> None:
    script = "".join(path.read_text() for path in STATIC.rglob("*.js"))
    for name in ("context_scheme", "shard_degree", "cached_tokens", "gradient_dtype", "max_tpot"):
        assert f'"{name}"' not in script
        assert f" {name}:" not in script


def other_value(option: Option, kind: Any) -> Any:
    """Return a value of an option that is not its default."""
    if option.choices:
        return option.choices[-1]
    if option.kind == "number" and option.least == 0:
        return 0.5
    return OTHER[option.kind] if option.field_of(kind).default is not MISSING else 8


def estimate_like(layout: Layout, workload: Any) -> Any:
    return SimpleNamespace(
        model=Model.named("llama3-8b"),
        cluster=Cluster.named("h100_sxm"),
        layout=layout,
        workload=workload,
        software=software_of(None, workload),
    )


@pytest.mark.parametrize("name", [each.name for each in (*LAYOUT, *WORKLOAD)])
def test_every_option_is_in_the_command_of_an_estimate_and_read_from_it(name: str) -> None:
    option = ESTIMATE[name]
    kind = PHASES[option.applies_to[0]]
    needed = {each.field_of(kind).name: 8 for each in options.needed(kind.phase)}
    layout = Layout(dp=4, pp=2, tp=2)
    if Layout in option.nouns:
        values = {"dp": 4, "pp": 2, "tp": 2, name: other_value(option, Layout)}
        if name == "recompute_layers":
            values["recompute"] = "full"
        layout, workload = Layout(**values), kind(**needed)
    else:
        workload = kind(**needed | {option.field_of(kind).name: other_value(option, kind)})
    words = shlex.split(command_of(estimate_like(layout, workload)))[2:]
    assert option.flag in words
    given = vars(estimate_command.parser().parse_args(words))
    assert request.layout_of(given) == layout
    assert request.workload_of(given) == workload


@noun
class Paint(Noun):
    """A noun of two fields."""

    colour: str = one_of("red", "blue", default="red")
    coats: int = whole(default=1)


def test_a_new_row_is_all_that_an_option_needs() -> None:
    """A field, a row: help, argument, field of the API, control of the page, checks follow."""
    colour = Option("colour", "word", "Colour", "what it is painted in", (Paint,), place="more")
    coats = Option("coats", "whole", "Coats", "how often", (Paint,), phases=("train",))
    parser = Parser("paint", "Paints.", "")
    add_options(parser, [colour, coats])
    given = vars(parser.parse_args(["--colour", "blue", "--coats", "2"]))
    assert [each.read(given[each.name]) for each in (colour, coats)] == ["blue", 2]
    assert "what it is painted in: red or blue (red)" in parser.format_help()
    assert "how often (--train, 1)" in parser.format_help()
    body = asks._with([colour, coats])(asks.Asked)
    assert body.model_validate({"colour": "blue", "coats": 2}).model_dump() == {
        "colour": "blue",
        "coats": 2,
    }
    row = asks._on_page(colour)
    assert (row["choices"], row["default"], row["place"]) == (("red", "blue"), "red", "more")
    with pytest.raises(ValueError, match=r"^unknown --colour 'green'; known: blue, red$"):
        colour.read("green")
    with pytest.raises(ValueError, match=r"^--coats must be a whole number of at least 1, got 0$"):
        coats.read(0)


def test_numbers_stay_numbers_and_texts_are_read_alike() -> None:
    given = {"phase": "decode", "batch": 8, "context_tokens": 128, "tp": 2, "imbalance": 1.5}
    texts = {name: str(value) for name, value in given.items()}
    assert request.layout_of(given) == request.layout_of(texts) == Layout(tp=2, imbalance=1.5)
    assert request.workload_of(given) == request.workload_of(texts)
    assert options.GPUS.read_several([8, 16]) == options.GPUS.read_several("8..16") == [8, 16]


def test_an_error_names_the_option_not_the_field(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["estimate", "llama3-8b", "--on", "h100_sxm", "--decode", "--context-tokens", "8"]
    said = run_error(capsys, *words, "--batch", "0")
    assert said == "shardcost: --batch must be a whole number of at least 1, got 0\n"
    said = run_error(capsys, *words, "--batch", "1", "--imbalance", "0.5")
    assert said.startswith("shardcost: --imbalance must be ")


def test_an_unknown_software_is_told_what_there_is(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["estimate", "llama3-8b", "--on", "h100_sxm", "--decode", "--batch", "1"]
    said = run_error(capsys, *words, "--context-tokens", "8", "--software", "abacus")
    known = said.partition("known: ")[2].partition(", …")[0].split(", ")
    assert len(known) > 20
    assert set(known) < set(request.names_of(options.SOFTWARE))
    assert "`shardcost software` lists them" in said
