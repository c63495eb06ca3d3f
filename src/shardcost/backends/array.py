"""`BackendArray`: an array of another library that takes NumPy's calls, and their counterparts."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from shardcost.backends.libraries import moved

_PYTHONS: Final[Mapping[str, type]] = {"b": bool, "i": int, "u": int, "f": float}
"""Python's type by the kind of a NumPy dtype."""

Function: TypeAlias = Callable[..., Any]


def to_numpy(array: Any) -> Any:
    """Return an array of any backend as NumPy's; any other value unchanged."""
    if not isinstance(array, BackendArray):
        return array
    cells = array.cells
    if array.library.__name__.endswith("cupy"):
        return cells.get()
    if array.library.__name__.endswith("torch"):
        return cells.cpu().numpy()
    return np.asarray(cells)


class BackendArray(NDArrayOperatorsMixin):
    """An array of another library that takes NumPy's functions and Python's operators.

    Its `dtype` is NumPy's. It is never changed in place.
    """

    __slots__ = ("cells", "device", "dtype", "library", "ndim", "shape")

    def __init__(self, cells: Any, library: Any, device: Any) -> None:
        self.cells = cells
        """The library's own array."""
        self.library = library
        """Its functions, as the standard has them."""
        self.device = device
        own = cells.dtype
        if not isinstance(own, np.dtype):
            own = np.dtype(str(own).rpartition(".")[2])  # such as torch.float32
        self.dtype: np.dtype[Any] = own
        self.shape: tuple[int, ...] = tuple(cells.shape)
        self.ndim = len(self.shape)

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise TypeError(
            f"an array of {self.library.__name__} becomes NumPy's only by"
            " shardcost.backends.to_numpy"
        )

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        if method != "__call__" or options:
            words = "".join(f" with {name}=" for name in options)
            raise _without_counterpart(f"{ufunc.__name__} ({method}{words})")
        return _computed(ufunc, self, inputs)

    def __imul__(self, other: Any) -> Any:
        """Return a new array: libraries differ in what may be changed in place."""
        return self * other

    def __array_function__(
        self, function: Function, types: Any, args: tuple[Any, ...], options: dict[str, Any]
    ) -> Any:
        own = _FUNCTIONS.get(function.__name__)
        if own is None:
            raise _without_counterpart(function.__name__)
        return own(*args, **options)

    @property
    def size(self) -> int:
        """Cells."""
        return int(np.prod(self.shape))

    @property
    def T(self) -> Any:  # noqa: N802  # NumPy's name
        """The array with its axes in reverse order."""
        axes = tuple(range(self.ndim))[::-1]
        return _answer(self, self.library.permute_dims(self.cells, axes))

    def astype(self, dtype: Any, *, copy: bool = True) -> Any:  # noqa: ARG002  # NumPy's option
        """Return the cells in another dtype."""
        return _answer(self, _cast(self, np.dtype(dtype)))

    def reshape(self, *shape: Any) -> Any:
        """Return the cells in another shape."""
        wanted = shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape
        return _answer(self, self.library.reshape(self.cells, tuple(wanted)))

    def ravel(self) -> Any:
        """Return the cells one after the other."""
        return self.reshape(-1)

    def any(self, axis: Any = None) -> Any:
        """Return whether any cell is true."""
        return _reduced("any", self, axis, np.dtype(bool))

    def all(self, axis: Any = None) -> Any:
        """Return whether all cells are true."""
        return _reduced("all", self, axis, np.dtype(bool))

    def min(self, axis: Any = None) -> Any:
        """Return the smallest cell."""
        return _reduced("min", self, axis)

    def max(self, axis: Any = None) -> Any:
        """Return the largest cell."""
        return _reduced("max", self, axis)

    def sum(self, axis: Any = None) -> Any:
        """Return the sum; whole numbers and booleans are added in 64 bits."""
        return _reduced("sum", self, axis, self.dtype if self.dtype.kind == "f" else np.dtype("i8"))

    def argmin(self, axis: Any = None) -> Any:
        """Return the index of the smallest cell."""
        return _reduced("argmin", self, axis)

    def argmax(self, axis: Any = None) -> Any:
        """Return the index of the largest cell."""
        return _reduced("argmax", self, axis)

    def entries_of(self, table: Any) -> Any:
        """Return the entries of a NumPy table at the indices in the cells; texts as NumPy's."""
        if table.dtype.kind == "U":
            return table[to_numpy(self)]
        return _answer(self, _taken(self, table, _cast(self, np.dtype("i8"))))

    def tolist(self) -> Any:
        """Return the cells as lists of plain numbers."""
        return to_numpy(self).tolist()

    def item(self) -> Any:
        """Return the only cell as a plain number."""
        return to_numpy(self).item()

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, BackendArray | np.ndarray):
            # The cells where a mask is true, or at whole-number indices.
            if key.dtype.kind == "b":
                return _answer(self, self.cells[_cast_like(self, key, key.dtype)])
            return _answer(self, _taken(self, self, _cast_like(self, key, np.dtype("i8"))))
        whole = key if isinstance(key, tuple) else (key,)
        if Ellipsis not in whole:  # the standard wants every axis named
            whole = (*whole, Ellipsis)
        return _answer(self, self.cells[whole])

    def __setitem__(self, key: Any, value: Any) -> None:
        raise TypeError("cells of a BackendArray are not assigned to: use np.where")

    def __len__(self) -> int:
        return self.shape[0]

    def __iter__(self) -> Iterator[Any]:
        return (self[place] for place in range(len(self)))

    def __bool__(self) -> bool:
        if self.size != 1:
            raise ValueError("whether an array is true is ambiguous: ask any() or all()")
        return bool(self.item())

    def __repr__(self) -> str:
        return f"BackendArray({self.cells!r})"


