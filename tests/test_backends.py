"""The formulas on arrays of other libraries: the same figures as on NumPy's, and no way around.

`array_api_strict` refuses whatever the array API standard does not promise; torch, where it is
installed, is a library that people use.
"""

from __future__ import annotations

import operator
import pickle
from collections.abc import Callable
from importlib.util import find_spec
from itertools import product
from typing import Any

import numpy as np
import pytest

from shardcost import Cluster, Decode, Layout, Model, Prefill, Train, collective_time, estimate
from shardcost.arrays import cell_by_cell, choose, largest, looked_up, named, smallest
from shardcost.backends import BACKENDS, BackendArray, to_backend, to_numpy
from shardcost.backends import libraries as module
from shardcost.collectives.engine_kernels import multimem_all_reduce_s
from shardcost.collectives.exact import closed_forms
from shardcost.collectives.exact.algorithms import ALGORITHMS
from shardcost.errors import BadTypeError, BadValueError, MissingExtraError, UnknownNameError
from shardcost.kernels.attention import decode_time_s, prefill_time_s
from shardcost.kernels.elementwise import elementwise_time_s
from shardcost.kernels.gemm import gemm_time_s
from shardcost.machine import machine_of
from shardcost.machine.kernels import KernelConstants
from shardcost.memory import memory_of
from shardcost.program import program_of
from shardcost.schedule.step import step_s, step_time
from shardcost.schedule.work import (
    SCHEDULES,
    DataParallel,
    LayerGathers,
    Sends,
    Stage,
    StepWork,
)
from shardcost.software import Software
from shardcost.workload import Workload


def missing(library: str) -> str:
    """Return what a library lacks here, in words."""
    name, _, device = library.partition(" on ")
    try:
        to_backend(name, np.arange(1), device or None)
    except MissingExtraError as error:
        return str(error)
    except BadValueError:
        return "needs a GPU"
    return ""


LIBRARIES = {
    library: missing(library)
    for library in ("array_api_strict", "torch on cpu", "torch on cuda", "cupy on cuda")
}
on_every_library = pytest.mark.parametrize(
    "library", [library for library, lacks in LIBRARIES.items() if not lacks]
)
ALONE = Cluster.named("h100_sxm")
JOINED = Cluster.named("h100_sxm", network="ib_8x400g")
DEVICE = ALONE.device
KERNELS = KernelConstants(DEVICE, DEVICE)
CLOSE = 1e-12


def moved(library: str, cells: Any) -> Any:
    name, _, device = library.partition(" on ")
    return to_backend(name, cells, device or None)


def assert_alike(found: Any, expected: Any, what: object = "") -> None:
    """Assert that figures are NumPy's, in shape and number format too, and were computed there."""
    if np.ndim(expected):
        assert isinstance(found, BackendArray), what
    cells, wanted = np.asarray(to_numpy(found)), np.asarray(expected)
    assert cells.shape == wanted.shape, what
    assert cells.dtype == wanted.dtype, what
    np.testing.assert_allclose(cells, wanted, rtol=CLOSE, atol=0, err_msg=str(what))


@pytest.mark.parametrize("library", LIBRARIES)
def test_the_library_is_here(library: str) -> None:
    if LIBRARIES[library]:
        pytest.skip(LIBRARIES[library])


# The array itself

CELLS = {
    "bool": np.array([True, False, True]),
    "int32": np.array([7, -7, 3], dtype=np.int32),
    "int64": np.array([5, 3, -2]),
    "float64": np.array([0.5, -2.25, 3.0]),
}
SCALARS: list[Any] = [True, 2, 2.5]
if np.lib.NumpyVersion(np.__version__) >= "2.0.0":  # before, NumPy's own numbers adapted too
    SCALARS += [np.int64(3), np.float64(1.5), np.array(4)]
BINARY: list[Callable[..., Any]] = [
    np.add,
    np.multiply,
    np.divide,
    np.maximum,
    np.minimum,
    np.less,
    np.greater_equal,
    np.equal,
    np.logical_and,
    np.logical_or,
    operator.ne,
]
OF_NUMBERS: list[Callable[..., Any]] = [np.subtract, np.floor_divide, np.remainder]


def refuses_truth(operation: Any, *kinds: Any) -> bool:
    """Return whether NumPy itself does not compute an operation on nothing but truth values."""
    return operation in OF_NUMBERS and all(np.asarray(each).dtype.kind == "b" for each in kinds)


