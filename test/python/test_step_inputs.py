"""What a step works on is compared with what it was: whatever is replaced, moved or changed between steps is noticed.

All ways to read a tensor are tested: torch's C interface, where this torch has it, with and without the C functions by
which tensors are compared where these can tell, and attributes.
"""

from __future__ import annotations

import ctypes
import gc
import sys
import weakref
from collections.abc import Callable
from typing import Any

import kaon.optim.program
import pytest
import torch
from kaon import _C
from kaon.optim import AdamW, Muon, PeriodicRowwiseMuon, Rule, default_rules
from optim_tools import assert_bitwise, parameters, set_gradients, snapshot, tensor_states
from torch import Tensor, nn

HAS_EXCHANGE = kaon.optim.program.exchange_api() is not None
HAS_FUNCTIONS = kaon.optim.program.handle_maker() is not None


@pytest.fixture(params=["functions", "exchange", "attributes"])
def reading(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, ...]:
    """What tensors are read and compared by, for `_C.StepInputs`; optimizers get the same."""
    if request.param != "functions":
        monkeypatch.setattr("kaon.optim.program.handle_maker", lambda: None)
    if request.param == "attributes":
        monkeypatch.setattr("kaon.optim.program.exchange_api", lambda: None)
    elif not HAS_EXCHANGE:
        pytest.skip("this torch has no __dlpack_c_exchange_api__")
    elif request.param == "functions" and not HAS_FUNCTIONS:
        pytest.skip("this torch has no handles for its C functions")
    return kaon.optim.program.exchange_api(), kaon.optim.program.handle_maker()


class Watched:
    """One parameter of one matrix with one state, and the inputs of its steps."""

    def __init__(self, reading: Any) -> None:
        self.parameter = nn.Parameter(torch.zeros(4, 6))
        self.parameter.grad = torch.zeros(4, 6)
        self.state: dict[str, Any] = {"m": torch.zeros(4, 6), "step": 7}
        self.inputs = _C.StepInputs(Tensor, *reading)
        self.row = self.inputs.add(matrices=1, states=1)
        self.inputs.add_scalars(0, 2, self.row)
        self.states: dict[Any, Any] = {self.parameter: self.state}
        self.entry = (self.parameter, self.state, "step", "m", self.state["m"])
        self.place(self.parameter, self.gradient, self.state["m"])
        self.inputs.accept(self.row, self.entry, self.gradient, True)
        assert self.changed() == []

    @property
    def gradient(self) -> Tensor:
        assert self.parameter.grad is not None
        return self.parameter.grad

    def place(self, *tensors: Tensor) -> None:
        for operand, tensor in enumerate(tensors):
            self.inputs.place(self.row, 0, operand, tensor.data_ptr(), tensor.stride(0))

    def changed(self) -> list[int]:
        return self.inputs.compare([self.entry], self.states)

    def address(self, operand: int) -> int:
        return self.inputs.addresses()[2 * operand]


def test_the_way_to_read_is_the_one_asked_for(reading: Any) -> None:
    exchange, make_handles = reading
    inputs = _C.StepInputs(Tensor, *reading)
    assert inputs.uses_exchange == (exchange is not None)
    assert inputs.uses_shim == (make_handles is not None)


# ---- one row


def _set(attribute: str, value: Callable[[Watched], Any]) -> Callable[[Watched], None]:
    return lambda watched: setattr(watched.parameter, attribute, value(watched))


class _Sub(Tensor):
    pass


class _Wrapper(Tensor):
    """A tensor without memory of its own, as distributed ones are."""

    @staticmethod
    def __new__(cls, shape: tuple[int, ...]) -> _Wrapper:
        made: _Wrapper = Tensor._make_wrapper_subclass(cls, shape)  # type: ignore[attr-defined]
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return NotImplemented


NOTICED: dict[str, Callable[[Watched], Any]] = {
    "parameter moved": _set("data", lambda w: w.parameter.data.clone()),
    "parameter transposed": _set("data", lambda w: w.parameter.data.as_strided((4, 6), (1, 4))),
    "parameter of fewer rows": _set("data", lambda w: w.parameter.data[:3]),
    "parameter flattened": _set("data", lambda w: w.parameter.data.flatten()),
    "parameter frozen": lambda w: w.parameter.requires_grad_(False),
    "no gradient": _set("grad", lambda w: None),
    "gradient of another layout": _set("grad", lambda w: torch.zeros(6, 4).t()),
    "gradient expanded": _set("grad", lambda w: torch.zeros(6).expand(4, 6)),
    "gradient changed in place": lambda w: w.gradient.as_strided_((4, 6), (1, 4)),
    "sparse gradient": _set("grad", lambda w: torch.eye(4, 6).to_sparse()),
    "state replaced": lambda w: w.state.update(m=w.state["m"].clone()),
    "state removed": lambda w: w.state.pop("m"),
    "state moved": lambda w: setattr(w.state["m"], "data", w.state["m"].data.clone()),
    "state transposed in place": lambda w: w.state["m"].as_strided_((4, 6), (1, 4)),
    "state of another type": lambda w: setattr(w.state["m"], "data", w.state["m"].double()),
    "count of another type": lambda w: w.state.update(step=7.0),
    "count is a truth value": lambda w: w.state.update(step=True),
    "count removed": lambda w: w.state.pop("step"),
    "states replaced": lambda w: w.states.update({w.parameter: dict(w.state)}),
    "states removed": lambda w: w.states.clear(),
    "parameter exchanged": lambda w: _exchange(w.parameter, nn.Parameter(torch.ones(4, 6))),
    "parameter exchanged for a transposed one": lambda w: _exchange(w.parameter, nn.Parameter(torch.ones(6, 4).t())),
    "state exchanged": lambda w: _exchange(w.state["m"], torch.ones(4, 6)),
    "state exchanged for a sparse one": lambda w: _exchange(w.state["m"], torch.eye(4, 6).to_sparse()),
    "state exchanged for an opaque one": lambda w: _exchange(w.state["m"], torch.ones(4, 6).to_mkldnn()),
    "state exchanged for one without memory": lambda w: _exchange(w.state["m"], _Wrapper((4, 6))),
    "state of fewer columns": lambda w: w.state["m"].as_strided_((4, 5), (6, 1)),
    "state of fewer dimensions": lambda w: w.state["m"].as_strided_((4,), (6,)),
    "state of more dimensions": lambda w: w.state["m"].unsqueeze_(2),
    "state of rows further apart": lambda w: w.state["m"].as_strided_((4, 6), (5, 1)),
    "state of another type at its address": lambda w: setattr(w.state["m"], "data", w.state["m"].view(torch.int32)),
}


