"""What the tests of the runtime hand to a step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np


def flat_arguments(matrices: Sequence[Sequence[np.ndarray[Any, Any]]], skipped: Sequence[int] = ()) -> list[int]:
    """Address and row stride of every array, per matrix its parameter, gradient and states; the matrices in ``skipped``
    have no gradient."""
    integers = []
    for index, arrays in enumerate(matrices):
        for position, array in enumerate(arrays):
            is_skipped = position == 1 and index in skipped
            integers += [0 if is_skipped else array.ctypes.data, array.strides[0] // array.itemsize]
    return integers
