"""``shardcost models``: what models the catalog holds."""

from __future__ import annotations

from argparse import Namespace
from typing import Final

from shardcost import catalog
from shardcost.cli import options
from shardcost.report.describe import model_as_data, model_as_text
from shardcost.report.text import table
from shardcost.units import format_count

_EXAMPLES: Final = """\
  shardcost models
  shardcost models deepseek-v3
  shardcost models --json
"""


def parser() -> options.Parser:
    """Return the parser of this command."""
    parser = options.Parser(
        "models", "The models in the catalog, or one of them in full.", _EXAMPLES
    )
    parser.add_argument("name", nargs="?", help="a model: show its shape, counts and source")
    return parser


def run(given: Namespace) -> int:
    """Print one model, or the list."""
    if given.name is not None:
        model = options.model(given.name)
        return options.print_report(
            given, lambda: model_as_data(model), lambda: model_as_text(model)
        )
    models = [catalog.model_named(name) for name in catalog.all_names("models")]
    rows = [
        (
            model.name,
            f"{model.num_layers}",
            f"{model.hidden_size:,}",
            format_count(model.parameters),
            format_count(model.active_parameters),
            " + ".join(
                dict.fromkeys(
                    block.attention.kind.removesuffix(" attention")
                    for block in model.blocks
                    if block.attention
                )
            ),
        )
        for model in models
    ]
    head = ("model", "layers", "hidden", "parameters", "active", "attention")
    return options.print_report(
        given,
        lambda: {"models": [model_as_data(model) for model in models]},
        lambda: table(head, rows, right="1234"),
    )