def _exchange(tensor: Tensor, other: Tensor) -> None:
    """Give `tensor` what `other` is, as `module.to` may: it stays the same object in Python. A parameter keeps its
    gradient."""
    gradient = tensor.grad
    torch.utils.swap_tensors(tensor, other)
    tensor.grad = gradient


@pytest.mark.parametrize("change", NOTICED.values(), ids=list(NOTICED))
def test_what_changes_is_noticed(reading: Any, change: Callable[[Watched], Any]) -> None:
    watched = Watched(reading)
    watched.inputs.release()  # a step is over
    change(watched)
    assert watched.changed() == [watched.row]
    assert watched.changed() == [watched.row], "until it is accepted"


class _Giving(nn.Parameter):
    """A parameter that says itself what its gradient is."""

    given: Tensor

    @property
    def grad(self) -> Tensor:  # type: ignore[override]
        return self.given


def test_an_opaque_gradient_is_noticed(reading: Any) -> None:
    """It is as large as a dense one, and has a pointer, to something else."""
    watched = Watched(reading)
    given = watched.gradient
    watched.parameter.__class__ = _Giving
    watched.parameter.given = given  # type: ignore[attr-defined]
    assert watched.changed() == []
    watched.parameter.given = torch.ones(4, 6).to_mkldnn()  # type: ignore[attr-defined]
    assert watched.changed() == [0]


@pytest.mark.parametrize("shape", [(1, 1), (4, 1)])
def test_an_imaginary_part_that_torch_negates_later_is_noticed(reading: Any, shape: tuple[int, int]) -> None:
    watched = Watched(reading)
    values = torch.zeros(shape, dtype=torch.complex64)
    watched.parameter.grad = None
    watched.parameter.data = torch.zeros(shape)
    watched.parameter.grad = values.imag
    watched.inputs.accept(0, watched.entry, watched.gradient, True)
    assert watched.changed() == []
    watched.parameter.grad = values.conj().imag
    assert watched.gradient.is_neg() and watched.gradient.stride() == values.imag.stride()
    assert watched.changed() == [0]


@pytest.mark.parametrize("which", ["parameter", "gradient", "state"])
def test_a_sign_left_for_later_is_noticed_at_one_address(reading: Any, which: str) -> None:
    watched = Watched(reading)
    values = torch.zeros((4, 6), dtype=torch.complex64)
    tensor = {"parameter": watched.parameter, "gradient": watched.gradient, "state": watched.state["m"]}[which]
    tensor.data = values.imag
    watched.inputs.accept(0, watched.entry, watched.gradient, True)
    assert watched.changed() == []
    tensor.data = values.conj().imag
    assert tensor.is_neg() and tensor.stride() == values.imag.stride() and tensor.data_ptr() == values.imag.data_ptr()
    assert watched.changed() == [0]
    watched.inputs.accept(0, watched.entry, watched.gradient, True)
    assert watched.changed() == []
    tensor.data = values.imag
    assert watched.changed() == [0]


def test_types_and_devices_are_noticed_at_one_address(reading: Any) -> None:
    memory = torch.zeros(24)
    for view in (memory.view(torch.int32), memory.view(torch.bfloat16)[:24]):
        watched = Watched(reading)
        watched.state["m"].data = memory.view(4, 6)
        watched.inputs.accept(watched.row, watched.entry, watched.gradient, True)
        assert watched.changed() == []
        watched.state["m"].data = view.view(4, 6)
        assert watched.state["m"].data_ptr() == memory.data_ptr()
        assert watched.changed() == [0]
    watched = Watched(reading)
    watched.state["m"] = torch.zeros(4, 6, device="meta")
    watched.entry = (*watched.entry[:4], watched.state["m"])
    assert watched.changed() == [0]


def test_a_gradient_that_only_moved_is_followed(reading: Any) -> None:
    watched = Watched(reading)
    kept = []
    for _ in range(3):
        kept.append(watched.gradient)
        watched.parameter.grad = torch.zeros(4, 6)
        assert watched.changed() == []
        assert watched.address(1) == watched.gradient.data_ptr() != kept[-1].data_ptr()
    watched.parameter.grad = torch.zeros(4, 6).as_subclass(_Sub)
    assert watched.changed() == [] and watched.address(1) == watched.gradient.data_ptr()


def test_the_copy_of_a_gradient_stays_where_it_is(reading: Any) -> None:
    watched = Watched(reading)
    watched.inputs.place(0, 0, 1, 4096, 6)
    watched.inputs.accept(0, watched.entry, watched.gradient, False)
    kept = watched.gradient
    watched.parameter.grad = torch.zeros(4, 6)
    assert watched.changed() == [] and watched.address(1) == 4096
    watched.parameter.grad = torch._neg_view(torch.zeros(4, 6))
    assert watched.changed() == [], "copies are of what the elements are"
    assert kept.data_ptr() != watched.gradient.data_ptr()


def test_a_row_without_gradient_is_noticed_once(reading: Any) -> None:
    watched = Watched(reading)
    watched.parameter.grad = None
    assert watched.changed() == [0]
    watched.inputs.clear(0)
    assert watched.changed() == [] and watched.address(1) == 0
    watched.parameter.grad = torch.zeros(4, 6)
    assert watched.changed() == [0]


