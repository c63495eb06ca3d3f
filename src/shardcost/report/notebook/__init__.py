"""What a notebook shows of a result: `view_of`, one module for each kind of result.

The texts, data and pictures are those of the commands; here they are only put side by side.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from shardcost.display import Displayed
    from shardcost.report.notebook.view import View

_MODULES: Final = {
    "Estimate": "estimates",
    "CollectiveTime": "collectives",
    "DispatchTime": "collectives",
    "Found": "plans",
    "Plan": "plans",
    "Load": "loads",
    "Profile": "profiles",
    "TrainingRun": "runs",
}
"""Where the view of each class is; imported when one is looked at."""


def view_of(result: Displayed) -> View:
    """Return what a notebook shows of a result."""
    home = next(_MODULES[each.__name__] for each in type(result).mro() if each.__name__ in _MODULES)
    view: View = import_module(f"{__name__}.{home}").view(result)
    return view
