"""Faults reported against other optimizers: shapes, dtypes and memory layouts.

Each test is named after its entry in the project's list of cases.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from kaon.optim import AdamW, Muon, PeriodicRowwiseMuon, elementwise_rules, matrix_rules
from optim_tools import (
    NS5_OF_ONE,
    MuonOracle,
    assert_bitwise,
    frobenius,
    parameters,
    relative_error,
    set_gradients,
    snapshot,
)
from torch import Tensor, nn

ODD_SHAPES = [(), (7,), (8, 1, 1), (4, 3, 5), (8, 4, 3, 3), (2, 3, 1, 1, 5)]


# -- shapes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", ODD_SHAPES, ids=str)
def test_b14_the_matrix_view_takes_matrices_only(shape: tuple[int, ...]) -> None:
    good, odd = nn.Parameter(torch.ones(4, 6)), nn.Parameter(torch.ones(shape))
    message = rf"Muon only supports 2D parameters .* parameter 1 \('odd'\) of shape \({', '.join(map(str, shape))},?\)"
    with pytest.raises(ValueError, match=message):
        Muon([("good", good), ("odd", odd)], rules=matrix_rules())
    assert torch.equal(good.detach(), torch.ones(4, 6))


def test_b14_default_rules_take_all_shapes_in_one_model() -> None:
    params = parameters([*ODD_SHAPES, (4, 6)])
    reference = [p.detach().clone().requires_grad_() for p in params[:-1]]
    optimizer = Muon(params, lr=0.1, adamw_lr=0.01)
    adamw = torch.optim.AdamW(reference, lr=0.01, weight_decay=0.01)
    for step in range(3):
        set_gradients(params, step)
        for p, q in zip(params, reference, strict=False):
            q.grad = p.grad
        optimizer.step()
        adamw.step()
    for p, q in zip(params, reference, strict=False):
        assert relative_error(p, q) < 1e-6


def test_b14_flatten_and_batch_are_explicit() -> None:
    for shape, view, count in (((8, 4, 3, 3), "flatten", 1), ((4, 3, 5), "batch", 4), ((2, 3, 1, 1, 5), "batch", 6)):
        (parameter,) = parameters([shape])
        plan = Muon([parameter], rules=matrix_rules(view)).plan(show=False)
        assert plan["parameter 0"].matrices == count


def test_b15_add_param_group_checks_at_once() -> None:
    (weight,) = parameters([(4, 6)])
    optimizer = Muon([weight], lr=0.1, rules=matrix_rules())
    set_gradients([weight], 0)
    optimizer.step()
    before, (bias,) = snapshot(optimizer), parameters([(6,)])
    for bad in (
        {"params": [bias]},
        {"params": [torch.nn.Parameter(torch.zeros(2, 2, dtype=torch.complex64))]},
        {"params": parameters([(4, 6)]), "lr": -1.0},
        {"params": parameters([(4, 6)]), "ns_steps": 0},
        {"params": [weight]},
    ):
        with pytest.raises((ValueError, RuntimeError)):
            optimizer.add_param_group(bad)
        assert len(optimizer.param_groups) == 1
        assert_bitwise(snapshot(optimizer), before)
    set_gradients([weight], 1)
    optimizer.step()
    assert not torch.equal(before[0], weight.detach())


@pytest.mark.parametrize("kind", ["sparse", "complex", "scalar option", "other shape"])
def test_b15_an_error_in_the_last_group_leaves_the_first_unchanged(kind: str) -> None:
    a, b = parameters([(4, 6), (4, 6)])
    optimizer = PeriodicRowwiseMuon([{"params": [a]}, {"params": [b]}], lr=0.1)
    set_gradients([a, b], 0)
    optimizer.step()
    set_gradients([a, b], 1)
    before = snapshot(optimizer)
    if kind == "sparse":
        b.grad = torch.eye(4, 6).to_sparse()
    elif kind == "complex":
        b.data = torch.zeros(4, 6, dtype=torch.complex64)
        b.grad = torch.zeros(4, 6, dtype=torch.complex64)
        before = before[:2]
    elif kind == "scalar option":
        optimizer.param_groups[1]["lr"] = -1.0
    else:
        b.grad = None
        b.data = torch.zeros(5, 6)
        b.grad = torch.zeros(5, 6)
        before = before[:2]
    with pytest.raises((ValueError, TypeError, RuntimeError)):
        optimizer.step()
    assert_bitwise(snapshot(optimizer)[: len(before)], before)
    assert [group["step"] for group in optimizer.param_groups] == [1, 1]


@pytest.mark.parametrize("shape", [(1, 8), (8, 1), (1, 1), (1, 100000), (2, 200000), (200000, 2)], ids=str)
def test_b16_extreme_aspect_ratios(shape: tuple[int, int]) -> None:
    gradient = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    parameter = nn.Parameter(torch.zeros(shape))
    options: dict[str, Any] = {"lr": 1.0, "momentum": 0.0, "weight_decay": 0.0, "adjust_lr_fn": "none", "period": 2}
    optimizer = PeriodicRowwiseMuon([parameter], **options)
    oracle = MuonOracle(parameter.detach(), **options)
    for step in range(2):
        parameter.grad = gradient
        expected = oracle.step(gradient.numpy())
        optimizer.step()
        assert relative_error(parameter, expected) < 1e-4
        if step == 0 and 1 in shape:
            assert frobenius(parameter.detach()) == pytest.approx(NS5_OF_ONE, rel=1e-4)


# -- dtypes -----------------------------------------------------------------------------------------------------------

PAIRS = [
    (torch.float32, torch.bfloat16),
    (torch.bfloat16, torch.float32),
    (torch.float16, torch.float32),
    (torch.float64, torch.float32),
    (torch.float32, torch.float64),
]


def assign_gradient(parameter: nn.Parameter, gradient: Tensor) -> None:
    """Give a parameter a gradient of another dtype, which torch allows where it is told so."""
    if hasattr(parameter, "grad_dtype"):
        parameter.grad_dtype = gradient.dtype
    parameter.grad = gradient


@pytest.mark.skipif(not hasattr(Tensor, "grad_dtype"), reason="this torch has gradients of the parameter's dtype only")
@pytest.mark.parametrize(("dtype", "gradient_dtype"), PAIRS, ids=str)
@pytest.mark.parametrize("shape", [(63, 63), (6, 10)], ids=str)
def test_b20_every_pairing_accumulates_in_the_state_dtype(
    dtype: torch.dtype, gradient_dtype: torch.dtype, shape: tuple[int, int]
) -> None:
    (parameter,) = parameters([shape], dtype)
    optimizer = Muon([parameter], lr=0.1)
    momentum = np.zeros(shape)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    for step in range(3):
        gradient = torch.randn(shape, generator=torch.Generator().manual_seed(step)).to(gradient_dtype)
        assign_gradient(parameter, gradient)
        optimizer.step()
        momentum = 0.95 * momentum + 0.05 * gradient.double().numpy()
        state = optimizer.state[parameter]["momentum_buffer"]
        assert state.dtype == wide
        assert relative_error(state, momentum) < 1e-6
        if step == 1:  # a restored momentum is used, not thrown away
            saved = optimizer.state_dict()
            optimizer = Muon([parameter], lr=0.1)
            optimizer.load_state_dict(saved)


@pytest.mark.parametrize("optimizer_class", [Muon, PeriodicRowwiseMuon, AdamW])
def test_b22_complex_parameters_are_refused(optimizer_class: Any) -> None:
    parameter = nn.Parameter(torch.zeros(3, 3, dtype=torch.complex64))
    message = (
        rf"{optimizer_class.__name__} does not support complex parameters, but parameter 0 \('z'\) of shape \(3, 3\)"
    )
    with pytest.raises(RuntimeError, match=message):
        optimizer_class([("z", parameter)])


@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        (torch.zeros(3, 3, dtype=torch.int64), "expects a dtype out of .* is torch.int64"),
        (torch.zeros(3, 3, dtype=torch.float8_e5m2), "expects a dtype out of .* is torch.float8_e5m2"),
        (torch.eye(3).to_sparse(), "expects dense parameters, but .* layout torch.sparse_coo"),
        (torch.zeros(3, 3, device="meta"), "expects parameters on the CPU or on a CUDA device, but .* is on meta"),
        (torch.zeros(1, 3).expand(3, 3), r"memory of its own, but .* strides \(0, 1\)"),
    ],
    ids=["integer", "float8", "sparse", "meta", "expanded"],
)
def test_b22_unusable_parameters_are_refused(tensor: Tensor, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=rf"{message}"):
        Muon([("p", tensor)])
    with pytest.raises((TypeError, ValueError), match=r"parameter 0 \('p'\) of shape \(3, 3\)"):
        AdamW([("p", tensor)])


def test_b22_lazy_modules_are_refused() -> None:
    with pytest.raises(ValueError, match="parameter 0 is not initialized yet"):
        Muon(nn.LazyLinear(3))


def test_b23_float64_is_computed_in_float64() -> None:
    (parameter,) = parameters([(16, 16)], torch.float64)
    oracle = MuonOracle(parameter.detach(), lr=1 / 3)
    optimizer = Muon([parameter], lr=1 / 3)
    for step in range(5):
        set_gradients([parameter], step)
        assert parameter.grad is not None
        oracle.step(parameter.grad.numpy())
        optimizer.step()
    assert relative_error(parameter, oracle.w) < 1e-12
    (ours,), (theirs,) = parameters([(16,)], torch.float64), parameters([(16,)], torch.float64)
    adamw, reference = AdamW([ours], lr=1 / 3), torch.optim.AdamW([theirs], lr=1 / 3)
    for step in range(5):
        for p, opt in ((ours, adamw), (theirs, reference)):
            set_gradients([p], step)
            opt.step()
    assert relative_error(ours, theirs) < 1e-14


def test_b24_limit_of_half_precision_parameters() -> None:
    """A stated limit (docs/optimizers.md): a bfloat16 parameter at 1 cannot move by 1e-3; float32 does."""

    def decay(dtype: torch.dtype, steps: int) -> float:
        parameter = nn.Parameter(torch.ones(2, 2, dtype=dtype))
        optimizer = Muon([parameter], lr=1e-3, weight_decay=0.1)
        for _ in range(steps):
            parameter.grad = torch.zeros(2, 2, dtype=dtype)
            optimizer.step()
        return parameter[0, 0].item()

    assert decay(torch.bfloat16, 1000) == 1.0
    assert decay(torch.float32, 1000) == pytest.approx(0.905, abs=1e-3)


# -- memory layouts ---------------------------------------------------------------------------------------------------


def transposed(values: Tensor) -> tuple[Tensor, Tensor]:
    return values.t().contiguous().t(), values.t().contiguous()


def column_chunk(values: Tensor) -> tuple[Tensor, Tensor]:
    base = torch.full((values.shape[0], values.shape[1] + 7), 5.0)
    base[:, 3:-4] = values
    return base[:, 3:-4], base


def every_other_row(values: Tensor) -> tuple[Tensor, Tensor]:
    base = torch.full((2 * values.shape[0], values.shape[1]), 5.0)
    base[::2] = values
    return base[::2], base


def every_other_column(values: Tensor) -> tuple[Tensor, Tensor]:
    base = torch.full((values.shape[0], 2 * values.shape[1]), 5.0)
    base[:, ::2] = values
    return base[:, ::2], base


def odd_offset(values: Tensor) -> tuple[Tensor, Tensor]:
    base = torch.full((values.numel() + 2,), 5.0)
    base[1:-1] = values.flatten()
    return base[1:-1].view(values.shape), base


LAYOUTS: dict[str, Any] = {
    "transposed": transposed,
    "column chunk": column_chunk,
    "every other row": every_other_row,
    "every other column": every_other_column,
    "odd offset": odd_offset,
}
OPTIMIZERS: dict[str, Any] = {
    "muon": lambda params: Muon(params, lr=0.1),
    "calibrated": lambda params: PeriodicRowwiseMuon(params, lr=0.1, row_scale="calibrated", period=2),
    "adamw": lambda params: AdamW(params, lr=0.1),
}


@pytest.mark.parametrize("factory", OPTIMIZERS.values(), ids=list(OPTIMIZERS))
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=list(LAYOUTS))
@pytest.mark.parametrize("strided", ["parameter", "gradient", "both"])
def test_b25_strides(factory: Any, layout: Any, strided: str) -> None:
    values = torch.randn(6, 10, generator=torch.Generator().manual_seed(0))
    dense = nn.Parameter(values.clone())
    data, base = layout(values) if strided != "gradient" else (values.clone(), torch.zeros(0))
    parameter = nn.Parameter(data)
    where = (parameter.data_ptr(), parameter.stride(), parameter.storage_offset())
    outside = base.clone()
    optimizer, reference = factory([parameter]), factory([dense])
    for step in range(3):
        gradient = torch.randn(6, 10, generator=torch.Generator().manual_seed(1 + step))
        dense.grad = gradient.clone()
        parameter.grad = layout(gradient)[0] if strided != "parameter" else gradient.clone()
        kept = parameter.grad.clone()
        optimizer.step()
        reference.step()
        assert_bitwise([parameter.detach().contiguous()], [dense])
        assert torch.equal(parameter.grad, kept)
    assert where == (parameter.data_ptr(), parameter.stride(), parameter.storage_offset())
    if strided != "gradient" and base.numel() != values.numel():
        assert torch.equal(base == 5.0, outside == 5.0), "elements outside of the parameter were written"


def test_b25_expanded_gradient() -> None:
    for gradient in (
        torch.arange(10.0).expand(6, 10),
        torch.arange(6.0)[:, None].expand(6, 10),
        torch.ones(()).expand(6, 10),
    ):
        a, b = parameters([(6, 10)]), parameters([(6, 10)])
        first, second = Muon(a, lr=0.1), Muon(b, lr=0.1)
        a[0].grad, b[0].grad = gradient, gradient.contiguous()
        first.step()
        second.step()
        assert_bitwise(a, b)


def test_b25_channels_last_and_permuted_parameters() -> None:
    values = torch.randn(8, 4, 3, 3, generator=torch.Generator().manual_seed(0))
    for rules in (matrix_rules("flatten"), elementwise_rules()):
        plain = nn.Parameter(values.clone())
        last = nn.Parameter(values.clone().to(memory_format=torch.channels_last))
        for step in range(2):
            gradient = torch.randn(8, 4, 3, 3, generator=torch.Generator().manual_seed(1 + step))
            plain.grad, last.grad = gradient.clone(), gradient.clone().to(memory_format=torch.channels_last)
            if step == 0:
                first, second = Muon([plain], lr=0.1, rules=rules), Muon([last], lr=0.1, rules=rules)
            first.step()
            second.step()
        assert last.is_contiguous(memory_format=torch.channels_last)
        assert_bitwise([last.detach().contiguous()], [plain])


def test_b25_layouts_that_change_between_steps() -> None:
    (parameter,), (dense,) = parameters([(6, 10)]), parameters([(6, 10)])
    optimizer, reference = Muon([parameter], lr=0.1), Muon([dense], lr=0.1)
    layouts = [None, transposed, None, every_other_column, column_chunk, transposed]
    for step, layout in enumerate(layouts):
        gradient = torch.randn(6, 10, generator=torch.Generator().manual_seed(step))
        dense.grad = gradient.clone()
        parameter.grad = gradient.clone() if layout is None else layout(gradient)[0]
        if step == 3:
            parameter.data = transposed(parameter.data)[0]
        if step == 5:
            parameter.data = parameter.data.contiguous()
        optimizer.step()
        reference.step()
        assert_bitwise([parameter.detach().contiguous()], [dense])


def test_b25_split_views_of_strided_parameters() -> None:
    values = torch.randn(12, 10, generator=torch.Generator().manual_seed(0))
    for view in ("split(3)", "interleaved(2)"):
        dense, parameter = nn.Parameter(values.clone()), nn.Parameter(column_chunk(values)[0])
        first, second = (Muon([p], lr=0.1, rules=matrix_rules(view)) for p in (dense, parameter))
        for step in range(2):
            gradient = torch.randn(12, 10, generator=torch.Generator().manual_seed(1 + step))
            dense.grad, parameter.grad = gradient, transposed(gradient)[0]
            first.step()
            second.step()
        assert_bitwise([parameter.detach().contiguous()], [dense])