def test_tensors_without_memory_are_never_trusted(reading: Any) -> None:
    for tensor in (_Wrapper((4, 6)), torch.zeros(4, 6, device="meta"), torch.eye(4, 6).to_sparse(), "no tensor"):
        watched = Watched(reading)
        watched.entry = (watched.parameter, {"m": tensor, "step": 7}, "step", "m", tensor)
        watched.states = {watched.parameter: watched.entry[1]}
        watched.inputs.accept(0, watched.entry, watched.gradient, True)
        assert watched.changed() == [0], tensor


class _Odd(Tensor):
    """A tensor that answers what it is told to."""

    answers: dict[Any, Callable[[], Any]]

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for question, answer in getattr(args[0], "answers", {}).items():
            if func == question:
                return answer()
        return super().__torch_function__(func, types, args, kwargs or {})


def _refuse() -> Any:
    raise RuntimeError("does not say")


ODD: dict[str, dict[Any, Callable[[], Any]]] = {
    "address": {Tensor.data_ptr: lambda: "nowhere"},
    "no address": {Tensor.data_ptr: lambda: None},
    "refused address": {Tensor.data_ptr: _refuse},
    "number of elements": {Tensor.data_ptr: lambda: 0, Tensor.numel: lambda: "some"},
    "shape": {Tensor.shape.__get__: lambda: ("a", "b")},  # type: ignore[attr-defined]
    "no shape": {Tensor.shape.__get__: lambda: None},  # type: ignore[attr-defined]
    "strides": {Tensor.stride: lambda: "ab"},
    "refused sign": {Tensor.is_neg: _refuse},
}


@pytest.mark.parametrize("answers", ODD.values(), ids=list(ODD))
def test_tensors_that_give_odd_answers_are_never_trusted(answers: dict[Any, Callable[[], Any]]) -> None:
    watched = Watched((None,))
    odd = torch.zeros(4, 12)[:, ::2].as_subclass(_Odd)
    watched.parameter.grad = odd
    watched.inputs.accept(0, watched.entry, odd, True)
    assert watched.changed() == [] and watched.gradient is odd, "before it does"
    odd.answers = answers
    assert watched.changed() == [0], "compared with what it was"
    watched.inputs.accept(0, watched.entry, odd, True)
    assert watched.changed() == [0], "and never taken"


def test_what_is_no_answer_but_an_interrupt_goes_on() -> None:
    def interrupt() -> Any:
        raise KeyboardInterrupt

    watched = Watched((None,))
    odd = torch.zeros(4, 6).as_subclass(_Odd)
    watched.parameter.grad = odd
    odd.answers = {Tensor.data_ptr: interrupt}
    with pytest.raises(KeyboardInterrupt):
        watched.changed()


def test_gradients_are_held_from_the_comparison_to_the_release(reading: Any) -> None:
    watched = Watched(reading)
    watched.inputs.release()
    assert watched.inputs.gradient(0) is None
    first = watched.gradient
    assert watched.changed() == [] and watched.inputs.gradient(0) is first
    gone = weakref.ref(first)
    watched.parameter.grad = None
    del first
    assert gone() is not None, "while a step is under way"
    watched.inputs.release()
    assert gone() is None
    second = torch.zeros(4, 6)
    watched.inputs.accept(0, watched.entry, second, True)
    assert watched.inputs.gradient(0) is second
    watched.inputs.clear(0)
    assert watched.inputs.gradient(0) is None
    watched.parameter.grad = second
    watched.parameter.requires_grad_(False)
    watched.changed()
    assert watched.inputs.gradient(0) is None, "none to update a frozen parameter with"


def test_the_gradient_that_was_placed_is_the_one_that_is_accepted(reading: Any) -> None:
    """Whatever the parameter says when it is asked again."""
    watched = Watched(reading)
    placed, other = torch.zeros(2, 4, 6).unbind()
    watched.place(watched.parameter, placed)
    watched.parameter.grad = other
    watched.inputs.accept(0, watched.entry, placed, True)
    assert watched.changed() == [] and watched.address(1) == other.data_ptr()


def test_a_failure_to_count_leaves_other_counts_right(reading: Any) -> None:
    class Refusing(dict[str, Any]):
        def __setitem__(self, key: str, value: Any) -> None:
            raise PermissionError(key)

    inputs = _C.StepInputs(Tensor, *reading)
    params = parameters([(4, 6)] * 3)
    set_gradients(params, 0)
    states: list[dict[str, Any]] = [{"step": 7}, Refusing(step=7), {"step": 7}]
    entries = [(parameter, state, "step") for parameter, state in zip(params, states, strict=True)]
    for entry in entries:
        inputs.accept(inputs.add(1, 0), entry, entry[0].grad, True)
    with pytest.raises(PermissionError, match="step"):
        inputs.count_updates(entries)
    assert [state["step"] for state in states] == [8, 7, 8]
    del states[0]["step"]
    with pytest.raises(KeyError, match="step"):
        inputs.count_updates(entries)
    assert states[2]["step"] == 9


def test_counts_are_read_and_counted(reading: Any) -> None:
    watched = Watched(reading)
    watched.inputs.set_values(0, [0.5, 0.25])
    assert watched.inputs.scalars() == [[8.0, 0.5, 0.25]]
    watched.state["step"] = 1 << 40
    assert watched.changed() == [] and watched.inputs.scalars() == [[float((1 << 40) + 1), 0.5, 0.25]]
    watched.inputs.count_updates([watched.entry])
    assert watched.state["step"] == (1 << 40) + 1
    watched.state["step"] = 10**400
    with pytest.raises(OverflowError):
        watched.changed()


