"""The command that starts a layout: the flags of Megatron-LM, vLLM, SGLang or TensorRT-LLM.

Which flag says what is in `shardcost.report.launch_tools`. What a tool has no flag for is said in a
line, never left out.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, field
from typing import Any, Final

from shardcost.catalog import hugging_face, names
from shardcost.errors import UnknownNameError, UsageError
from shardcost.estimate.result import Estimate
from shardcost.option import Option
from shardcost.options import LAYOUT, WORKLOAD
from shardcost.report.command import is_known
from shardcost.report.launch_tools import CONFIG_FILE, DESCRIBED, TOOLS, Draft, Tool
from shardcost.report.text import heading, paragraphs, width
from shardcost.software import Software
from shardcost.workload import Train

_MODEL: Final = "$MODEL"
_VARIABLE: Final = "$"
_MOST_COLUMNS: Final = 76
_INDENT: Final = "    "
_LISTED: Final = 3
"""Of the other names of a model, so many."""


@dataclass(frozen=True)
class Launch:
    """How one tool is started."""

    tool: str
    title: str
    words: tuple[str, ...]
    """Of the command; those with ``$`` are variables of the shell."""
    notes: tuple[str, ...] = ()
    """What the tool has no flag for, and what is left to the reader."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Text by name, of files that the command reads."""
    source: str = ""
    """Where the flags are documented."""

    @property
    def command(self) -> str:
        """The command on one line."""
        return " ".join(map(_quoted, self.words))

    def script(self, columns: int = _MOST_COLUMNS) -> str:
        """Return the command on several lines, after what writes the files that it reads."""
        written = [f"cat > {name} <<'EOF'\n{text}EOF" for name, text in self.files.items()]
        return "\n".join([*written, " \\\n".join(_lines(self.words, columns))])


def launch_of(result: Estimate, tool: str | None = None) -> Launch:
    """Return how the layout of an estimate is started.

    >>> from shardcost import Decode, Layout, estimate
    >>> step = Decode(batch=64, context_tokens=4096)
    >>> launch_of(estimate("qwen3-8b", "h100_sxm", Layout(tp=2), step), "vllm").command
    'vllm serve Qwen/Qwen3-8B --tensor-parallel-size 2 --max-num-seqs 64 --max-model-len 4097'

    Args:
        result: Of one layout.
        tool: ``megatron``, ``vllm``, ``sglang`` or ``trtllm``; that of the estimate's software if
            None.
    """
    name = own_tool(result.software) if tool is None else tool.lower()
    if name is None:
        known = ", ".join(TOOLS)
        raise UsageError(f"no launch flags are known of {result.software.name}; name one: {known}")
    if name not in TOOLS:
        raise UnknownNameError("--launch", name, TOOLS)
    chosen = TOOLS[name]
    if chosen.trains != isinstance(result.workload, Train):
        others = [each for each, its in TOOLS.items() if its.trains != chosen.trains]
        kind = "trains" if chosen.trains else "serves"
        raise UsageError(f"--launch {name}: {chosen.title} {kind}; for this work: {others[0]}")
    draft = Draft(result, chosen.title)
    _say_fields(draft, chosen)
    chosen.rest(draft)
    model = [] if chosen.trains else [_model_name(draft)]
    draft.notes[:0] = _unsaid(draft)
    if own_tool(result.software) != name:
        draft.notes.append(f"times are of {result.software.name}, not of {chosen.title}")
    words = (*draft.before, *chosen.program.split(), *model, *draft.words)
    files = {CONFIG_FILE: _yaml(draft.config)} if draft.config else {}
    return Launch(name, chosen.title, words, tuple(draft.notes), files, chosen.source)


def own_tool(software: Software) -> str | None:
    """Return the tool that a software of the catalog is a version of."""
    return next((name for name in TOOLS if software.name.startswith(name)), None)