def _without_counterpart(name: str) -> TypeError:
    """Return the error of a call without counterpart: nothing is computed elsewhere silently."""
    return TypeError(f"np.{name} takes no BackendArray: it has no counterpart here")


# The dtypes in which NumPy would compute


@lru_cache(maxsize=4096)  # NumPy takes 2 us to resolve dtypes, for every operation
def _loop(ufunc: np.ufunc, kinds: tuple[Any, ...]) -> tuple[np.dtype[Any], ...]:
    """Return the dtypes to which NumPy casts the arguments of a function."""
    if ufunc.__name__.startswith("logical_"):
        return (np.dtype(bool),) * ufunc.nin
    dtypes: tuple[np.dtype[Any], ...] = ufunc.resolve_dtypes((*kinds, *(None,) * ufunc.nout))
    if dtypes[0].kind == "b" and ufunc in _ORDERS:
        return (np.dtype("i1"),) * ufunc.nin  # the standard does not order booleans
    return dtypes[: ufunc.nin]


_ORDERS: Final = frozenset({np.less, np.less_equal, np.greater, np.greater_equal})
_PLAIN: Final[Mapping[type, Any]] = {bool: np.dtype(bool), int: int, float: float}


def _kind(value: Any) -> Any:
    """Return a value's dtype; Python's own numbers adapt to the others'."""
    kind = type(value)
    return _PLAIN[kind] if kind in _PLAIN else getattr(value, "dtype", None)


def _common(*values: Any) -> np.dtype[Any]:
    """Return the dtype of NumPy for several values together."""
    return np.result_type(*(value if type(value) in _PLAIN else _kind(value) for value in values))


def _computed(ufunc: np.ufunc, like: BackendArray, inputs: tuple[Any, ...]) -> Any:
    kinds = tuple(map(_kind, inputs))
    if any(kind is None for kind in kinds):
        return NotImplemented
    loop = _loop(ufunc, kinds)
    arguments = [_cast_like(like, value, kind) for value, kind in zip(inputs, loop, strict=True)]
    if ufunc in _OTHERWISE:
        return _OTHERWISE[ufunc](like, *arguments)
    if loop[0].kind == "b" and ufunc in _OF_TRUTH:
        ufunc = _OF_TRUTH[ufunc]
    if ufunc in _OPERATORS:
        return _answer(like, _OPERATORS[ufunc](*arguments))
    if ufunc not in _NAMES:
        raise _without_counterpart(ufunc.__name__)
    cells = [_cells(like, value, kind) for value, kind in zip(inputs, loop, strict=True)]
    return _answer(like, getattr(like.library, _NAMES[ufunc])(*cells))