def test_the_order_of_states_does_not_matter(reading: Any) -> None:
    watched = Watched(reading)
    other = nn.Parameter(torch.zeros(2))
    watched.states = {other: {}, watched.parameter: watched.state}
    assert watched.changed() == []
    watched.states = {watched.parameter: watched.state, other: {}}
    assert watched.changed() == []
    watched.states = {other: {}}
    assert watched.changed() == [0]


def test_states_that_are_no_dict_are_looked_at(reading: Any) -> None:
    class Mapping:
        def get(self, key: Any) -> None: ...

    watched = Watched(reading)
    assert watched.inputs.compare([watched.entry], Mapping()) == [0]  # type: ignore[arg-type]


def test_wrong_uses_are_refused(reading: Any) -> None:
    watched = Watched(reading)
    inputs, entry = watched.inputs, watched.entry
    with pytest.raises(IndexError, match="row: expects one below 1, but got 1"):
        inputs.clear(1)
    with pytest.raises(IndexError, match="expects a matrix below 1 and an operand below 3, but got 0 and 3"):
        inputs.place(0, 0, 3, 0, 0)
    with pytest.raises(IndexError, match="expects a matrix below 1 and an operand below 3, but got 1 and 0"):
        inputs.place(0, 1, 0, 0, 0)
    with pytest.raises(ValueError, match="values 0: expects 2 numbers, but got 1"):
        inputs.set_values(0, [1.0])
    with pytest.raises(IndexError, match="row: expects one below 1, but got 1"):
        inputs.gradient(1)
    with pytest.raises(ValueError, match="entries: expects one for each of 1 rows, but got 2"):
        inputs.compare([entry, entry], watched.states)
    with pytest.raises(ValueError, match="entries: expects tuples of 5 for a row with 1 states"):
        inputs.compare([entry[:3]], watched.states)


@pytest.mark.parametrize("count", [7.0, True, "7", None])
def test_a_count_that_is_no_int_is_not_accepted(reading: Any, count: Any) -> None:
    watched = Watched(reading)
    watched.state["step"] = count
    with pytest.raises(TypeError, match=f"count: expects an int, but got {type(count).__name__}"):
        watched.inputs.accept(0, watched.entry, watched.gradient, True)
    del watched.state["step"]
    with pytest.raises(TypeError, match="count: expects an int, but got nothing"):
        watched.inputs.accept(0, watched.entry, watched.gradient, True)
    assert watched.inputs.scalars() == [[8.0, 0.0, 0.0]] and watched.changed() == [0]


def test_what_is_refused_leaves_everything_as_it_was() -> None:
    inputs = _C.StepInputs(Tensor, None)
    inputs.add(1, 0)
    with pytest.raises(IndexError, match="row: expects one below 1, but got 99"):
        inputs.add_scalars(0, 3, 99)
    assert inputs.scalars() == []
    inputs.add_scalars(0, 2)
    inputs.add_scalars(0, 3)
    for numbers, wish in (([1.0, 2.0], 3), ([1.0, 2.0, 3.0], 2)):
        with pytest.raises(ValueError, match=f"values 0: expects {wish} numbers, but got {len(numbers)}"):
            inputs.set_values(0, numbers)
    assert inputs.scalars() == [[0.0, 0.0], [0.0, 0.0, 0.0]]


LIMIT = 1 << 26


@pytest.mark.parametrize("matrices, states", [(2**61, 6), (1, LIMIT), (LIMIT, 0), (2**63, 2**63), (0, 2**64 - 2)])
def test_more_operands_than_there_is_room_for_are_refused(matrices: int, states: int) -> None:
    """Also where their number does not fit 64 bits."""
    inputs = _C.StepInputs(Tensor, None)
    inputs.add(1, 0)
    message = f"expects at most {LIMIT - 2} more operands, but got {matrices} matrices with {states} states"
    with pytest.raises(ValueError, match=message):
        inputs.add(matrices, states)
    assert inputs.addresses() == [0, 0, 0, 0]
    with pytest.raises(IndexError, match="row: expects one below 1, but got 1"):
        inputs.place(1, 0, 0, 4096, 1)


@pytest.mark.parametrize("count", [LIMIT, 2**64 - 1])
@pytest.mark.parametrize("row", [-1, 0])
def test_more_scalars_than_there_is_room_for_are_refused(count: int, row: int) -> None:
    inputs = _C.StepInputs(Tensor, None)
    inputs.add(1, 0)
    with pytest.raises(ValueError, match=f"expects fewer than {LIMIT} more values, but got {count}"):
        inputs.add_scalars(0, count, row)
    assert inputs.scalars() == []


# ---- the C interface


