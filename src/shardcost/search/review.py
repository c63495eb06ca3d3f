"""What a report shows beside the estimate of a layout: advice, scaling, a collective's curve."""

from __future__ import annotations

from typing import NamedTuple

from shardcost.collectives.library_time import CollectiveTime, collective_time
from shardcost.collectives.sweep import LEAST_BYTES, MOST_BYTES, curve_sizes
from shardcost.estimate.messages import Message, messages
from shardcost.estimate.result import Estimate, check_one_layout
from shardcost.estimate.scaling import Scaling, tensor_scaling
from shardcost.machine.libraries import MULTIMEM, default_library
from shardcost.search.advice import Advice, advice


class Heaviest(NamedTuple):
    """The collective that takes most time of a step, and its time over all sizes."""

    message: Message
    curve: CollectiveTime
    """By the library of the message, or by the vendor's where an engine's own kernel runs."""

    @property
    def of_other_library(self) -> bool:
        """Whether the curve is not of the library that runs the message."""
        return self.message.library == MULTIMEM


class Review(NamedTuple):
    """An estimate, and what it is compared with."""

    estimate: Estimate
    advice: Advice
    scaling: Scaling
    """Over the tensor-parallel degree, on the same devices."""
    heaviest: Heaviest | None
    """None where nothing is sent."""


def review(estimate: Estimate) -> Review:
    """Return an estimate of one layout with advice, scaling and its heaviest collective.

    Raises:
        BadTypeError: The estimate is of an array of layouts.
    """
    check_one_layout(estimate, "report")
    place = (estimate.model, estimate.cluster, estimate.layout)
    advised = advice(*place, estimate.workload, estimate.software)
    return Review(estimate, advised, tensor_scaling(estimate), _heaviest(estimate))


def _heaviest(estimate: Estimate) -> Heaviest | None:
    sent = messages(estimate)
    if not sent:
        return None
    message, cluster = sent[0], estimate.cluster
    curve = collective_time(
        message.collective,
        curve_sizes(LEAST_BYTES, MOST_BYTES),
        cluster,
        message.ranks,
        message.nodes,
        library=default_library(cluster) if message.library == MULTIMEM else message.library,
    )
    return Heaviest(message, curve)