@on_every_library
@pytest.mark.parametrize("operation", BINARY + OF_NUMBERS, ids=lambda each: each.__name__)
def test_two_arrays_are_joined_in_the_number_formats_of_numpy(
    library: str, operation: Callable[..., Any]
) -> None:
    for one, other in product(CELLS.values(), repeat=2):
        divisor = np.where(other == 0, 1, other).astype(other.dtype)
        if refuses_truth(operation, one, divisor):
            continue
        expected = operation(one, divisor)
        assert_alike(operation(moved(library, one), moved(library, divisor)), expected)
        assert_alike(operation(one, moved(library, divisor)), expected, "NumPy's first")
        assert_alike(operation(moved(library, one), divisor), expected, "NumPy's second")


@on_every_library
@pytest.mark.parametrize("operation", BINARY + OF_NUMBERS, ids=lambda each: each.__name__)
def test_plain_numbers_adapt_to_arrays_as_with_numpy(
    library: str, operation: Callable[..., Any]
) -> None:
    for cells, scalar in product(CELLS.values(), SCALARS):
        if refuses_truth(operation, cells, scalar):
            continue
        assert_alike(operation(moved(library, cells), scalar), operation(cells, scalar))
        if operation not in (np.divide, np.floor_divide, np.remainder) or cells.all():
            assert_alike(operation(scalar, moved(library, cells)), operation(scalar, cells))


@on_every_library
@pytest.mark.parametrize(
    "function",
    [
        np.ceil,
        np.floor,
        np.rint,
        np.sqrt,
        np.exp,
        np.expm1,
        np.log,
        np.log2,
        np.isnan,
        np.isinf,
        np.isfinite,
        np.logical_not,
        np.negative,
        np.abs,
        operator.pos,
    ],
    ids=lambda each: each.__name__,
)
def test_functions_of_one_array(library: str, function: Callable[..., Any]) -> None:
    for cells in (np.array([1, 2, 8]), np.array([0.5, 2.0, 3.75])):
        assert_alike(function(moved(library, cells)), function(cells))


@on_every_library
def test_powers_and_bits(library: str) -> None:
    numbers, whole, truth = CELLS["float64"], CELLS["int64"], CELLS["bool"]
    assert_alike(moved(library, numbers) ** 2, numbers**2)
    assert_alike(2 ** moved(library, np.abs(whole)), 2 ** np.abs(whole))
    assert_alike(2.0 ** moved(library, whole), 2.0**whole)
    assert_alike(~moved(library, truth), ~truth)
    assert_alike(moved(library, truth) ^ True, truth ^ True)
    assert_alike(moved(library, truth) & (moved(library, whole) > 0), truth & (whole > 0))
    assert_alike(moved(library, whole) & 6, whole & 6)


@on_every_library
def test_exponents_are_exact(library: str) -> None:
    edges = np.ldexp(1.0, np.arange(-300, 300, 7))
    numbers = np.concatenate([[0.0], edges, np.nextafter(edges, 0), np.nextafter(edges, np.inf)])
    mantissa, exponent = np.frexp(moved(library, numbers))
    expected = np.frexp(numbers)
    assert (to_numpy(mantissa) == expected[0]).all()
    assert (to_numpy(exponent) == expected[1]).all()
    logarithms = np.log2(moved(library, np.concatenate([[1e-300, 0.3, 7.0], edges])))
    assert (to_numpy(logarithms)[3:] == np.arange(-300, 300, 7)).all()
    powers = np.arange(-1000, 1000)
    assert (to_numpy(np.ldexp(1.0, moved(library, powers))) == np.ldexp(1.0, powers)).all()