def _cast_like(like: BackendArray, value: Any, dtype: np.dtype[Any]) -> Any:
    """Return a value on the device of `like`, in a dtype; a single number as Python's."""
    if isinstance(value, BackendArray):
        return _cast(value, dtype)
    if isinstance(value, np.ndarray) and value.ndim:
        return moved(like.library, value.astype(dtype, copy=False), like.device)
    return _PYTHONS[dtype.kind](value)


def _cast(array: BackendArray, dtype: np.dtype[Any]) -> Any:
    if array.dtype == dtype:
        return array.cells
    return array.library.astype(array.cells, getattr(array.library, dtype.name))


def _cells(like: BackendArray, value: Any, dtype: np.dtype[Any]) -> Any:
    """Return a value as `_cast_like`, for a function that takes no plain numbers."""
    cells = _cast_like(like, value, dtype)
    if isinstance(cells, bool | int | float):
        return _constant(like.library, cells, dtype, like.device)
    return cells


@lru_cache(maxsize=1024)  # a constant is copied to the device once
def _constant(library: Any, value: Any, dtype: np.dtype[Any], device: Any) -> Any:
    return moved(library, np.asarray(value, dtype=dtype), device)


def _answer(like: BackendArray, cells: Any) -> Any:
    """Return a library's result; without dimensions it is a number of NumPy's."""
    array = BackendArray(cells, like.library, like.device)
    return array if array.ndim else to_numpy(array)[()]


def _reduced(name: str, array: Any, axis: Any, dtype: np.dtype[Any] | None = None) -> Any:
    cells = array.cells if dtype is None else _cast(array, dtype)
    return _answer(array, getattr(array.library, name)(cells, axis=axis))


# NumPy's functions of cells


_OPERATORS: Final[Mapping[np.ufunc, Function]] = {
    np.add: operator.add,
    np.subtract: operator.sub,
    np.multiply: operator.mul,
    np.remainder: operator.mod,
    np.power: operator.pow,
    np.negative: operator.neg,
    np.positive: operator.pos,
    np.absolute: operator.abs,
    np.invert: operator.invert,
    np.bitwise_and: operator.and_,
    np.bitwise_or: operator.or_,
    np.bitwise_xor: operator.xor,
    np.less: operator.lt,
    np.less_equal: operator.le,
    np.greater: operator.gt,
    np.greater_equal: operator.ge,
    np.equal: operator.eq,
    np.not_equal: operator.ne,
}
"""They take plain numbers beside an array, which costs no copy to its device. Not so divisions: on
a GPU torch multiplies by the inverse of a plain number, and whole quotients do not stay whole."""

_NAMES: Final[Mapping[np.ufunc, str]] = {np.rint: "round"} | {
    function: function.__name__
    for function in (
        *(np.divide, np.floor_divide, np.maximum, np.minimum, np.ceil, np.floor, np.sqrt),
        *(np.exp, np.expm1, np.log, np.isfinite, np.isinf, np.isnan),
        *(np.logical_and, np.logical_or, np.logical_not),
    )
}

_OF_TRUTH: Final[Mapping[np.ufunc, np.ufunc]] = {
    np.add: np.bitwise_or,
    np.maximum: np.bitwise_or,
    np.multiply: np.bitwise_and,
    np.minimum: np.bitwise_and,
}
"""Arithmetic on booleans alone."""

_LEAST_EXPONENT: Final = -1022
_POWERS: Final = np.ldexp(1.0, np.arange(_LEAST_EXPONENT, 1024))
"""Powers of two: looked up, they are exact on every device."""


def _power_of_two(like: BackendArray, exponent: Any) -> Any:
    return _taken(like, _POWERS, exponent - _LEAST_EXPONENT)


def _frexp(like: BackendArray, number: Any) -> tuple[Any, Any]:
    """Return a number from 1/2 up to 1 and the power of two that make up each cell."""
    powers = _cast_like(like, _POWERS, _POWERS.dtype)
    xp = like.library
    above = xp.searchsorted(powers, xp.abs(number), side="right") + _LEAST_EXPONENT
    exponent = xp.where(number == 0, _constant(xp, 0, np.dtype("i8"), like.device), above)
    return _answer(like, number / _power_of_two(like, exponent)), _answer(like, exponent)


