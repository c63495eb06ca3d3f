"""Why a question has no answer: it is not in good order, or what it asks cannot be done."""

from __future__ import annotations

from shardcost.errors import BadValueError, ShardcostError


class UsageError(ShardcostError, ValueError):
    """The question itself is not right: an unknown option, a missing value."""


class WorldSizeError(BadValueError):
    """The degrees of a layout do not multiply to the number of GPUs."""


class ImpossibleError(ShardcostError):
    """A question in good order whose answer is that it cannot be done."""

    def __init__(self, reason: ShardcostError) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return str(self.reason)