@on_every_library
def test_whole_quotients_are_whole(library: str) -> None:
    divisors, quotients = np.arange(1, 300)[:, None], np.arange(1, 300)
    products = 1.0 * divisors * quotients
    assert (to_numpy(moved(library, products) / moved(library, divisors)) == quotients).all()
    for divisor in (3, 49, 132, 192.0):
        assert (to_numpy(moved(library, divisor * quotients) / divisor) == quotients).all()
        assert (to_numpy(moved(library, divisor * quotients) // divisor) == quotients).all()


@on_every_library
def test_other_functions_of_numpy(library: str) -> None:
    cells, whole = np.array([[0.5, 4.0], [2.0, 1.0]]), np.array([[3, 1], [3, 7]])
    here, there = moved(library, cells), moved(library, whole)
    assert_alike(np.where(here > 1, here, 0), np.where(cells > 1, cells, 0))
    assert_alike(np.where(here > 1, 1.0, 0.0), np.where(cells > 1, 1.0, 0.0))
    assert_alike(np.where(here > 1, 1, there), np.where(cells > 1, 1, whole))
    assert_alike(np.where(cells > 1, there, here), np.where(cells > 1, whole, cells))
    assert_alike(np.clip(here, 1, 3), np.clip(cells, 1, 3))
    assert_alike(np.stack([here, there]), np.stack([cells, whole]))
    assert_alike(np.broadcast_to(here, (3, 2, 2)), np.broadcast_to(cells, (3, 2, 2)))
    assert_alike(np.ones_like(there), np.ones_like(whole))
    assert_alike(np.zeros_like(here), np.zeros_like(cells))
    assert_alike(np.unique(there), np.unique(whole))
    assert_alike(np.searchsorted([1, 3, 5], there), np.searchsorted([1, 3, 5], whole))
    for one, other in zip(
        np.broadcast_arrays(here, there[0], 3), np.broadcast_arrays(cells, whole[0], 3), strict=True
    ):
        assert_alike(one, other)
    assert (np.shape(here), np.ndim(here), np.size(here)) == ((2, 2), 2, 4)


@on_every_library
@pytest.mark.parametrize("name", ["any", "all", "min", "max", "sum", "argmin", "argmax"])
def test_a_result_without_dimensions_is_a_number(library: str, name: str) -> None:
    for cells in (CELLS["int64"].reshape(3, 1) * CELLS["int32"], CELLS["float64"][None]):
        function = getattr(np, name)
        whole = function(moved(library, cells))
        assert not isinstance(whole, BackendArray)
        assert_alike(whole, function(cells))
        assert_alike(function(moved(library, cells), axis=0), function(cells, axis=0))
        assert_alike(getattr(moved(library, cells), name)(axis=1), getattr(cells, name)(axis=1))
    assert moved(library, CELLS["bool"]).sum() == 2


@on_every_library
def test_indexing(library: str) -> None:
    cells = np.arange(24.0).reshape(4, 3, 2)
    here = moved(library, cells)
    for key in (
        0,
        -1,
        slice(1, 3),
        (slice(None), 1),
        (0, 1, 1),
        None,
        (Ellipsis, None),
        (),
        (2, 0),
    ):
        assert_alike(here[key], cells[key], key)
    for places in (np.array([3, 0]), np.array([[1, 1], [2, 0]])):
        assert_alike(here[moved(library, places)], cells[places])
        assert_alike(here[places], cells[places])
    assert_alike(here[here > 7], cells[cells > 7])
    assert_alike(here.T, cells.T)
    assert_alike(here.reshape(2, -1), cells.reshape(2, -1))
    assert_alike(here.reshape((6, 4)), cells.reshape((6, 4)))
    assert_alike(here.ravel().astype("int64"), cells.ravel().astype("int64"))
    assert [each.tolist() for each in here] == cells.tolist()
    assert len(here) == 4
    assert here[:1, :1, :1].item() == 0.0


@on_every_library
def test_choices_of_either_kind_of_number(library: str) -> None:
    cells = np.array([[3, 8], [8, 1]])
    here = moved(library, cells)
    assert_alike(largest(2, here, 4.5), largest(2, cells, 4.5))
    assert_alike(smallest(here, 2), smallest(cells, 2))
    assert_alike(choose(here > 2, here, 0.5), choose(cells > 2, cells, 0.5))
    assert_alike(cell_by_cell(int.bit_length, here), cell_by_cell(int.bit_length, cells))
    assert_alike(looked_up(tuple(range(9, 0, -1)), here), 9 - cells)
    assert named(list("abcdefghi"), here).tolist() == [["d", "i"], ["i", "b"]]


@on_every_library
def test_nothing_becomes_numpys_unasked(library: str) -> None:
    cells = moved(library, np.arange(3.0))
    with pytest.raises(TypeError, match="to_numpy"):
        np.asarray(cells)
    with pytest.raises(TypeError, match=r"np\.hypot"):
        np.hypot(cells, 1.0)
    with pytest.raises(TypeError, match=r"np\.fft|np\.kron"):
        np.kron(cells, cells)
    with pytest.raises(TypeError, match=r"np\.add \(reduce"):
        np.add.reduce(cells)
    with pytest.raises(TypeError, match=r"with out="):
        cells += 1
    with pytest.raises(TypeError, match=r"np\.where"):
        cells[0] = 1
    with pytest.raises(TypeError):
        cells + "1"
    with pytest.raises(ValueError, match="ambiguous"):
        bool(cells)
    assert bool(cells[1:2])
    assert "BackendArray" in repr(cells)


@on_every_library
def test_arrays_go_there_and_back(library: str) -> None:
    for cells in (*CELLS.values(), np.broadcast_to(2.0, (2, 3)), np.arange(6)[::-2]):
        assert_alike(moved(library, cells), cells)
    assert moved(library, 3) == 3  # a number needs no device
    assert to_numpy(3) == 3
    twice = moved(library, moved(library, CELLS["int64"]))
    assert_alike(twice, CELLS["int64"])


def test_numpy_is_a_backend_too() -> None:
    cells = np.arange(3)
    assert to_backend("numpy", cells) is cells
    assert to_backend("numpy", [1, 2], "cpu").tolist() == [1, 2]
    with pytest.raises(BadValueError, match="cpu for NumPy"):
        to_backend("numpy", cells, "cuda")


def test_what_is_not_there_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnknownNameError, match="numpy"):
        to_backend("jax", np.arange(3))
    with pytest.raises(BadTypeError, match="number format"):
        to_backend("array_api_strict", np.array(["a"]))
    for name, missing in (("torch", "torch"), ("cupy", "cupy"), ("torch", "array_api_compat")):

        def without(asked: str, missing: str = missing) -> Any:
            if missing in asked:
                raise ImportError(asked)
            return module

        monkeypatch.setattr("shardcost.backends.libraries.import_module", without)
        with pytest.raises(MissingExtraError, match=r"pip install 'shardcost\[") as caught:
            to_backend(name, np.arange(3))
        assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


@pytest.mark.skipif(not find_spec("torch"), reason="needs shardcost[torch]")
def test_a_device_that_torch_does_not_see_is_refused() -> None:
    for device in ("cuda:99", "nowhere", 3.5):
        with pytest.raises(BadValueError, match="device"):
            to_backend("torch", np.arange(3), device)


def test_known_backends() -> None:
    assert BACKENDS == ("numpy", "torch", "cupy")


# The formulas


def axis(values: Any, place: int, dimensions: int) -> Any:
    shape = [1] * dimensions
    shape[place] = -1
    return np.array(values).reshape(shape)


def grid(**axes: Any) -> dict[str, Any]:
    """Return an open grid: each name along an axis of its own."""
    return {name: axis(each, at, len(axes)) for at, (name, each) in enumerate(axes.items())}


def on(library: str, cells: dict[str, Any]) -> dict[str, Any]:
    return {name: moved(library, each) for name, each in cells.items()}


@on_every_library
@pytest.mark.parametrize("dtype", ["bf16", "fp8"])
@pytest.mark.parametrize("taken", [0, 20])
def test_products(library: str, dtype: str, taken: int) -> None:
    shape = grid(m=[1, 17, 4096], n=[64, 1000, 8192], k=[128, 5000])
    rest: dict[str, Any] = {"batch": 2, "sms_taken": taken, "memory_taken": 1e9 * taken}
    expected = gemm_time_s(KERNELS, dtype, **shape, **rest)
    assert_alike(gemm_time_s(KERNELS, dtype, **on(library, shape), **rest), expected)


@on_every_library
@pytest.mark.parametrize("window", [None, 500])
@pytest.mark.parametrize("flagged", [True, False])
def test_attention(library: str, window: int | None, flagged: bool) -> None:
    sizes = grid(batch=[1, 7, 64], context_tokens=[1000, 8192, 30000], heads=[8, 64])
    many: dict[str, Any] = {
        "query_tokens": 1000,
        "kv_heads": 8,
        "head_dim": 128,
        "window_tokens": window,
    }
    many |= {"causal": flagged, "backward": not flagged}
    few: dict[str, Any] = {"kv_heads": 8, "head_dim": 128, "window_tokens": window}
    few |= {"cache_is_warm": flagged}
    cells = on(library, sizes)
    expected = prefill_time_s(KERNELS, "bf16", **sizes, **many)
    assert_alike(prefill_time_s(KERNELS, "bf16", **cells, **many), expected)
    expected = decode_time_s(KERNELS, "fp8", **sizes, **few)
    assert_alike(decode_time_s(KERNELS, "fp8", **cells, **few), expected)
    with pytest.raises(BadValueError, match="context_tokens"):
        prefill_time_s(KERNELS, "bf16", 1, 2000, cells["context_tokens"], 8, 8, 128)


@on_every_library
def test_texts_are_chosen_as_numpy_s(library: str) -> None:
    later = moved(library, np.array([False, True]))
    assert np.where(later, "last", "first").tolist() == ["first", "last"]
    assert np.where(later, np.array(["a", "b"]), "c").tolist() == ["c", "b"]


@on_every_library
def test_passes(library: str) -> None:
    moves = np.geomspace(1, 1e9, 40)
    assert_alike(
        elementwise_time_s(KERNELS, moved(library, moves)), elementwise_time_s(KERNELS, moves)
    )
    with pytest.raises(BadValueError, match="at least 0"):
        elementwise_time_s(KERNELS, moved(library, -moves))


@on_every_library
@pytest.mark.parametrize(
    ("cluster", "libraries"),
    [
        (JOINED, ("nccl", "vllm", "trtllm", "nccl-tuner")),
        (Cluster.named("mi300x", network="ib_8x400g"), ("rccl",)),
        (Cluster.named("v100_cube", network="ib_8x400g"), ("nccl",)),
        (Cluster.named("l40s", network="ib_8x400g"), ("nccl", "vllm")),
        (Cluster.named("gb200_nvl72", network="ib_8x400g"), ("nccl",)),
    ],
    ids=lambda each: getattr(each, "name", ""),
)
@pytest.mark.parametrize("collective", ["all_reduce", "reduce_scatter", "all_to_all", "send_recv"])
def test_collectives(
    library: str, cluster: Cluster, libraries: tuple[str, ...], collective: str
) -> None:
    asked = grid(size_bytes=np.geomspace(8, 4e9, 30), gpus=[1, 2, 4, 8, 16, 64, 512])
    for name in libraries:
        if name == "nccl-tuner" and collective not in {"all_reduce", "reduce_scatter"}:
            continue
        expected = collective_time(collective, cluster=cluster, library=name, **asked)
        found = collective_time(collective, cluster=cluster, library=name, **on(library, asked))
        assert_alike(found.time_s, expected.time_s, name)
        assert_alike(found.bound_s, expected.bound_s, name)
        assert_alike(found.link_share, expected.link_share, name)
        assert (found.algorithm == expected.algorithm).all()
        assert (found.protocol == expected.protocol).all()
        assert found.notes == expected.notes


@on_every_library
def test_all_reduces_by_multimem(library: str) -> None:
    ranks, sizes = axis([2, 4, 8], 0, 2), axis(np.geomspace(1e3, 1e9, 9), 1, 2)
    expected = multimem_all_reduce_s(machine_of(ALONE), ranks, sizes)
    found = multimem_all_reduce_s(machine_of(ALONE), moved(library, ranks), moved(library, sizes))
    assert_alike(found, expected)


@on_every_library
def test_what_does_not_fit_a_cluster_is_refused(library: str) -> None:
    ranks = moved(library, np.array([4, 8, 16]))
    with pytest.raises(BadValueError, match="got 16"):
        collective_time("all_reduce", 1e6, ALONE, ranks)
    with pytest.raises(BadValueError, match="got 0"):
        Layout(tp=moved(library, np.array([4, 0])))


@on_every_library
@pytest.mark.parametrize("form", list(ALGORITHMS), ids=lambda form: "-".join(form) if form else "")
def test_closed_forms(library: str, form: tuple[str, str]) -> None:
    ranks = np.arange(1, 40)
    expected = closed_forms.cost(*form, ranks, 1e6)
    found = closed_forms.cost(*form, moved(library, ranks), 1e6)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(to_numpy(one), other, rtol=CLOSE)


@on_every_library
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("blocking", [True, False])
def test_schedules(library: str, schedule: str, blocking: bool) -> None:
    rng = np.random.default_rng(3)
    interleaved = schedule == "interleaved"
    shape = {
        "stages": rng.integers(1, 9, 300),
        "chunks": rng.integers(1, 5, 300) if interleaved else np.ones(300, dtype=int),
        "buckets": rng.integers(1, 9, 300),
    }
    shape["micro_batches"] = shape["stages"] * rng.integers(1, 6, 300)
    seconds = rng.uniform(0.1, 2.0, (24, 300))

    def work(put: Callable[[Any], Any]) -> StepWork:
        cells = iter(map(put, seconds))
        first, middle, last = (Stage(*(next(cells) for _ in range(6))) for _ in range(3))
        return StepWork(
            first,
            middle,
            last,
            put(shape["stages"]),
            put(shape["micro_batches"]),
            put(shape["chunks"]),
            Sends(next(cells), blocking=blocking),
            DataParallel(next(cells), next(cells), put(shape["buckets"])),
            LayerGathers(next(cells), next(cells), 4),
            next(cells),
        )

    here, there = work(lambda cells: cells), work(lambda cells: moved(library, cells))
    expected, found = step_time(here, schedule), step_time(there, schedule)
    for name in ("step_s", "compute_s", "optimizer_s"):
        assert_alike(getattr(found, name), getattr(expected, name), name)
    for one, other in zip(found, expected, strict=True):
        near = CLOSE * expected.step_s.max()
        np.testing.assert_allclose(to_numpy(one), other, rtol=CLOSE, atol=near)
    assert_alike(step_s(there, schedule), expected.step_s)


TRAINED = Train(global_batch=1024, sequence_length=4096)
DEGREES = grid(tp=[1, 2, 4, 8], pp=[1, 2, 4, 8], dp=[1, 2, 8, 24], micro_batch=[1, 2, 4])
SQUARES = grid(tp=[1, 4, 16, 64], pp=[1, 2, 4], dp=[1, 2, 4, 8], micro_batch=[64, 128])
FAMILIES: dict[str, tuple[str, Cluster, dict[str, Any], dict[str, Any], Workload]] = {
    "1f1b": ("llama3-70b", JOINED, DEGREES, {}, TRAINED),
    "interleaved": (
        "llama3-70b",
        JOINED,
        grid(
            tp=[2, 4, 8], pp=[2, 4], dp=[1, 2, 8], micro_batch=[1, 2, 4], virtual_stages=[1, 2, 5]
        ),
        {"schedule": "interleaved", "zero": 1, "sequence_parallel": True},
        TRAINED,
    ),
    "zero_bubble": ("llama3-70b", JOINED, DEGREES, {"schedule": "zero_bubble"}, TRAINED),
    "selective": (
        "gpt3-175b",
        Cluster.named("a100_sxm", network="ib_8x200g"),
        DEGREES,
        {"zero": 1, "recompute": "selective", "sequence_parallel": True},
        TRAINED,
    ),
    "full": ("falcon-40b", JOINED, DEGREES, {"zero": 2, "recompute": "full"}, TRAINED),
    "zero 3": ("llama3-8b", JOINED, DEGREES, {"zero": 3}, TRAINED),
    "shards": (
        "llama3-70b",
        JOINED,
        grid(tp=[1, 2, 4, 8], pp=[1, 2, 4], dp=[8, 16, 32, 64, 96], shard_degree=[1, 2, 4, 8]),
        {"zero": 3},
        TRAINED,
    ),
    **{
        scheme: ("llama3-70b", JOINED, SQUARES, {"scheme": scheme}, TRAINED)
        for scheme in ("2d", "2.5d", "3d", "weight_gathered")
    },
    **{
        scheme: (
            "llama3-8b",
            JOINED,
            grid(tp=[1, 2, 4], cp=[2, 4, 8], pp=[1, 2, 4], dp=[1, 2, 4, 8]),
            {"context_scheme": scheme, "zero": 1},
            TRAINED,
        )
        for scheme in ("ring", "all_gather", "ulysses")
    },
    "experts": (
        "mixtral-8x7b",
        JOINED,
        grid(tp=[1, 2, 4, 8], ep=[1, 2, 4, 8], pp=[1, 2, 4], dp=[8, 16, 32, 64]),
        {"zero": 1},
        TRAINED,
    ),
    "latent attention": (
        "deepseek-v3",
        JOINED,
        grid(tp=[1, 2, 4, 8], ep=[1, 8, 16, 64], pp=[1, 2, 4], dp=[64, 128, 256]),
        {"zero": 1, "recompute": "full"},
        TRAINED,
    ),
    **{
        f"{kind} of {model}": (
            model,
            JOINED,
            grid(tp=[1, 2, 4, 8], pp=[1, 2, 4], dp=[1, 2, 4, 8, 16], cp=[2, 4, 8]),
            {},
            work,
        )
        for model in ("llama3-70b", "mixtral-8x7b", "deepseek-v3")
        for kind, work in {
            "prefill": Prefill(batch=256, prompt_tokens=8192, dtype="fp8"),
            "decode": Decode(batch=256, context_tokens=4096),
        }.items()
    },
}


def figures(found: Any) -> dict[str, Any]:
    """Return whatever an estimate says, by name."""
    named_figures = {
        name: getattr(found, name) for name in ("time_s", "memory_bytes", "mfu", "hfu", "flops")
    }
    for name in ("parts_s", "compute_s", "comm_s", "exposed_s", "link_utilisation"):
        named_figures |= {f"{name} {key}": each for key, each in getattr(found, name).items()}
    return {**named_figures, **found.memory.by_kind()}


def assert_estimated_alike(found: Any, expected: Any) -> None:
    wanted = figures(expected)
    for name, each in figures(found).items():
        cells, other = to_numpy(each), wanted.pop(name)
        assert np.shape(cells) == np.shape(other), name
        # Parts are differences of times: what they are off by is a share of the whole.
        parts = name.startswith(("parts_s", "exposed_s"))
        near = CLOSE * np.max(expected.time_s) if parts else 0.0
        np.testing.assert_allclose(cells, other, rtol=CLOSE, atol=near, err_msg=name)
    assert not wanted
    assert isinstance(found.time_s, BackendArray)
    assert np.array_equal(found.memory.worst_stage, expected.memory.worst_stage)
    assert found.warnings == expected.warnings


@on_every_library
@pytest.mark.parametrize("family", FAMILIES)
def test_estimates(library: str, family: str) -> None:
    model, cluster, cells, fixed, work = FAMILIES[family]
    expected = estimate(model, cluster, Layout(**cells, **fixed), work)
    found = estimate(model, cluster, Layout(**on(library, cells), **fixed), work)
    assert expected.time_s.size >= 96
    assert_estimated_alike(found, expected)


@on_every_library
@pytest.mark.parametrize("software", ["vllm", "sglang", "trtllm"])
@pytest.mark.parametrize("model", ["llama3-70b", "gpt-oss-120b", "deepseek-v3"])
def test_serving_of_arrays_of_workloads_inside_a_node(
    library: str, software: str, model: str
) -> None:
    tp = axis([1, 2, 4, 8], 0, 3)
    batch, tokens = axis([1, 2, 7, 64, 256], 1, 3), axis([1, 100, 1000, 8192, 50000], 2, 3)
    for kind, name in ((Prefill, "prompt_tokens"), (Decode, "context_tokens")):
        sizes = {"batch": batch, name: tokens}
        expected = estimate(model, ALONE, Layout(tp=tp), kind(**sizes), software=software)
        layout = Layout(tp=moved(library, tp))
        found = estimate(model, ALONE, layout, kind(**on(library, sizes)), software=software)
        assert_estimated_alike(found, expected)


@on_every_library
def test_program_and_memory_by_themselves(library: str) -> None:
    model, software = Model.named("mixtral-8x7b"), Software.named("megatron_core")
    cells = grid(tp=[1, 2, 4], pp=[1, 2, 4], dp=[8, 16])
    here, there = Layout(**cells), Layout(**on(library, cells))
    expected, found = (program_of(model, each, TRAINED, software) for each in (here, there))
    assert_alike(found.send_bytes, expected.send_bytes)
    assert_alike(found.micro_batches, expected.micro_batches)
    assert_alike(found.stages.first.weights.total, expected.stages.first.weights.total)
    memory, wanted = (memory_of(model, each, TRAINED, device=DEVICE) for each in (there, here))
    assert_alike(memory.peak_bytes, wanted.peak_bytes)
    assert_alike(memory.fits(), wanted.fits())
    for name, held in memory.stages.items():
        assert (held.moment == wanted.stages[name].moment).all()
