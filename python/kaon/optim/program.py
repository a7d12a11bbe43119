"""One compiled program and the parameters it steps: addresses, staging, and the checks before a step.

A step's cost on the host matters for models of hundreds of parameters, so everything that can be kept is kept: the
addresses lie in a `_C.StepInputs`, and options are read again only where a group has other ones. Nothing is taken on
trust, though: parameters, gradients and states may be replaced by the user between steps, and kernels work on raw
addresses, so every tensor is compared with what it was at every step. The extension does that; where it finds another
address of the same gradient it corrects it, and where it finds anything else, or cannot tell, this module looks. A
class of parameters may make a gradient whenever it is asked for one, so it is asked once, and everything of the step is
about that gradient, which the inputs hold until `Program.release`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from kaon.extension import runtime_extension

from .bindings import Binding, Refresh
from .checkpoint import update_count
from .devices import target_for
from .parameters import PARAMETER_DTYPES, Route, compute_dtype, gradient_dtype

if TYPE_CHECKING:
    from kaon import _C
    from kaon.driver import CompiledProgram, InterpretedProgram, MatrixEntry

# Operands of one matrix; the states follow.
_PARAMETER, _GRADIENT, _STATES = 0, 1, 2

_WATCHED = ("params", "param_names", "step")
"""What of a group is no option: its parameters and its step are looked at by themselves."""


def exchange_api() -> object | None:
    """torch's C interface that describes tensors, which torch has from 2.10 on; without it attributes are read."""
    return getattr(Tensor, "__dlpack_c_exchange_api__", None)


def handle_maker() -> Callable[[list[Tensor]], list[Any]] | None:
    """What makes handles for torch's C functions about tensors, which shows the extension how to ask them; without it
    tensors are compared by `exchange_api`."""
    return getattr(getattr(torch._C, "_aoti", None), "unsafe_alloc_void_ptrs_from_tensors", None)


