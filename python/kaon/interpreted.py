"""Programs run by the reference interpreter instead of compiled code."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kaon.target import Statistics

if TYPE_CHECKING:
    import numpy.typing as npt

    from kaon import _C
    from kaon.interpreter import Interpreter


class InterpretedProgram:
    """The same program run by the reference interpreter: slow, and right by definition."""

    def __init__(self, interpreter: Interpreter, module_text: str):
        self.interpreter = interpreter
        self.module_text = module_text
        self.statistics = Statistics()
        self.target = "the reference interpreter"
        self._parameters = interpreter.parameters()
        self._arguments = [interpreter.arguments(parameter.symbols[0]) for parameter in self._parameters]

    def step(
        self, step: int, parameters: Sequence[int], scalars: Sequence[Sequence[float]], check_finite: bool = True
    ) -> int:
        """As :meth:`CompiledProgram.step`, on the same addresses."""
        import numpy as np

        matrices = self._matrices(parameters)
        if check_finite:
            poisoned = sum(
                not bool(np.isfinite(values[1].read()).all()) for values in matrices if values[1].address != 0
            )
            if poisoned:
                return poisoned
        for symbol, members in self.interpreter.schedule(step):
            for member in members:
                values = matrices[member]
                if values[1].address == 0:
                    continue
                parameter = self._parameters[member]
                tensors = [value.read() for value in values]
                results = self.interpreter.call(
                    symbol, *tensors, *scalars[parameter.scalar_set], step, phase=parameter.phase
                )
                for target, result in zip([values[0], *values[2:]], results, strict=True):
                    target.write(result)
        return 0

    def step_with(self, step: int, inputs: _C.StepInputs, check_finite: bool = True) -> int:
        """As :meth:`CompiledProgram.step_with`."""
        return self.step(step, inputs.addresses(), inputs.scalars(), check_finite)

    def _matrices(self, parameters: Sequence[int]) -> list[list[_Memory]]:
        """Per matrix: parameter, gradient and states."""
        position = 0
        matrices = []
        for arguments in self._arguments:
            tensors = [argument.type for argument in arguments if argument.role in ("param", "grad", "state")]
            addresses = parameters[position : position + 2 * len(tensors)]
            position += 2 * len(tensors)
            matrices.append(
                [
                    _Memory(address, stride, shape[0], shape[1], element)
                    for (_, shape, element), address, stride in zip(
                        tensors, addresses[0::2], addresses[1::2], strict=True
                    )
                ]
            )
        if position != len(parameters):
            raise ValueError(f"expects {position} addresses and strides, but got {len(parameters)}")
        return matrices


_STORAGE = {"f64": "f8", "f32": "f4", "f16": "f2", "bf16": "u2"}


@dataclass(frozen=True)
class _Memory:
    """A matrix somewhere in memory: rows ``row_stride`` elements apart, columns adjacent."""

    address: int
    row_stride: int
    rows: int
    cols: int
    element: str

    def _view(self) -> npt.NDArray[Any]:
        import numpy as np

        dtype = np.dtype(_STORAGE[self.element])
        if self.rows == 0 or self.cols == 0:
            return np.empty((self.rows, self.cols), dtype)
        length = ((self.rows - 1) * self.row_stride + self.cols) * dtype.itemsize
        memory = memoryview((ctypes.c_ubyte * length).from_address(self.address))
        strides = (self.row_stride * dtype.itemsize, dtype.itemsize)
        return np.ndarray((self.rows, self.cols), dtype, memory, 0, strides)

    def read(self) -> npt.NDArray[Any]:
        from kaon.interpreter import widen_bf16

        view = self._view()
        return widen_bf16(view) if self.element == "bf16" else view.astype("f8")

    def write(self, values: npt.NDArray[Any]) -> None:
        from kaon.interpreter import narrow_to_bf16

        self._view()[...] = narrow_to_bf16(values) if self.element == "bf16" else values
