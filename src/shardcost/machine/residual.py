"""What is left between a formula and measurements of one machine, as a smooth function: `Residual`.

A formula with fitted constants is right about what nobody measured; a table is right about what
somebody did. A profile of many points keeps both: constants, and the residual of the formula as the
mean of a Gaussian process (Rasmussen and Williams, Gaussian Processes for Machine Learning, 2006,
equation 2.25) over coordinates in logarithms::

    log factor(x) = sum over points j of weight_j x k(x, x_j)
    k(x, y)       = exp(-sum over coordinates i of |x_i - y_i| / scale_i)

The covariance is Matern's of smoothness 1/2: between two points the factor is almost linear in the
logarithms, also where a library jumps from one algorithm to another, and away from all points it
falls back to 1, the formula alone. In tables of collectives the covariance of two points is a share
of that where different paths ran (a protocol that is slower than its formula says little about
another), and where they are of different collectives of one library, which run the same paths: a
product of covariances (chapter 4.2 there). Weights are solved for at calibration
(`shardcost.calibrate.residual`), which decides by points left out how far a table reaches, so that
pricing is a sum.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from shardcost.arrays import exp, largest, log2, smallest
from shardcost.checks import Noun, flag, instance, names, noun, one_of, positive, share, text
from shardcost.errors import BadTypeError, BadValueError

MOST_POINTS: Final = 400
"""Of one table: pricing takes a term for each."""
MOST_COORDINATES: Final = 6
MOST_TABLES: Final = 64
COORDINATES: Final = ("log2_bytes", "log2_ranks", "log2_nodes")
"""Of tables of collectives, as files name them."""
_OF_TABLE: Final = (
    *("collective", "library", "mode", "held", "within_pct"),
    *("paths", "other_path", "other_collective", "strength"),
)
_FARTHEST: Final = 1e3
"""Of a coordinate from 0: a logarithm beyond that is of no size or count."""
_FARTHEST_LOG: Final = 1.0986122886681098
"""Of a factor from 1, in logarithms (a factor of 3): where a formula is farther off than that, it
is of another machine, and no table mends it."""
_MOST_WEIGHT: Final = 1e3


@noun
class Residual(Noun):
    """Measured over predicted as a smooth function of logarithms: sizes, ranks, shapes."""

    points: tuple[tuple[float, ...], ...]
    """Coordinates of what was measured, each a logarithm (of whatever base the owner keeps to)."""
    weights: tuple[float, ...]
    """What each point counts; solved for at calibration."""
    scales: tuple[float, ...]
    """Of each coordinate: over which distance correlation falls to 1/e."""

    def check(self) -> None:
        """Raise unless all are finite numbers and as many as they should be."""
        scales = _figures("residual scales", self.scales, _FARTHEST, 1e-3)
        if not 1 <= len(scales) <= MOST_COORDINATES:
            raise BadValueError("residual scales", len(scales), f"1 to {MOST_COORDINATES} of them")
        weights = _figures("residual weights", self.weights, _MOST_WEIGHT, -_MOST_WEIGHT)
        if not 1 <= len(weights) <= MOST_POINTS:
            raise BadValueError("residual weights", len(weights), f"1 to {MOST_POINTS} of them")
        given: Any = self.points
        if not isinstance(given, list | tuple):
            raise BadTypeError("residual points", given, "a list of points")
        if len(given) != len(weights):
            rule = f"as many as weights, {len(weights)}"
            raise BadValueError("residual points", len(given), rule)
        points = tuple(_figures("residual points", point, _FARTHEST, -_FARTHEST) for point in given)
        wrong = next((point for point in points if len(point) != len(scales)), None)
        if wrong is not None:
            rule = f"of as many coordinates as there are scales, {len(scales)}"
            raise BadValueError("residual point", wrong, rule)
        for name, value in (("points", points), ("weights", weights), ("scales", scales)):
            object.__setattr__(self, name, value)

    def factor(self, *coordinates: Any) -> Any:
        """Return measured over predicted, 1 away from all points.

        >>> dent = Residual(points=((20.0,),), weights=(-0.1,), scales=(2.0,))
        >>> round(dent.factor(20.0), 3), round(dent.factor(40.0), 3)
        (0.905, 1.0)

        Args:
            coordinates: Of what is priced, in the order of `scales`. Numbers or arrays.
        """
        return _factor(self.log_factor(*coordinates))

    def log_factor(
        self,
        *coordinates: Any,
        labels: Sequence[str] = (),
        alike: Mapping[str, Any] | None = None,
    ) -> Any:
        """Return the logarithm of measured over predicted, however far from 0.

        Points of one label that differ in other coordinates than the first share its exponential:
        what is priced is mostly many sizes of one group.

        Args:
            coordinates: Of what is priced.
            labels: A label of each point, in what is no coordinate …
            alike: … and how alike what is priced is to each label, from 0 to 1.
        """
        first, scale = coordinates[0], self.scales[0]
        beyond: dict[tuple[float, ...], Any] = {}
        sums: dict[tuple[str, float], Any] = {}
        for place, (point, weight) in enumerate(zip(self.points, self.weights, strict=True)):
            rest = point[1:]
            if rest not in beyond:
                beyond[rest] = _correlation(rest, coordinates[1:], self.scales[1:])
            key = (labels[place] if alike else "", point[0])
            sums[key] = sums.get(key, 0.0) + weight * beyond[rest]
        near = {at: exp(-abs(first - at) / scale) for _, at in sums}
        total: Any = 0.0
        for label in dict.fromkeys(label for label, _ in sums):
            own: Any = 0.0
            for (of, at), value in sums.items():
                if of == label:
                    own = own + value * near[at]
            total = total + (own * alike[label] if alike else own)
        return total

    def nearness(self, *coordinates: Any, likeness: Sequence[Any] = ()) -> Any:
        """Return the correlation with the nearest point, from 0 to 1: 1 at a point itself."""
        nearest: Any = 0.0
        for place, point in enumerate(self.points):
            near = _correlation(point, coordinates, self.scales)
            nearest = largest(nearest, near * likeness[place] if likeness else near)
        return nearest


def _correlation(
    point: tuple[float, ...], coordinates: tuple[Any, ...], scales: tuple[float, ...]
) -> Any:
    """Return the covariance of two points over that of a point with itself."""
    distance: Any = 0.0
    for own, given, scale in zip(point, coordinates, scales, strict=True):
        distance = distance + abs(given - own) / scale
    return exp(-distance)


@noun
class CollectiveTable(Noun):
    """The residual of one collective by one library: over log2 of bytes, ranks and nodes."""

    collective: str = text()
    library: str = text()
    mode: str = one_of("graph", "eager")
    residual: Residual = instance(Residual)
    held: bool = flag(default=False)
    """Whether messages smaller than the smallest measured one have its factor: where latency is all
    there is, falling back to the formula would make a smaller message slower."""
    within_pct: float | None = positive(default=None)
    """Nine in ten measurements left out were within so many percent, with the table."""
    paths: tuple[str, ...] = names(default=())
    """What ran at each point by the formula, such as ``ring LL``; left out: not told apart."""
    other_path: float = share(default=1.0)
    """Correlation of two points that are alike but for the path that ran."""
    other_collective: float = share(default=0.0)
    """Correlation of two points that are alike but for the collective: how much of its residual the
    library's other collectives have."""
    strength: float = share(default=1.0)
    """Of the logarithm of the factor, what is applied to the collective."""

    def check(self) -> None:
        """Raise unless the residual has the coordinates of collectives, and a path for each."""
        if len(self.residual.scales) != len(COORDINATES):
            rule = f"{len(COORDINATES)}: {', '.join(COORDINATES)}"
            raise BadValueError("coordinates of a residual", len(self.residual.scales), rule)
        points = len(self.residual.points)
        if self.paths and len(self.paths) != points:
            rule = f"as many as weights, {points}, or none"
            raise BadValueError("residual paths", len(self.paths), rule)

    def factor(
        self,
        size_bytes: Any,
        ranks: Any,
        nodes: Any,
        running: Mapping[tuple[str, str], Any] | None = None,
        beside: Iterable[CollectiveTable] = (),
    ) -> Any:
        """Return measured over predicted time. Numbers or arrays.

        Args:
            size_bytes: Of the buffer.
            ranks: Of the group …
            nodes: … and the nodes that they are on.
            running: How much each path counts; left out: paths are not told apart.
            beside: The library's other tables, of which those of the same mode count too.
        """
        size = log2(size_bytes)
        if self.held:
            size = largest(size, min(point[0] for point in self.residual.points))
        at, shares = (size, log2(ranks), log2(nodes)), _shares(running)
        total = self._log_factor(at, shares)
        for other in beside:
            same = (other.library, other.mode) == (self.library, self.mode)
            if same and other.other_collective and other.collective != self.collective:
                total = total + other.other_collective * other._log_factor(at, shares)
        return _factor(self.strength * total)

    def nearness(
        self,
        size_bytes: Any,
        ranks: Any,
        nodes: Any,
        running: Mapping[tuple[str, str], Any] | None = None,
    ) -> Any:
        """Return how close the nearest point is, from 0 (far from all) to 1 (at one)."""
        alike = self._alike(_shares(running))
        likeness = [alike[path] for path in self.paths] if alike else ()
        return self.residual.nearness(log2(size_bytes), log2(ranks), log2(nodes), likeness=likeness)

    def _log_factor(self, at: tuple[Any, ...], shares: Mapping[str, Any] | None) -> Any:
        """Return the logarithm of measured over predicted by this table alone."""
        return self.residual.log_factor(*at, labels=self.paths, alike=self._alike(shares))

    def _alike(self, shares: Mapping[str, Any] | None) -> dict[str, Any]:
        """Return how alike what runs is to each path of a point; empty where all are alike."""
        if shares is None or self.other_path == 1:
            return {}
        least = self.other_path
        return {
            path: least + (1 - least) * shares.get(path, 0.0) for path in dict.fromkeys(self.paths)
        }