def _log2(like: BackendArray, number: Any) -> Any:
    """Return logarithms, of powers of two whole: formulas round them up and down."""
    xp = like.library
    logarithm = xp.log2(number)
    zero = _constant(xp, 0.0, np.dtype("f8"), like.device)
    whole = xp.where(xp.isfinite(logarithm), xp.round(logarithm), zero)
    exact = _power_of_two(like, xp.astype(whole, xp.int64)) == number
    return _answer(like, xp.where(exact, whole, logarithm))


_OTHERWISE: Final[Mapping[np.ufunc, Function]] = {
    np.ldexp: lambda like, number, power: _answer(like, number * _power_of_two(like, power)),
    np.frexp: _frexp,
    np.log2: _log2,
}


# NumPy's other functions


def _first(*values: Any) -> BackendArray:
    return next(value for value in values if isinstance(value, BackendArray))


def _where(condition: Any, yes: Any, no: Any) -> Any:
    if isinstance(yes, str) or (isinstance(yes, np.ndarray) and yes.dtype.kind == "U"):
        return np.where(to_numpy(condition), yes, no)  # no other library has texts
    like, dtype = _first(condition, yes, no), _common(yes, no)
    one, other = (_cells(like, value, dtype) for value in (yes, no))
    return _answer(like, like.library.where(_cells(like, condition, np.dtype(bool)), one, other))


def _taken(like: BackendArray, table: Any, places: Any) -> Any:
    cells = _cast_like(like, table, table.dtype)
    flat = like.library.take(cells, like.library.reshape(places, (-1,)), axis=0)
    return like.library.reshape(flat, (*places.shape, *table.shape[1:]))


def _searchsorted(table: Any, values: Any, side: str = "left") -> Any:
    table = table if isinstance(table, BackendArray) else np.asarray(table)
    like, dtype = _first(table, values), _common(table, values)
    cells = (_cells(like, array, dtype) for array in (table, values))
    return _answer(like, like.library.searchsorted(*cells, side=side))


def _unique(cells: BackendArray, *, return_inverse: bool = False) -> Any:
    if not return_inverse:
        return _answer(cells, cells.library.unique_values(cells.cells))
    values, inverse = cells.library.unique_inverse(cells.cells)
    return _answer(cells, values), _answer(cells, inverse)


def _stack(arrays: Any, axis: int = 0) -> Any:
    like, dtype = _first(*arrays), _common(*arrays)
    cells = [_cells(like, array, dtype) for array in arrays]
    return _answer(like, like.library.stack(cells, axis=axis))


def _broadcast_to(cells: BackendArray, shape: tuple[int, ...]) -> Any:
    return _answer(cells, cells.library.broadcast_to(cells.cells, tuple(shape)))


def _broadcast_arrays(*arrays: Any) -> tuple[Any, ...]:
    like = _first(*arrays)
    shape = np.broadcast_shapes(*map(np.shape, arrays))
    cells = (_cells(like, array, _common(array)) for array in arrays)
    return tuple(_answer(like, like.library.broadcast_to(array, shape)) for array in cells)


def _filled(cells: BackendArray, value: int) -> Any:
    return _answer(cells, cells.library.full_like(cells.cells, value))


_FUNCTIONS: Final[Mapping[str, Function]] = {
    "all": BackendArray.all,
    "any": BackendArray.any,
    "amax": BackendArray.max,
    "amin": BackendArray.min,
    "argmax": BackendArray.argmax,
    "argmin": BackendArray.argmin,
    "broadcast_arrays": _broadcast_arrays,
    "broadcast_to": _broadcast_to,
    "clip": lambda cells, least, most: np.minimum(np.maximum(cells, least), most),
    "max": BackendArray.max,
    "min": BackendArray.min,
    "ndim": lambda cells: cells.ndim,
    "ones_like": lambda cells: _filled(cells, 1),
    "ravel": BackendArray.ravel,
    "reshape": BackendArray.reshape,
    "searchsorted": _searchsorted,
    "shape": lambda cells: cells.shape,
    "size": lambda cells: cells.size,
    "stack": _stack,
    "sum": BackendArray.sum,
    "unique": _unique,
    "where": _where,
    "zeros_like": lambda cells: _filled(cells, 0),
}
