"""Hypothesis strategies that several test files share."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

sizes = st.integers(1, 1 << 20)
gpus = st.integers(1, 4096)
layers = st.integers(0, 512)
widths = st.sampled_from([1, 2, 4, 8])
bandwidths = st.floats(1e-3, 1e5)
per_layer = st.integers(0, 8)


@st.composite
def allreduce_arguments(draw: st.DrawFn) -> dict[str, Any]:
    """Return arguments of the front-door function, from toy to beyond 2**53 bytes."""
    return {
        "hidden_size": draw(sizes),
        "sequence_length": draw(sizes),
        "batch_size": draw(sizes),
        "num_gpus": draw(gpus),
        "num_layers": draw(layers),
        "bytes_per_element": draw(widths),
        "bandwidth_gb_per_sec": draw(bandwidths),
        "allreduces_per_layer": draw(per_layer),
    }
