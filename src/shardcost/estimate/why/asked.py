"""Every figure of an estimate can be asked why: `why`.

The answer is a formula, the same with its values put in, the source of each constant, the error
seen on measured rows, and the figures that it is made of, which can be asked in turn down to single
operations. `figures` names all that can be asked. Figures have the names of the report's document.
"""

from __future__ import annotations

from shardcost.checks import is_array
from shardcost.errors import BadTypeError, UnknownNameError
from shardcost.estimate.calls import Asked
from shardcost.estimate.result import Estimate
from shardcost.estimate.why.comm import comm, comm_figures, link
from shardcost.estimate.why.memory import memory, memory_figures
from shardcost.estimate.why.operation import operation
from shardcost.estimate.why.rates import WHOLE, whole_figures
from shardcost.estimate.why.reason import Why
from shardcost.estimate.why.time import part


def why(found: Estimate, figure: str) -> Why:
    """Return where one figure of an estimate comes from.

    >>> from shardcost import Decode, Layout
    >>> from shardcost.estimate import estimate
    >>> work = Decode(batch=64, context_tokens=4096)
    >>> found = estimate("llama3-70b", "h100_sxm", Layout(tp=8), work)
    >>> answer = why(found, "tokens_per_s")
    >>> answer.formula, answer.value == found.tokens_per_s
    ('tokens / time', True)

    Args:
        found: An estimate of one layout.
        figure: One of `figures`.

    Raises:
        UnknownNameError: no such figure.
        BadTypeError: the estimate is of an array of layouts.
    """
    if is_array(found.time_s):
        raise BadTypeError("layout", found.layout, "one layout, not an array of them, to explain")
    if figure in WHOLE and figure in set(whole_figures(found)):
        return WHOLE[figure](found)
    if figure in set(memory_figures(found)):
        return memory(found, figure)
    asked = Asked.about(found)
    if figure not in _known(asked):
        raise UnknownNameError("figure", figure, _known(asked))
    room = figure.partition(".")[0]
    if room == "link":
        return link(found, figure)
    if room == "op":
        return operation(found, asked.prices, asked.calls[figure.removeprefix("op.")])
    return part(asked, figure) if room == "parts" else comm(asked, figure)


def figures(found: Estimate) -> list[str]:
    """Return the names of all figures that can be asked why.

    >>> from shardcost import Layout, Prefill
    >>> from shardcost.estimate import estimate
    >>> found = estimate("llama3-8b", "h100_sxm", Layout(), Prefill(batch=1, prompt_tokens=512))
    >>> [name for name in figures(found) if name.startswith("parts.")][:2]
    ['parts.gemm', 'parts.attention']
    """
    return list(_known(Asked.about(found)))


def _known(asked: Asked) -> dict[str, None]:
    found = asked.found
    names = [
        *whole_figures(found),
        *(f"parts.{name}" for name in found.parts_s),
        *comm_figures(found),
        *memory_figures(found),
        *(f"op.{name}" for name in asked.calls),
    ]
    return dict.fromkeys(names)