class Record:
    """A parameter in a program."""

    __slots__ = (
        "active",
        "binding",
        "counted",
        "device",
        "dtype",
        "entry",
        "gradient_buffer",
        "gradient_dtype",
        "group",
        "index",
        "label",
        "matrices",
        "name",
        "negate",
        "numel",
        "parameter",
        "parameter_buffer",
        "parameter_traits",
        "phase",
        "refreshes",
        "route",
        "row",
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
        self.matrices = len(route.view.matrices(self.shape))
        self.tensors: list[tuple[str, Tensor, _Traits]] = []
        self.parameter_traits: _Traits | None = None
        self.parameter_buffer: Tensor | None = None
        self.gradient_buffer: Tensor | None = None
        self.active = False
        self.row = -1
        self.entry: tuple[Any, ...] = ()

    # -- placing addresses into the inputs of steps ------------------------------------------------------------------

    def join(self, inputs: _C.StepInputs) -> None:
        """Take a row of `inputs`, with the states in it; parameter and gradient come when a step looks at them.

        Raises:
            ValueError: states that the update cannot take.
        """
        self.row = inputs.add(self.matrices, len(self.binding.update(self.group).signature.states))
        self._place_states(inputs)
        keys = {key: key for key in self.state or ()}  # the very objects, which are compared faster
        states = (item for name, tensor, _ in self.tensors for item in (keys[name], tensor))
        self.entry = (self.parameter, self.state, keys["step"] if self.counted else None, *states)

    def _place(self, inputs: _C.StepInputs, operand: int, tensor: Tensor, addresses: Sequence[tuple[int, int]]) -> None:
        base, size = tensor.data_ptr(), tensor.element_size()
        for matrix, (offset, stride) in enumerate(addresses):
            inputs.place(self.row, matrix, operand, base + offset * size, stride)

    def place_parameter(self, inputs: _C.StepInputs) -> None:
        """If the parameter moved: find it, or a staging buffer for it where kernels cannot work on it in place."""
        parameter = self.parameter
        traits = _traits(parameter)
        if traits == self.parameter_traits:
            return
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
            staged = self.route.view.addresses(self.parameter_buffer) or []
            self._place(inputs, _PARAMETER, self.parameter_buffer, staged)
        else:
            self.parameter_buffer = None
            self._place(inputs, _PARAMETER, parameter, addresses)
        self.parameter_traits = traits

    def place_gradient(self, inputs: _C.StepInputs, gradient: Tensor) -> None:
        """Find the gradient, or a staging buffer for it where kernels cannot read it in place."""
        if gradient.device != self.device:
            raise ValueError(
                f"expects the gradient of {self.label} on {self.device}, as the parameter, but it is on "
                f"{gradient.device}"
            )
        self._check_gradient(gradient)
        direct = gradient.dtype == self.gradient_dtype and not self.negate
        addresses = self.route.view.addresses(gradient) if direct else None
        if addresses is not None:
            self.gradient_buffer = None
            self._place(inputs, _GRADIENT, gradient, addresses)
        else:
            if self.gradient_buffer is None:
                self.gradient_buffer = torch.empty(self.shape, dtype=self.gradient_dtype, device=self.device)
            staged = self.route.view.addresses(self.gradient_buffer) or []
            self._place(inputs, _GRADIENT, self.gradient_buffer, staged)
        self.active = True

    def _place_states(self, inputs: _C.StepInputs) -> None:
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
            if tensor.is_neg():
                raise ValueError(
                    f"expects state {spec.name} of {self.label} as its elements are, but got a view of their "
                    "negatives; replace it by its resolve_neg()"
                )
            if tensor.device != self.device:
                raise ValueError(
                    f"expects state {spec.name} of {self.label} on {self.device}, as the parameter, but it is on "
                    f"{tensor.device}; make the optimizer after moving the model"
                )
            self._place(inputs, _STATES + index, tensor, self.route.view.state_addresses(self.shape, spec.kind))
            self.tensors.append((spec.name, tensor, _traits(tensor)))

    def has_states(self) -> bool:
        """Whether the states are still those whose addresses the program has."""
        state = self.state
        assert state is not None
        if self.counted and type(state.get("step")) is not int:
            return False
        return all(state.get(name) is tensor and _traits(tensor) == traits for name, tensor, traits in self.tensors)

    def clear(self, inputs: _C.StepInputs) -> None:
        """No gradient: tell the program to leave this parameter alone."""
        inputs.clear(self.row)
        self.active = False

    def staged(self) -> dict[str, tuple[int, int]]:
        """What is copied at every step, the parameter or its gradient, because kernels cannot work on it where it is:
        bytes of the buffer, and bytes moved. Without a gradient yet, it is taken to be laid out as the parameter."""
        parameter = self.parameter
        gradient = parameter.grad if self.active else None
        if gradient is None:
            gradient = parameter
        staged = {}
        if self.route.view.addresses(parameter) is None:
            size = self.numel * parameter.element_size()
            staged["parameter"] = (size, 4 * size)  # read and written on the way in and on the way back
        direct = not self.negate and (gradient is parameter or gradient.dtype == self.gradient_dtype)
        if not direct or self.route.view.addresses(gradient) is None:
            size = self.numel * self.gradient_dtype.itemsize
            staged["gradient"] = (size, size + self.numel * gradient.element_size())
        return staged

    def stage(self, inputs: _C.StepInputs) -> None:
        """Copy what kernels cannot work on where it is."""
        if self.gradient_buffer is not None:
            self.gradient_buffer.copy_(inputs.gradient(self.row))
            if self.negate:
                self.gradient_buffer.neg_()
        if self.parameter_buffer is not None:
            self.parameter_buffer.copy_(self.parameter)

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
        if gradient.data_ptr() == 0:
            raise TypeError(
                f"expects the gradient of {self.label} in memory, but this {type(gradient).__name__} has none"
            )


class Program:
    """The records of groups with one step count, on one `device`, and the compiled program that steps them."""

    def __init__(
        self, records: Sequence[Record], device: torch.device, threads: int | None, product_dtype: str | None = None
    ) -> None:
        self.records = [record for record in records if record.state is not None and record.numel]
        self._dormant = tuple(record.parameter for record in records if record.state is None)
        self.device = device
        self._threads = threads
        self._product_dtype = product_dtype
        self._compiled: CompiledProgram | InterpretedProgram | None = None
        self._groups = list({id(record.group): record.group for record in records}.values())
        self._members = [(group, tuple(group["params"])) for group in self._groups]
        pairs = {(id(record.group), id(record.binding)): (record.group, record.binding) for record in records}
        self._snapshots = [
            (group, keys, _take(group, keys))
            for group, binding in pairs.values()
            for keys in ((*binding.structure_keys, "maximize", "phase"),)
        ]
        self._options: list[tuple[Any, ...] | None] = [None] * len(self._groups)
        # Records of one group, update and decay share the values of their scalars, except for their update counts.
        self._shared_scalars: list[tuple[Binding, dict[str, Any], bool, list[str]]] = []
        self._extension = runtime_extension()
        self._inputs: _C.StepInputs = self._extension.StepInputs(Tensor, exchange_api(), handle_maker())
        self._entries = self._lay_out()
        self._tensors = [record.entry for record in self.records]
        self._counts_updates = any(record.counted for record in self.records)
        # What follows from which records have a gradient, and where it lies; None where that has changed.
        self._active: list[Record] | None = None
        self._parameters: list[Tensor] = []
        self._staged: list[Record] = []

    def _lay_out(self) -> list[MatrixEntry]:
        """One entry per matrix; their rows and scalars in the inputs."""
        from kaon.driver import MatrixEntry

        entries: list[MatrixEntry] = []
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
            record.join(self._inputs)
            own = (shared[key], record.row if record.counted else -1)
            if own not in sets:
                sets[own] = len(sets)
                self._inputs.add_scalars(shared[key], len(self._shared_scalars[shared[key]][3]), own[1])
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
        return entries

    # -- a step -----------------------------------------------------------------------------------------------------

    def collect(self, states: Mapping[Tensor, dict[str, Tensor]]) -> bool:
        """Check everything a step needs and bring addresses and scalars up to date. Changes nothing of the user's, and
        holds gradients until `release`.

        Returns False where the program no longer fits (an option that is compiled in has changed, states were
        replaced, a parameter was unfrozen), so that a new one has to be built.

        Raises:
            ValueError, TypeError, RuntimeError: an option or gradient that cannot be used.
        """
        if not self._has_same_groups() or not self._read_options():
            return False
        for row in self._inputs.compare(self._tensors, states):
            self._active = None
            if not self._look_at(self.records[row], states):
                return False
        if self._active is None:
            self._active = [record for record in self.records if record.active]
            self._parameters = [record.parameter for record in self._active]
            self._staged = [
                record
                for record in self._active
                if record.gradient_buffer is not None or record.parameter_buffer is not None
            ]
        for record in self._staged:
            record.stage(self._inputs)
        return True

    def release(self) -> None:
        """Let go of the gradients: the step is over, or does not take place."""
        self._inputs.release()

    def _has_same_groups(self) -> bool:
        """Whether groups have the parameters that the program was made for, and still go together."""
        if len({group["step"] for group in self._groups}) > 1:
            return False
        same = self._extension.has_same_objects
        if not all(same(group["params"], members) for group, members in self._members):
            return False
        return not self._extension.any_to_update(self._dormant)

    def _read_options(self) -> bool:
        """Bring scalars up to date where an option may be another one; False where one that is compiled in is."""
        same = self._extension.has_same_items
        if all(
            options is not None and same(group, options)
            for group, options in zip(self._groups, self._options, strict=True)
        ):
            return True
        if any(_take(group, keys) != taken for group, keys, taken in self._snapshots):
            return False
        options = [_options(group) for group in self._groups]
        for index, (binding, group, decay, names) in enumerate(self._shared_scalars):
            values = binding.values(group, decay)
            self._inputs.set_values(index, [values[name] for name in names])
        self._options = options
        return True

    def _look_at(self, record: Record, states: Mapping[Tensor, dict[str, Tensor]]) -> bool:
        """Check and place a record whose tensors may be others; False where the program does not fit them."""
        parameter = record.parameter
        gradient = self._inputs.gradient(record.row)
        if gradient is None:
            record.clear(self._inputs)
            return True
        if states.get(parameter) is not record.state or not record.has_states():
            return False
        if gradient.layout is not torch.strided:
            record._check_gradient(gradient)
        if gradient_dtype(parameter.dtype, gradient.dtype) is not record.gradient_dtype and not record.negate:
            return False
        record.place_parameter(self._inputs)
        record.place_gradient(self._inputs, gradient)
        self._inputs.accept(record.row, record.entry, gradient, record.gradient_buffer is None)
        return True

    def compile(self) -> CompiledProgram | InterpretedProgram | None:
        """The compiled program (or, under `KAON_INTERPRET=1`, the interpreted one); None where there is no matrix."""
        if self._compiled is None and self._entries:
            from kaon import driver, knobs

            if not knobs.runtime.interpret:
                target = target_for(self.device, self._threads, self._product_dtype)
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
        compiled = self.compile()
        if not self._active or compiled is None:
            return 0
        bad = compiled.step_with(self._groups[0]["step"] + 1, self._inputs, check_finite)
        if bad and check_finite:
            return bad
        # Kernels write past autograd: let a backward through an older graph see that these values have changed. This
        # comes first, since states of the user's own kind may refuse to be counted.
        increment_version(self._parameters)
        for record in self._staged:
            if record.parameter_buffer is not None:
                record.parameter.copy_(record.parameter_buffer)
        if self._counts_updates:
            self._inputs.count_updates(self._tensors)
        return 0

    def nonfinite_records(self) -> list[Record]:
        """The records whose gradient, as the program reads it, is not finite; between `collect` and `release`."""
        active = [record for record in self.records if record.active]
        if not active:
            return []
        finite = torch.stack([torch.isfinite(self._gradient(record)).all() for record in active])
        return [
            record for record, good in zip(active, finite.tolist(), strict=True) if not good
        ]  # one copy to the host

    def _gradient(self, record: Record) -> Tensor:
        gradient: Tensor = self._inputs.gradient(record.row)
        return gradient if record.gradient_buffer is None else record.gradient_buffer

    @property
    def inputs(self) -> _C.StepInputs:
        """Addresses and scalars, as `collect` left them."""
        return self._inputs

    @property
    def entries(self) -> list[MatrixEntry]:
        """The matrices, in the order of the program."""
        return self._entries

    @property
    def compiled(self) -> CompiledProgram | InterpretedProgram | None:
        """The compiled program, if there is one yet."""
        return self._compiled


_Traits = tuple[int, torch.Size, tuple[int, ...], torch.dtype, torch.device, bool]


def _traits(tensor: Tensor) -> _Traits:
    """Where a tensor lies, and how."""
    return tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype, tensor.device, tensor.is_neg()


def _options(group: Mapping[str, Any]) -> tuple[Any, ...] | None:
    """The items of `group` for `has_same_items`; None where an option could change without becoming another object."""
    items: list[Any] = []
    for key, value in group.items():
        if key in _WATCHED:
            value = ...
        elif not _is_constant(value):
            return None
        items += (key, value)
    return tuple(items)


def _is_constant(value: Any) -> bool:
    if type(value) is tuple:
        return all(map(_is_constant, value))
    return value is None or type(value) in (bool, int, float, str)


def _take(group: Mapping[str, Any], keys: Sequence[str]) -> list[Any]:
    return [group.get(key) for key in keys]
