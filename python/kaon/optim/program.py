"""One compiled program and the parameters it steps: addresses, staging, and the checks before a step.

A step's cost in Python matters for models of hundreds of parameters, so everything that can be kept is kept: the flat
list of addresses is rewritten only where something moved. Nothing is taken on trust, though: parameters, gradients
and states may be replaced by the user between steps, and kernels work on raw addresses, so each address is compared
with the tensor that owns it at every step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from .bindings import Binding, Refresh
from .checkpoint import update_count
from .devices import target_for
from .parameters import PARAMETER_DTYPES, Route, compute_dtype, gradient_dtype

if TYPE_CHECKING:
    from kaon.driver import CompiledProgram, InterpretedProgram, MatrixEntry

# Slots of one matrix in the flat list that a program takes, before the two of each state.
_PARAMETER, _GRADIENT, _STATES = 0, 2, 4

_FAR = 1 << 62
"""No address: makes the next comparison fail, so that addresses are taken anew."""


class Record:
    """A parameter in a program."""

    __slots__ = (
        "active",
        "binding",
        "counted",
        "device",
        "dtype",
        "gradient_address",
        "gradient_addresses",
        "gradient_buffer",
        "gradient_dtype",
        "gradient_stride",
        "group",
        "index",
        "label",
        "name",
        "negate",
        "numel",
        "parameter",
        "parameter_address",
        "parameter_buffer",
        "parameter_stride",
        "phase",
        "positions",
        "refreshes",
        "route",
        "shape",
        "state",
        "tensors",
    )

    def __init__(
        self,
        *,
        index: int,
        parameter: Tensor,
        label: str,
        name: str,
        group: dict[str, Any],
        binding: Binding,
        route: Route,
        state: dict[str, Any] | None,
        refreshes: tuple[Refresh, ...],
        phase: int,
    ) -> None:
        self.index = index
        self.parameter = parameter
        self.label = label
        self.name = name
        self.group = group
        self.binding = binding
        self.route = route
        self.state = state
        self.refreshes = refreshes
        self.phase = phase
        self.counted = binding.counts_updates
        self.shape = parameter.shape
        self.dtype = parameter.dtype
        self.device = parameter.device
        self.numel = parameter.numel()
        gradient = parameter.grad
        self.gradient_dtype = gradient_dtype(parameter.dtype, parameter.dtype if gradient is None else gradient.dtype)
        self.negate = bool(group["maximize"]) and not binding.handles_maximize()
        self.positions: list[int] = []
        self.tensors: list[tuple[str, Tensor, int]] = []
        self.parameter_buffer: Tensor | None = None
        self.gradient_buffer: Tensor | None = None
        self.gradient_addresses: list[tuple[int, int]] | None = None
        self.forget_addresses()

    def forget_addresses(self) -> None:
        """Take all addresses anew at the next step."""
        self.parameter_address = _FAR
        self.parameter_stride: tuple[int, ...] = ()
        self.gradient_address = _FAR
        self.gradient_stride: tuple[int, ...] = ()
        self.active = False

    # -- placing addresses into the flat list -------------------------------------------------------------------------

    def _place(self, flat: list[int], slot: int, tensor: Tensor, addresses: Sequence[tuple[int, int]]) -> None:
        base, size = tensor.data_ptr(), tensor.element_size()
        for position, (offset, stride) in zip(self.positions, addresses, strict=True):
            flat[position + slot] = base + offset * size
            flat[position + slot + 1] = stride

    def place_parameter(self, flat: list[int]) -> None:
        """The parameter moved: find it, or a staging buffer for it where kernels cannot work on it in place."""
        parameter = self.parameter
        if parameter.shape != self.shape or parameter.dtype != self.dtype:
            raise ValueError(
                f"{self.label} and {self.dtype} has shape {tuple(parameter.shape)} and {parameter.dtype} now; "
                "make a new optimizer for it"
            )
        if parameter.device != self.device:
            raise ValueError(
                f"{self.label} was on {self.device}, but is on {parameter.device} now; make the optimizer after moving "
                "the model"
            )
        addresses = self.route.view.addresses(parameter)
        if addresses is None:
            self.parameter_buffer = torch.empty(self.shape, dtype=parameter.dtype, device=self.device)
            self._place(flat, _PARAMETER, self.parameter_buffer, self.route.view.addresses(self.parameter_buffer) or [])
        else:
            self.parameter_buffer = None
            self._place(flat, _PARAMETER, parameter, addresses)
        self.parameter_address = parameter.data_ptr()
        self.parameter_stride = parameter.stride()

    def place_gradient(self, flat: list[int], gradient: Tensor) -> None:
        """The gradient moved, or is of another layout: find it, or a staging buffer for it."""
        stride = gradient.stride()
        if gradient.device != self.device:
            raise ValueError(
                f"expects the gradient of {self.label} on {self.device}, as the parameter, but it is on "
                f"{gradient.device}"
            )
        if stride != self.gradient_stride or not self.active:
            self._check_gradient(gradient)
            direct = gradient.dtype == self.gradient_dtype and not self.negate
            self.gradient_addresses = self.route.view.addresses(gradient) if direct else None
            self.gradient_stride = stride
        if self.gradient_addresses is not None:
            self.gradient_buffer = None
            self._place(flat, _GRADIENT, gradient, self.gradient_addresses)
        elif self.gradient_buffer is None or not self.active:
            if self.gradient_buffer is None:
                self.gradient_buffer = torch.empty(self.shape, dtype=self.gradient_dtype, device=self.device)
            self._place(flat, _GRADIENT, self.gradient_buffer, self.route.view.addresses(self.gradient_buffer) or [])
        self.gradient_address = gradient.data_ptr()
        self.active = True

    def place_states(self, flat: list[int]) -> None:
        """States are contiguous tensors of our own: find them once."""
        assert self.state is not None
        if self.counted:
            self.state["step"] = update_count(self.state["step"], self.label)
        self.tensors = []
        specs = self.binding.update(self.group).signature.states
        for index, spec in enumerate(specs):
            tensor = self.state[spec.name]
            shape, dtype = self.route.view.state_shape(self.shape, spec.kind), compute_dtype(self.parameter.dtype)
            if tuple(tensor.shape) != shape or tensor.dtype != dtype or not tensor.is_contiguous():
                raise ValueError(
                    f"expects state {spec.name} of {self.label} as contiguous {dtype} of shape {shape}, but got "
                    f"{tensor.dtype} of shape {tuple(tensor.shape)} and strides {tensor.stride()}"
                )
            if tensor.device != self.device:
                raise ValueError(
                    f"expects state {spec.name} of {self.label} on {self.device}, as the parameter, but it is on "
                    f"{tensor.device}; make the optimizer after moving the model"
                )
            self._place(flat, _STATES + 2 * index, tensor, self.route.view.state_addresses(self.shape, spec.kind))
            self.tensors.append((spec.name, tensor, tensor.data_ptr()))

    def clear(self, flat: list[int]) -> None:
        """No gradient: tell the program to leave this parameter alone."""
        if self.active:
            for position in self.positions:
                flat[position + _GRADIENT] = 0
            self.active = False

    def updates(self) -> int:
        """How often this parameter was updated."""
        return self.state.get("step", 0) if self.state else 0

    def staged(self) -> dict[str, tuple[int, int]]:
        """What is copied at every step, the parameter or its gradient, because kernels cannot work on it where it is:
        bytes of the buffer, and bytes moved. Without a gradient yet, it is taken to be laid out as the parameter."""
        parameter = self.parameter
        gradient = parameter.grad if self.active and parameter.grad is not None else parameter
        staged = {}
        if self.route.view.addresses(parameter) is None:
            size = self.numel * parameter.element_size()
            staged["parameter"] = (size, 4 * size)  # read and written on the way in and on the way back
        direct = not self.negate and (gradient is parameter or gradient.dtype == self.gradient_dtype)
        if not direct or self.route.view.addresses(gradient) is None:
            size = self.numel * self.gradient_dtype.itemsize
            staged["gradient"] = (size, size + self.numel * gradient.element_size())
        return staged

    def _check_gradient(self, gradient: Tensor) -> None:
        if gradient.layout != torch.strided:
            raise RuntimeError(f"expects dense gradients, but that of {self.label} has layout {gradient.layout}")
        if gradient.dtype not in PARAMETER_DTYPES:
            raise TypeError(
                f"the gradient of {self.label} is {gradient.dtype}, the parameter {self.parameter.dtype} and its "
                f"states {compute_dtype(self.parameter.dtype)}; expects a real floating-point gradient"
            )
        if gradient.shape != self.shape:
            raise ValueError(f"the gradient of {self.label} has shape {tuple(gradient.shape)}")


class Program:
    """The records of groups with one step count, on one `device`, and the compiled program that steps them."""

    def __init__(self, records: Sequence[Record], device: torch.device, threads: int | None) -> None:
        self.records = [record for record in records if record.state is not None and record.numel]
        self._dormant = [record.parameter for record in records if record.state is None]
        self.device = device
        self._threads = threads
        self._compiled: CompiledProgram | InterpretedProgram | None = None
        self._groups = list({id(record.group): record.group for record in records}.values())
        self._members = [(group, list(map(id, group["params"]))) for group in self._groups]
        pairs = {(id(record.group), id(record.binding)): (record.group, record.binding) for record in records}
        self._snapshots = [
            (group, keys, _take(group, keys))
            for group, binding in pairs.values()
            for keys in ((*binding.structure_keys, "maximize", "phase"),)
        ]
        # Records of one group, update and decay share the values of their scalars, except for their update counts.
        self._shared_scalars: list[tuple[Binding, dict[str, Any], bool, list[str]]] = []
        self._scalar_sets: list[tuple[int, Record | None]] = []
        self._entries, self._flat = self._lay_out()
        self._scalars: list[list[float]] = []

    def _lay_out(self) -> tuple[list[MatrixEntry], list[int]]:
        """One entry per matrix, and the flat list of their addresses, all of them still to be placed."""
        from kaon.driver import MatrixEntry

        entries: list[MatrixEntry] = []
        flat: list[int] = []
        shared: dict[tuple[int, int, bool], int] = {}
        sets: dict[tuple[int, int], int] = {}
        for record in self.records:
            group, binding, route = record.group, record.binding, record.route
            key = (id(group), id(binding), route.decay)
            update = binding.update(group)
            if key not in shared:
                shared[key] = len(shared)
                names = [spec.name for spec in update.signature.scalars]
                self._shared_scalars.append((binding, group, route.decay, names[record.counted :]))
            own = (shared[key], record.index if record.counted else -1)
            if own not in sets:
                sets[own] = len(sets)
                self._scalar_sets.append((shared[key], record if record.counted else None))
            matrices = route.view.matrices(record.shape)
            for index, matrix in enumerate(matrices):
                entries.append(
                    MatrixEntry(
                        update=update,
                        rows=matrix.rows,
                        cols=matrix.cols,
                        param_dtype=PARAMETER_DTYPES[record.parameter.dtype],
                        grad_dtype=PARAMETER_DTYPES[record.gradient_dtype],
                        constexprs=binding.constexprs(group, matrix.rows, matrix.cols),
                        name=record.name if len(matrices) == 1 else f"{record.name}[{index}]",
                        scalar_set=sets[own],
                        phase=record.phase,
                    )
                )
                record.positions.append(len(flat))
                flat.extend([0] * (_STATES + 2 * len(update.signature.states)))
            record.place_states(flat)
        return entries, flat

    # -- a step -----------------------------------------------------------------------------------------------------

    def collect(self, states: Mapping[Tensor, dict[str, Tensor]]) -> bool:
        """Check everything a step needs and bring addresses and scalars up to date. Changes nothing of the user's.

        Returns False where the program no longer fits (an option that is compiled in has changed, states were
        replaced, a parameter was unfrozen), so that a new one has to be built.

        Raises:
            ValueError, TypeError, RuntimeError: an option or gradient that cannot be used.
        """
        steps = {group["step"] for group in self._groups}
        if len(steps) > 1 or any(_take(group, keys) != taken for group, keys, taken in self._snapshots):
            return False
        if any(list(map(id, group["params"])) != members for group, members in self._members):
            return False
        if any(parameter.requires_grad and parameter.grad is not None for parameter in self._dormant):
            return False
        shared = [
            [values[name] for name in names]
            for binding, group, decay, names in self._shared_scalars
            for values in (binding.values(group, decay),)
        ]
        flat = self._flat
        staged: list[tuple[Record, Tensor]] = []
        for record in self.records:
            parameter = record.parameter
            gradient = parameter.grad
            if gradient is None or not parameter.requires_grad:
                record.clear(flat)
                continue
            state = record.state
            if states.get(parameter) is not state:
                return False
            for name, tensor, address in record.tensors:
                if state.get(name) is not tensor or tensor.data_ptr() != address:  # type: ignore[union-attr]
                    return False
            if record.counted and type(state.get("step")) is not int:  # type: ignore[union-attr]
                return False
            if gradient.layout is not torch.strided:
                record._check_gradient(gradient)
            if gradient_dtype(parameter.dtype, gradient.dtype) is not record.gradient_dtype and not record.negate:
                return False
            if parameter.data_ptr() != record.parameter_address or parameter.stride() != record.parameter_stride:
                record.place_parameter(flat)
            if (
                gradient.data_ptr() != record.gradient_address
                or not record.active
                or gradient.stride() != record.gradient_stride
                or gradient.numel() != record.numel
            ):
                record.place_gradient(flat, gradient)
            if record.gradient_addresses is None or record.parameter_buffer is not None:
                staged.append((record, gradient))
        self._scalars = [
            shared[values] if record is None else [record.updates() + 1.0, *shared[values]]
            for values, record in self._scalar_sets
        ]
        for record, gradient in staged:
            if record.gradient_buffer is not None:
                record.gradient_buffer.copy_(gradient)
                if record.negate:
                    record.gradient_buffer.neg_()
            if record.parameter_buffer is not None:
                record.parameter_buffer.copy_(record.parameter)
        return True

    def compile(self) -> CompiledProgram | InterpretedProgram | None:
        """The compiled program (or, under `KAON_INTERPRET=1`, the interpreted one); None where there is no matrix."""
        if self._compiled is None and self._entries:
            from kaon import driver, knobs

            if not knobs.runtime.interpret:
                target = target_for(self.device, self._threads)
                self._compiled = driver.compile_program(self._entries, target=target)
            elif self.device.type == "cpu":
                self._compiled = driver.interpret_program(self._entries)
            else:
                raise driver.DriverError(
                    f"KAON_INTERPRET=1 expects parameters on the CPU, but {self.records[0].label} is on {self.device}"
                )
        return self._compiled

    def run(self, check_finite: bool) -> int:
        """Step what `collect` gathered; returns the number of matrices with a gradient that is not finite (then, with
        `check_finite`, nothing was changed)."""
        active = [record for record in self.records if record.active]
        compiled = self.compile()
        if not active or compiled is None:
            return 0
        bad = compiled.step(self._groups[0]["step"] + 1, self._flat, self._scalars, check_finite)
        if bad and check_finite:
            return bad
        for record in active:
            if record.parameter_buffer is not None:
                record.parameter.copy_(record.parameter_buffer)
            if record.counted:
                record.state["step"] += 1  # type: ignore[index]
        # Kernels write past autograd: let a backward through an older graph see that these values have changed.
        increment_version([record.parameter for record in active])
        return 0

    def nonfinite_records(self) -> list[Record]:
        """The records whose gradient, as the program reads it, is not finite."""
        active = [record for record in self.records if record.active]
        if not active:
            return []
        finite = torch.stack([torch.isfinite(_gradient(record)).all() for record in active])
        return [
            record for record, good in zip(active, finite.tolist(), strict=True) if not good
        ]  # one copy to the host

    @property
    def entries(self) -> list[MatrixEntry]:
        """The matrices, in the order of the program."""
        return self._entries

    @property
    def compiled(self) -> CompiledProgram | InterpretedProgram | None:
        """The compiled program, if there is one yet."""
        return self._compiled


def _gradient(record: Record) -> Tensor:
    gradient = record.parameter.grad
    assert gradient is not None
    return gradient if record.gradient_buffer is None else record.gradient_buffer


def _take(group: Mapping[str, Any], keys: Sequence[str]) -> list[Any]:
    return [group.get(key) for key in keys]
