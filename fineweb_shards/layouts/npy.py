"""Make the header of a NumPy array in a file, as `numpy.save` does."""

from __future__ import annotations

import io

import numpy as np

from fineweb_shards.types import Dtype

NPY_HEADER_BYTES = 128  # for a row of any length


def npy_header(length: int, dtype: Dtype) -> bytes:
    """Return what comes before the data of a row of `length` numbers."""
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        buffer, {"descr": dtype.str, "fortran_order": False, "shape": (length,)}
    )
    header = buffer.getvalue()
    assert len(header) == NPY_HEADER_BYTES
    return header