class _Header(ctypes.Structure):
    _fields_ = (("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("previous", ctypes.c_void_p))


def _capsule(address: int, name: bytes = b"dlpack_exchange_api") -> Any:
    new = ctypes.pythonapi.PyCapsule_New
    new.restype = ctypes.py_object
    new.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    return new(address, name, None)


def test_an_unknown_version_of_the_interface_is_left_alone() -> None:
    header = _Header(2, 0, None)
    capsule = _capsule(ctypes.addressof(header))
    assert not _C.StepInputs(Tensor, capsule).uses_exchange
    other_name = b"something_else"
    assert not _C.StepInputs(Tensor, _capsule(ctypes.addressof(header), other_name)).uses_exchange
    assert not _C.StepInputs(Tensor, 17).uses_exchange


@pytest.mark.skipif(not HAS_EXCHANGE, reason="this torch has no __dlpack_c_exchange_api__")
def test_an_older_version_behind_a_newer_one_is_found() -> None:
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype = ctypes.c_void_p
    pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
    name = b"dlpack_exchange_api"
    header = _Header(2, 0, pointer(kaon.optim.program.exchange_api(), name))
    assert _C.StepInputs(Tensor, _capsule(ctypes.addressof(header), name)).uses_exchange


class _Described(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", ctypes.c_int32 * 2),
        ("ndim", ctypes.c_int32),
        ("dtype", ctypes.c_uint8 * 4),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("offset", ctypes.c_uint64),
    )


_Describe = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(_Described))


class _Exchange(ctypes.Structure):
    _fields_ = (("header", _Header), ("unused", ctypes.c_void_p * 3), ("describe", _Describe))


@pytest.mark.parametrize("ndim, has_strides, trusted", [(2, True, True), (2, False, False), (-1, True, False)])
def test_a_description_without_strides_is_not_trusted(ndim: int, has_strides: bool, trusted: bool) -> None:
    """As DLPack before 1.2 describes tensors without gaps. Here every tensor is described alike."""
    shape, strides = (ctypes.c_int64 * 2)(4, 6), (ctypes.c_int64 * 2)(6, 1)

    def describe(_: int, described: Any) -> int:
        described[0].data, described[0].ndim = 4096, ndim
        described[0].shape = shape
        if has_strides:
            described[0].strides = strides
        return 0

    interface = _Exchange(_Header(1, 0, None), (ctypes.c_void_p * 3)(), _Describe(describe))
    inputs = _C.StepInputs(Tensor, _capsule(ctypes.addressof(interface)))
    assert inputs.uses_exchange
    parameter = nn.Parameter(torch.zeros(4, 6))
    parameter.grad = torch.zeros(4, 6)
    states: dict[Any, Any] = {parameter: {}}
    entry = (parameter, states[parameter], None)
    inputs.accept(inputs.add(1, 0), entry, parameter.grad, True)
    assert inputs.compare([entry], states) == ([] if trusted else [0])


# ---- torch's C functions


def _interrupt() -> Any:
    raise KeyboardInterrupt


UNPROVEN: dict[str, Callable[[list[Tensor]], list[Any]]] = {
    "none": lambda tensors: [],
    "two": lambda tensors: [_capsule(4096), _capsule(4096)],
    "no capsule": lambda tensors: [17],
    "capsule of something else": lambda tensors: [_capsule(4096)],
    "no list": lambda tensors: 17,  # type: ignore[return-value]
    "refused": lambda tensors: _refuse(),
    "of another tensor": lambda tensors: kaon.optim.program.handle_maker()([tensors[0].clone()]),  # type: ignore[misc]
}


@pytest.mark.skipif(not HAS_EXCHANGE or not HAS_FUNCTIONS, reason="this torch has no handles for its C functions")
@pytest.mark.parametrize("make", UNPROVEN.values(), ids=list(UNPROVEN))
def test_handles_that_prove_nothing_leave_the_functions_alone(make: Callable[[list[Tensor]], list[Any]]) -> None:
    watched = Watched((kaon.optim.program.exchange_api(), make))
    assert watched.inputs.uses_exchange and not watched.inputs.uses_shim
    assert _C.StepInputs(Tensor, kaon.optim.program.exchange_api(), kaon.optim.program.handle_maker()).uses_shim


@pytest.mark.skipif(not HAS_EXCHANGE, reason="this torch has no __dlpack_c_exchange_api__")
def test_an_interrupt_while_handles_are_made_goes_on() -> None:
    with pytest.raises(KeyboardInterrupt):
        _C.StepInputs(Tensor, kaon.optim.program.exchange_api(), lambda tensors: _interrupt())


def test_the_functions_are_not_used_without_the_interface() -> None:
    assert not _C.StepInputs(Tensor, None, kaon.optim.program.handle_maker()).uses_shim


# ---- groups


def test_same_items_are_the_same_objects_in_the_same_order() -> None:
    rate = 0.5
    group = {"lr": rate, "params": [1], "step": 3}
    taken = ("lr", rate, "params", ..., "step", ...)
    assert _C.has_same_items(group, taken)
    group["step"], group["params"] = 4, [2]
    assert _C.has_same_items(group, taken)
    assert not _C.has_same_items({**group, "lr": float("0.5")}, taken)
    assert not _C.has_same_items({**group, "more": 1}, taken)
    assert not _C.has_same_items({"step": 4, "lr": rate, "params": [2]}, taken)


def test_same_objects_and_tensors_to_update() -> None:
    a, b = parameters([(2, 2), (2, 2)])
    assert _C.has_same_objects([a, b], (a, b)) and _C.has_same_objects((a, b), (a, b))
    assert not _C.has_same_objects([b, a], (a, b)) and not _C.has_same_objects([a], (a, b))
    with pytest.raises(TypeError, match="expects a sequence"):
        _C.has_same_objects(3, (a,))  # type: ignore[arg-type]
    a.requires_grad_(False)
    a.grad = torch.zeros(2, 2)
    assert not _C.any_to_update((a, b))
    a.requires_grad_(True)
    assert _C.any_to_update((b, a))


# ---- whole optimizers

SHAPES = [(4, 6), (6, 4), (8, 3), (5,), (7, 1), (1,)]
FACTORIES: dict[str, Callable[[list[nn.Parameter]], Any]] = {
    "muon": lambda params: Muon(params, lr=0.1),
    "periodic": lambda params: PeriodicRowwiseMuon(params, lr=0.1, period=2, row_scale="calibrated"),
    "adamw": lambda params: AdamW(params, lr=0.1, amsgrad=True),
    "split": lambda params: Muon(
        params, lr=0.1, rules=[Rule("matrix", shape=lambda shape: shape == (8, 3), view="split(2)"), *default_rules()]
    ),
    "ascent": lambda params: Muon(params, lr=0.1, maximize=True),
}


def _transposed(tensor: Tensor) -> Tensor:
    return tensor.t().contiguous().t() if tensor.dim() == 2 else tensor.clone()


def _spread(tensor: Tensor) -> Tensor:
    return torch.stack([tensor, tensor], dim=-1)[..., 0]


def _with_states(optimizer: Any, change: Callable[[Tensor], Tensor]) -> None:
    for parameter, state in optimizer.state.items():
        for name, tensor in tensor_states(optimizer, parameter).items():
            state[name] = change(tensor)


def _each(change: Callable[[nn.Parameter], Any]) -> Callable[[Any, list[nn.Parameter]], None]:
    def apply(optimizer: Any, params: list[nn.Parameter]) -> None:
        del optimizer
        for parameter in params:
            change(parameter)

    return apply


def _assign(name: str, change: Callable[[Tensor], Tensor]) -> Callable[[Any, list[nn.Parameter]], None]:
    return _each(lambda parameter: setattr(parameter, name, change(getattr(parameter, name))))


def _clear_states(optimizer: Any, params: list[nn.Parameter]) -> None:
    del params
    kept = {parameter: dict(state) for parameter, state in optimizer.state.items()}
    optimizer.state.clear()
    optimizer.state.update(reversed(kept.items()))


REPLACEMENTS: dict[str, Callable[[Any, list[nn.Parameter]], Any]] = {
    "gradients": _assign("grad", lambda g: g.clone()),
    "gradients transposed": _assign("grad", _transposed),
    "gradients spread": _assign("grad", _spread),
    "gradients negated in memory": _assign("grad", lambda g: torch.complex(g, -g).conj().imag),
    "gradients moved in place": _each(lambda p: setattr(p.grad, "data", p.grad.data.clone())),  # type: ignore[union-attr]
    "gradients of a subclass": _assign("grad", lambda g: g.clone().as_subclass(_Sub)),
    "parameters": _assign("data", lambda w: w.clone()),
    "parameters transposed": _assign("data", _transposed),
    "parameters spread": _assign("data", _spread),
    "states": lambda optimizer, params: _with_states(optimizer, lambda s: s.clone()),
    "states moved in place": lambda optimizer, params: [
        setattr(state, "data", state.data.clone())
        for parameter in params
        for state in tensor_states(optimizer, parameter).values()
    ],
    "dicts of states, in another order": _clear_states,
}


@pytest.mark.parametrize("factory", FACTORIES.values(), ids=list(FACTORIES))
@pytest.mark.parametrize("replace", REPLACEMENTS.values(), ids=list(REPLACEMENTS))
def test_steps_go_on_alike_whatever_is_replaced(
    reading: Any, factory: Any, replace: Callable[[Any, list[nn.Parameter]], Any]
) -> None:
    """What is replaced is scribbled over before the step, so that a step on what was there before shows."""
    params, twins = parameters(SHAPES), parameters(SHAPES)
    optimizer, reference = factory(params), factory(twins)
    for step in range(5):
        set_gradients(params, step)
        set_gradients(twins, step)
        if step >= 2:
            old = [params, [p.grad for p in params], *(tensor_states(optimizer, p).values() for p in params)]
            before = [(tensor, tensor.data) for tensors in old for tensor in tensors if tensor is not None]
            replace(optimizer, params)
            now = [
                *params,
                *(p.grad for p in params),
                *(t for p in params for t in tensor_states(optimizer, p).values()),
            ]
            used = {tensor.data_ptr() for tensor in now if tensor is not None}
            for _, data in before:
                if data.data_ptr() not in used:
                    data.fill_(3.0)
        optimizer.step()
        reference.step()
        assert_bitwise(snapshot(optimizer), snapshot(reference))


def test_zero_grad_makes_new_gradients_every_step(reading: Any) -> None:
    params, twins = parameters(SHAPES), parameters(SHAPES)
    optimizer, reference = AdamW(params, lr=0.1), AdamW(twins, lr=0.1)
    missing: set[int] = set()
    for step, missing in enumerate([{0}, set(), {1, 2}, {0, 1, 2, 3, 4, 5}, {3}, set()]):
        for group in (params, twins):
            set_gradients(group, step)
            for index in missing:
                group[index].grad = None
        optimizer.step()
        reference.step()
        optimizer.zero_grad(set_to_none=True)
        reference.zero_grad(set_to_none=False)
        assert_bitwise(snapshot(optimizer), snapshot(reference))
    assert [optimizer.state[p]["step"] for p in params] == [4, 4, 4, 4, 5, 5]


@pytest.mark.skipif(not hasattr(Tensor, "grad_dtype"), reason="this torch ties gradients to the parameter's type")
def test_types_of_gradients_may_change_between_steps(reading: Any) -> None:
    (a,), (b,) = parameters([(4, 6)], torch.bfloat16), parameters([(4, 6)], torch.bfloat16)
    first, second = Muon([a], lr=0.1), Muon([b], lr=0.1)
    for step in range(4):
        dtype = torch.float32 if step % 2 else torch.bfloat16
        gradient = torch.randn(4, 6, generator=torch.Generator().manual_seed(step)).to(dtype)
        for parameter in (a, b):
            parameter.grad = None
            parameter.grad_dtype = dtype  # type: ignore[attr-defined]
            parameter.grad = gradient.clone()
        first.step()
        fresh = Muon([b], lr=0.1)
        fresh.load_state_dict(second.state_dict())
        fresh.step()
        second = fresh
        assert_bitwise([a], [b])


def test_a_conjugate_left_in_the_gradient_of_one_element_is_resolved(reading: Any) -> None:
    """torch may leave the sign of an imaginary part for later: memory holds the negative of such a gradient."""
    w = nn.Parameter(torch.ones(1, 1))
    (torch.complex(torch.ones(1, 1), w).conj() * 1j).real.sum().backward()
    assert w.grad is not None
    if not w.grad.is_neg():
        pytest.skip("this torch resolves it")
    twin = nn.Parameter(torch.ones(1, 1))
    twin.grad = w.grad.clone()
    for parameter in (w, twin):
        AdamW([parameter], lr=0.1).step()
    assert_bitwise([w], [twin])


def test_a_gradient_without_memory_is_refused(reading: Any) -> None:
    (parameter,) = parameters([(4, 6)])
    optimizer = Muon([parameter])
    set_gradients([parameter], 0)
    optimizer.step()
    (program,) = optimizer._collect()
    with pytest.raises(
        TypeError, match=r"expects the gradient of parameter 0 .* in memory, but this _Wrapper has none"
    ):
        program.records[0].place_gradient(program.inputs, _Wrapper((4, 6)))


def test_options_that_are_tensors_or_lists_are_read_at_every_step(reading: Any) -> None:
    params, twins = parameters(SHAPES), parameters(SHAPES)
    rate = torch.tensor(0.1)
    optimizer, reference = AdamW(params, lr=rate), AdamW(twins, lr=0.1)
    betas = [0.9, 0.999]
    optimizer.param_groups[0]["betas"] = betas
    for step in range(4):
        optimizer.param_groups[0]["lr"].fill_(0.1 / (step + 1))
        reference.param_groups[0]["lr"] = float(torch.tensor(0.1 / (step + 1)))
        betas[0] = 0.9 - 0.1 * step
        reference.param_groups[0]["betas"] = tuple(betas)
        for group in (params, twins):
            set_gradients(group, step)
        optimizer.step()
        reference.step()
        assert_bitwise(snapshot(optimizer), snapshot(reference))


class _Made(nn.Parameter):
    """A parameter that makes its gradient each time it is asked for one, as where it unscales what backward left."""

    change: Callable[[Tensor], Tensor] = staticmethod(lambda gradient: gradient * 2.0)
    reads = 0

    @property  # type: ignore[override]
    def grad(self) -> Tensor | None:
        self.reads += 1
        gradient = Tensor.grad.__get__(self)  # type: ignore[attr-defined]
        if gradient is None:
            return None
        made = self.change(gradient)
        # Whatever was made before and is gone lends its memory to this.
        self.scribbled = [torch.full_like(made, 99.0) for _ in range(4)]
        return made

    @grad.setter
    def grad(self, value: Tensor | None) -> None:
        Tensor.grad.__set__(self, value)  # type: ignore[attr-defined]


MADE_SHAPES = [(64, 64), (32, 128), (64, 64), (4096,)]
MAKERS: dict[str, Callable[[Tensor], Tensor]] = {
    "scaled": lambda gradient: gradient * 2.0,
    "transposed": lambda gradient: _transposed(gradient * 2.0),
    "spread": lambda gradient: _spread(gradient * 2.0),
    "negated in memory": lambda gradient: torch.complex(gradient, gradient * -2.0).conj().imag,
}


@pytest.mark.parametrize("make", MAKERS.values(), ids=list(MAKERS))
@pytest.mark.parametrize("factory", [FACTORIES["muon"], FACTORIES["adamw"], FACTORIES["ascent"]])
def test_gradients_that_are_made_when_asked_for_are_read_once(reading: Any, factory: Any, make: Any) -> None:
    params = [_Made(parameter.detach().clone()) for parameter in parameters(MADE_SHAPES)]
    twins = parameters(MADE_SHAPES)
    optimizer, reference = factory(params), factory(twins)
    for step in range(4):
        set_gradients(twins, step)
        for made, twin in zip(params, twins, strict=True):
            made.change, made.reads = make, 0
            assert twin.grad is not None
            made.grad = twin.grad.clone()
            twin.grad.mul_(2.0)
        optimizer.step()
        reference.step()
        assert_bitwise(params, twins)
        if step > 0:
            assert [made.reads for made in params] == [1] * len(params)


@pytest.mark.parametrize("action", ["raise", "skip"])
def test_names_of_nonfinite_gradients_are_of_those_that_were_read(reading: Any, action: str) -> None:
    made = _Made(torch.ones(4, 6))
    optimizer = AdamW([made, *parameters([(3, 3)])], lr=0.1, nonfinite=action)
    made.grad = torch.ones(4, 6)
    made.change = lambda gradient: gradient * (float("inf") if made.reads == 2 else 1.0)  # one for the types
    if action == "raise":
        with pytest.raises(FloatingPointError, match=r"not finite: parameter 0 of shape \(4, 6\); nothing"):
            optimizer.step()
    else:
        with pytest.warns(UserWarning, match=r"not finite: parameter 0 of shape \(4, 6\); more"):
            optimizer.step()
    assert optimizer.param_groups[0]["step"] == 0 and bool((made == 1.0).all())


def test_what_changes_while_a_step_looks_at_it_is_refused(reading: Any) -> None:
    made = _Made(torch.ones(4, 6, dtype=torch.bfloat16))
    made.grad = torch.ones(4, 6, dtype=torch.bfloat16)
    made.change = lambda gradient: gradient.float() if made.reads % 2 else gradient.clone()
    optimizer = Muon([made], lr=0.1)
    with pytest.raises(RuntimeError, match="types of gradients to stay as they are while a step looks at them"):
        optimizer.step()
    assert optimizer.param_groups[0]["step"] == 0 and bool((made == 1.0).all())


@pytest.mark.parametrize("shape", [(4, 6), (4, 1), (1, 1)], ids=str)  # a column is stepped where it is
def test_a_parameter_that_is_negated_where_it_is_goes_on_as_its_negative(reading: Any, shape: tuple[int, int]) -> None:
    (w,), (twin,) = parameters([shape]), parameters([shape])
    memory = torch.complex(w.detach(), w.detach())
    w.data = memory.imag
    optimizer, reference = AdamW([w], lr=0.1, weight_decay=0.5), AdamW([twin], lr=0.1, weight_decay=0.5)
    for step in range(4):
        set_gradients([w], step)
        set_gradients([twin], step)
        if step == 2:
            w.data = memory.conj().imag
            twin.data.neg_()
        optimizer.step()
        reference.step()
        assert_bitwise([w.resolve_neg()], [twin])


def test_a_negative_view_as_a_state_is_refused(reading: Any) -> None:
    (w,) = parameters([(4, 6)])
    optimizer = AdamW([w], lr=0.1)
    set_gradients([w], 0)
    optimizer.step()
    before = w.detach().clone()
    state = optimizer.state[w]
    state["exp_avg"] = torch._neg_view(-state["exp_avg"])
    with pytest.raises(ValueError, match=r"expects state exp_avg of parameter 0 .*, but got a view of their negatives"):
        optimizer.step()
    assert_bitwise([w], [before])
    state["exp_avg"] = state["exp_avg"].resolve_neg()
    optimizer.step()


def test_a_state_that_is_negated_where_it_is_is_refused(reading: Any) -> None:
    (w,) = parameters([(1, 1)])
    optimizer = AdamW([w], lr=0.1)
    set_gradients([w], 0)
    memory = torch.zeros((1, 1), dtype=torch.complex64)
    optimizer.step()
    optimizer.state[w]["exp_avg"].data = memory.imag
    optimizer.step()
    before = w.detach().clone()
    optimizer.state[w]["exp_avg"].data = memory.conj().imag
    with pytest.raises(ValueError, match=r"expects state exp_avg of parameter 0 .*, but got a view of their negatives"):
        optimizer.step()
    assert_bitwise([w], [before])


def test_autograd_sees_a_step_whose_counts_cannot_be_written(reading: Any) -> None:
    class Refusing(dict[str, Any]):
        armed = False

        def __setitem__(self, key: str, value: Any) -> None:
            if self.armed:
                raise PermissionError(key)
            super().__setitem__(key, value)

    params, twins = parameters(SHAPES), parameters(SHAPES)
    optimizer, reference = AdamW(params, lr=0.1), AdamW(twins, lr=0.1)
    for group in (params, twins):
        set_gradients(group, 0)
    optimizer.step()
    reference.step()
    state = Refusing(optimizer.state[params[1]])
    optimizer.state[params[1]] = state
    optimizer.compile()
    state.armed = True
    versions = [parameter._version for parameter in params]
    with pytest.raises(PermissionError, match="step"):
        optimizer.step()
    reference.step()
    assert_bitwise(params, twins)
    assert all(parameter._version > version for parameter, version in zip(params, versions, strict=True))
    assert [optimizer.state[parameter]["step"] for parameter in params] == [2, 1, 2, 2, 2, 2]


# ---- lifetimes


def test_nothing_is_kept_alive(reading: Any) -> None:
    params = parameters(SHAPES)
    optimizer = AdamW(params, lr=0.1)
    set_gradients(params, 0)
    optimizer.step()
    counts = [sys.getrefcount(p) for p in params]
    states = [tensor for p in params for tensor in tensor_states(optimizer, p).values()]
    state_counts = [sys.getrefcount(tensor) for tensor in states]
    gone = weakref.ref(params[0].grad)  # type: ignore[arg-type]
    for step in range(20):
        set_gradients(params, step)
        optimizer.step()
    assert gone() is None
    kept = weakref.ref(params[0].grad)  # type: ignore[arg-type]
    optimizer.zero_grad()
    assert kept() is None, "memory of gradients is free after zero_grad"
    assert [sys.getrefcount(p) for p in params] == counts
    assert [sys.getrefcount(tensor) for tensor in states] == state_counts


def _step_refused(optimizer: Any, params: list[nn.Parameter]) -> None:
    params[-1].grad = torch.zeros(5).to_sparse()
    with pytest.raises(RuntimeError, match="expects dense gradients"):
        optimizer.step()


def _step_rebuilt(optimizer: Any, params: list[nn.Parameter]) -> None:
    optimizer.param_groups[0]["amsgrad"] = True
    optimizer.step()


def _step_rebuilt_in_vain(optimizer: Any, params: list[nn.Parameter]) -> Any:
    optimizer.state[params[-1]]["exp_avg"] = torch.zeros(1)
    with pytest.raises(ValueError, match="expects state exp_avg") as refused:
        optimizer.step()
    return refused  # with the frames that it went through


def _step_skipped(optimizer: Any, params: list[nn.Parameter]) -> None:
    assert params[-1].grad is not None
    params[-1].grad.fill_(float("nan"))
    with pytest.warns(UserWarning, match="skipped a step"):
        optimizer.step()


ENDS: dict[str, Callable[[Any, list[nn.Parameter]], Any]] = {
    "a step": lambda optimizer, params: optimizer.step(),
    "a step that is refused": _step_refused,
    "a step on a new program": _step_rebuilt,
    "a step without a new program": _step_rebuilt_in_vain,
    "a step that is skipped": _step_skipped,
    "compile": lambda optimizer, params: optimizer.compile(),
    "plan": lambda optimizer, params: optimizer.plan(show=False),
}


@pytest.mark.parametrize("end", ENDS.values(), ids=list(ENDS))
def test_gradients_are_let_go_however_it_ends(reading: Any, end: Callable[[Any, list[nn.Parameter]], Any]) -> None:
    params = parameters([(4, 6), (6, 4), (5,)])
    optimizer = AdamW(params, lr=0.1)
    set_gradients(params, 0)
    optimizer.step()
    set_gradients(params, 1)
    kept = weakref.ref(params[0].grad)  # type: ignore[arg-type]
    left = end(optimizer, params)
    optimizer.zero_grad()
    assert kept() is None, left


def test_an_optimizer_that_its_parameters_know_is_collected(reading: Any) -> None:
    """As where a hook of each parameter steps an optimizer of its own."""
    (parameter,) = parameters([(4, 6)])
    optimizer = Muon([parameter], lr=0.1)
    parameter.register_post_accumulate_grad_hook(lambda p: optimizer.step())  # noqa: F821
    parameter.sum().backward()
    assert optimizer.param_groups[0]["step"] == 1
    dead = weakref.ref(optimizer)
    del optimizer, parameter
    gc.collect()
    assert dead() is None
