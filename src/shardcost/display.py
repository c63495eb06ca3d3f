"""What every result offers to a notebook: its screen, its data, a table, a picture.

>>> from shardcost import collective_time
>>> result = collective_time("all_reduce", 64 * 2**20, "h100_sxm", gpus=8)
>>> result.to_dict()["algorithm"]
'nvls'
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from shardcost.report.notebook.view import View


class Displayed:
    """Base of results that can be looked at; `shardcost.report.notebook` says how."""

    def to_dict(self) -> dict[str, Any]:
        """Return all of it as plain data: what the command prints with ``--json``."""
        return self._view().data()

    def to_frame(self, table: str | None = None) -> Any:
        """Return a table of it as a DataFrame, of polars if that is installed, else of pandas.

        Args:
            table: Which one, where there are several; the first of them if left out. An unknown
                name is answered with all names.

        Raises:
            MissingExtraError: Neither polars nor pandas is installed.
        """
        return self._view().frame(table)

    def plot(self, picture: str | None = None) -> Figure:
        """Return a picture of it as a matplotlib figure, which a notebook shows.

        Args:
            picture: Which one, where there are several; the first of them if left out. An unknown
                name is answered with all names.

        Raises:
            MissingExtraError: matplotlib is not installed.
        """
        return self._view().figure(picture)

    def _repr_html_(self) -> str:
        return str(self._view().screen())

    def _view(self) -> View:
        from shardcost.report.notebook import view_of

        return view_of(self)