def path_label(path: tuple[str, str]) -> str:
    """Return the name of a path as tables have it.

    >>> path_label(("ring", "LL"))
    'ring LL'
    """
    return " ".join(path)


def _shares(running: Mapping[tuple[str, str], Any] | None) -> dict[str, Any] | None:
    """Return how much each path counts, by label, of 1 altogether."""
    if running is None:
        return None
    values = list(running.values())
    total = sum(values[1:], start=values[0])
    return {path_label(path): value / total for path, value in running.items()}


def _factor(log_factor: Any) -> Any:
    """Return the factor of a logarithm, within bounds."""
    return exp(smallest(_FARTHEST_LOG, largest(-_FARTHEST_LOG, log_factor)))


def tables_of(entries: Any) -> tuple[CollectiveTable, ...]:
    """Return the tables that a file holds; raise where one is not sound."""
    if not isinstance(entries, list) or not all(isinstance(each, Mapping) for each in entries):
        raise BadTypeError("residual", entries, "tables")
    if len(entries) > MOST_TABLES:
        raise BadValueError("residual", len(entries), f"at most {MOST_TABLES} tables")
    return tuple(_table(dict(entry)) for entry in entries)


def _table(entry: dict[str, Any]) -> CollectiveTable:
    lacking = [name for name in (*COORDINATES, "weights", "scales") if name not in entry]
    if lacking:
        raise BadValueError("residual", ", ".join(map(str, entry)), f"with {lacking[0]} too")
    columns = [
        _figures(f"residual {name}", entry.pop(name), _FARTHEST, -_FARTHEST) for name in COORDINATES
    ]
    if len({len(column) for column in columns}) > 1:
        raise BadValueError("residual points", [len(each) for each in columns], "as many of each")
    points = tuple(zip(*columns, strict=True))
    residual = Residual(points=points, weights=entry.pop("weights"), scales=entry.pop("scales"))
    unknown = [name for name in entry if name not in _OF_TABLE]
    if unknown:
        raise BadValueError("key of a residual", unknown[0], f"one of {', '.join(_OF_TABLE)}")
    return CollectiveTable(residual=residual, **entry)


def _figures(name: str, values: Any, most: float, least: float) -> tuple[float, ...]:
    """Return numbers within bounds as a tuple; raise for anything else."""
    if isinstance(values, str | bytes | Mapping) or not isinstance(values, Iterable):
        raise BadTypeError(name, values, "a list of numbers")
    result = tuple(values)
    for value in result:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise BadTypeError(name, value, "a number, each of them")
        if not least <= value <= most:  # also where it is no number
            raise BadValueError(name, value, f"from {least:g} to {most:g}, each of them")
    return tuple(map(float, result))