def launches_of(result: Estimate) -> list[Launch]:
    """Return how each tool for the work is started, that of the estimate's software first."""
    trains, own = isinstance(result.workload, Train), own_tool(result.software)
    fit = [name for name, tool in TOOLS.items() if tool.trains == trains]
    return [launch_of(result, name) for name in sorted(fit, key=lambda name: name != own)]


def as_data(launch: Launch) -> dict[str, Any]:
    """Return a launch as plain data."""
    return {
        "tool": launch.tool,
        "title": launch.title,
        "command": launch.command,
        "script": launch.script(),
        "files": dict(launch.files),
        "notes": list(launch.notes),
        "source": launch.source,
    }


def as_text(launch: Launch) -> str:
    """Return a launch for a terminal."""
    head = heading(f"Launch with {launch.title}")
    script = launch.script(min(width(), _MOST_COLUMNS))
    return "\n".join([head, script, "", paragraphs(f"- {note}" for note in launch.notes)]).rstrip()


# ---------------------------------------------------------------------------------- the words


def _say_fields(draft: Draft, tool: Tool) -> None:
    """Add the flags of single fields that are not the default; tensor parallelism always."""
    for option, value, changed in _fields(draft.result):
        name = option.name
        if name in tool.flags and (changed or name in {"tp", "micro_batch"}):
            draft.say(name, tool.flags[name], value)
        elif (name, value) in tool.words:
            draft.say(name, *tool.words[name, value].split())


def _fields(result: Estimate) -> Iterator[tuple[Option, Any, bool]]:
    """Yield the options of layout and workload with their values, and whether each was changed."""
    for option in (*LAYOUT, *WORKLOAD):
        for noun in (result.layout, result.workload):
            if type(noun) in option.nouns:
                known = option.field_of(type(noun))
                value = getattr(noun, known.name)
                yield option, value, known.default is MISSING or value != known.default


def _unsaid(draft: Draft) -> Iterator[str]:
    """Yield a line on each choice that no word of the command expresses."""
    for option, value, changed in _fields(draft.result):
        matters = changed and draft.result.workload.phase in option.applies_to
        if matters and option.name not in draft.said | DESCRIBED:
            stated = "" if value is True else f" {value}"
            yield f"{draft.title} has no flag for {option.flag}{stated} ({option.help})"


def _model_name(draft: Draft) -> str:
    """Return the Hugging Face name of a model, or a variable for where it lies."""
    model = draft.result.model
    listed = model.name in names("models") and is_known(model)
    known = hugging_face(model.name) if listed else []
    if not known:
        draft.notes.append(f"set MODEL to the folder or Hugging Face name of {model.name}")
        return _MODEL
    if known[1:]:
        more = ", …" if known[1 + _LISTED :] else ""
        draft.notes.append(f"of the same shape: {', '.join(known[1 : 1 + _LISTED])}{more}")
    return known[0]


def _quoted(word: str) -> str:
    return word if word.startswith(_VARIABLE) else shlex.quote(word)


def _lines(words: tuple[str, ...], columns: int) -> list[str]:
    """Return words as lines: a flag stays with its value, what follows the first is indented."""
    groups: list[str] = []
    for word in words:
        if not groups or word.startswith("-"):
            groups.append(_quoted(word))
        else:
            groups[-1] += f" {_quoted(word)}"
    lines = [groups[0]]
    for group in groups[1:]:
        if len(lines[-1]) + len(group) + 1 <= columns - len(" \\"):
            lines[-1] += f" {group}"
        else:
            lines.append(_INDENT + group)
    return lines


def _yaml(config: Mapping[str, Any]) -> str:
    """Return options as YAML, two levels deep at most."""
    lines = []
    for key, value in config.items():
        if isinstance(value, Mapping):
            lines += [f"{key}:", *(f"  {name}: {each}" for name, each in value.items())]
        else:
            lines.append(f"{key}: {str(value).lower()}")
    return "\n".join(lines) + "\n"
