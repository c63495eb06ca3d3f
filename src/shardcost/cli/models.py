"""``shardcost models``: what models the catalog holds."""

from __future__ import annotations

from argparse import Namespace
from typing import Final

from shardcost import catalog
from shardcost.cli import options
from shardcost.model import Model
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
        if given.json:
            options.print_json(model_as_data(model))
        else:
            print(model_as_text(model))
        return 0
    models = [catalog.model_named(name) for name in catalog.all_names("models")]
    if given.json:
        options.print_json({"models": [model_as_data(model) for model in models]})
        return 0
    rows = [
        (
            model.name,
            f"{model.num_layers}",
            f"{model.hidden_size:,}",
            format_count(model.parameters),
            format_count(model.active_parameters),
            _attentions(model),
        )
        for model in models
    ]
    head = ("model", "layers", "hidden", "parameters", "active", "attention")
    print(table(head, rows, right="1234"))
    return 0


def _attentions(model: Model) -> str:
    kinds = dict.fromkeys(block.attention.kind for block in model.blocks if block.attention)
    return " + ".join(kind.removesuffix(" attention") for kind in kinds)
