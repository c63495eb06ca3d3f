"""``shardcost inspect``: what a file means."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Final

from shardcost.cli import options
from shardcost.errors import FormatError
from shardcost.files import read_text
from shardcost.formats.hf_config import looks_like_hf_config
from shardcost.formats.safe_json import MOST_BYTES, parse_object
from shardcost.report.describe import model_as_data, model_as_text

_EXAMPLES: Final = """\
  shardcost inspect config.json
  shardcost inspect path/to/model-folder --json
"""


def parser() -> options.Parser:
    """Return the parser of this command."""
    text = "Read a file and say what it means. Read so far: the config.json of Hugging Face models."
    parser = options.Parser("inspect", text, _EXAMPLES)
    parser.add_argument("file", help="the file, or the folder of a model that holds config.json")
    return parser


def run(given: Namespace) -> int:
    """Print what the file was understood to be."""
    path = Path(given.file)
    file = path / "config.json" if path.is_dir() else path
    if not looks_like_hf_config(parse_object(read_text(file, MOST_BYTES), str(file))):
        known = "a Hugging Face config.json"
        raise FormatError(str(file), f"is JSON, but not of a kind that is read so far ({known})")
    model = options.model_file(file)
    if given.json:
        data = {"file": str(given.file), "kind": "hf-config", "model": model_as_data(model)}
        options.print_json(data)
    else:
        print(f"{given.file}: a Hugging Face model config\n")
        print(model_as_text(model))
    return 0
