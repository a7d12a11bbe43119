"""What the tests of `kaon.optim` share: the reference optimizers as an oracle with state, and small helpers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import reference_optimizers as reference
import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from kaon.driver import MatrixEntry

# Newton-Schulz with these coefficients takes a single singular value 1 to this one; so does every matrix of rank 1.
NS5_OF_ONE = 0.696436


def frobenius(x: Any) -> float:
    """The Frobenius norm in float64, safe for any scale."""
    x = np.asarray(x, dtype=np.float64)
    largest = np.abs(x).max(initial=0.0)
    return float(largest * np.sqrt(((x / largest) ** 2).sum())) if largest > 0 else 0.0


def orthogonalize(u: np.ndarray, epsilon: float = 0.0) -> np.ndarray:
    """Newton-Schulz with the coefficients and the normalization that `kaon.optim` has by default."""
    return reference.newton_schulz(u, epsilon=epsilon, normalize="max")


class MuonOracle:
    """Muon and Periodic Row-wise Muon (`period` > 1) on one matrix: `reference_optimizers` under the names, defaults
    and conventions of `kaon.optim`, with the state kept from step to step."""

    def __init__(self, w: Any, **options: Any) -> None:
        self.w = np.asarray(w, dtype=np.float64).copy()
        self.state: reference.State = {"m": np.zeros_like(self.w), "c": np.ones((1, 1))}
        self.t = 0
        self.options = {
            "lr": 1e-3,
            "weight_decay": 0.1,
            "momentum": 0.95,
            "nesterov": True,
            "momentum_form": "lerp",
            "adjust_lr_fn": None,
            "decay_mode": "decoupled",
            "coefficients": reference.KELLER_JORDAN,
            "eps": 0.0,
            "ns_normalize": "max",
            "period": 1,
            "row_scale": "frobenius",
            "row_lr_ratio": 1.0,
            "row_gain": 1.0,
            "phase": 0,
            **options,
        }

    def step(self, g: Any, **changes: Any) -> np.ndarray:
        o = {**self.options, **changes}
        self.t += 1
        self.w, self.state = reference.periodic_rowwise_muon_step(
            self.w,
            np.asarray(g, dtype=np.float64),
            self.state,
            self.t,
            period=o["period"],
            phase=o["phase"] + 1,  # of the first step, which is number 1
            row_scale=o["row_scale"],
            row_lr_ratio=o["row_lr_ratio"] * o["row_gain"],
            row_epsilon=0.0,
            lr=o["lr"],
            mu=o["momentum"],
            weight_decay=o["weight_decay"],
            form=o["momentum_form"],
            nesterov=o["nesterov"],
            scale=o["adjust_lr_fn"] or "original",
            decay_mode=o["decay_mode"],
            orthogonalize=lambda u: reference.newton_schulz(u, o["coefficients"], o["eps"], o["ns_normalize"]),
        )
        return self.w


def parameters(
    shapes: Iterable[Sequence[int]], dtype: torch.dtype = torch.float32, seed: int = 0
) -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(seed)
    return [
        nn.Parameter(torch.randn(tuple(shape), generator=generator, dtype=torch.float64).to(dtype)) for shape in shapes
    ]


def set_gradients(params: Iterable[Tensor], seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for parameter in params:
        parameter.grad = torch.randn(parameter.shape, generator=generator, dtype=torch.float64).to(parameter.dtype)


def entries_of(
    make: Callable[[list[nn.Parameter]], Any], shapes: Iterable[Sequence[int]], dtype: torch.dtype = torch.float32
) -> list[MatrixEntry]:
    """The matrices that an optimizer's one program steps, where every parameter has a gradient."""
    params = parameters(shapes, dtype)
    for parameter in params:
        parameter.grad = torch.zeros_like(parameter)
    (program,) = make(params)._build()
    return list(program.entries)


def snapshot(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """Copies of all parameters and all their states."""
    tensors = []
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            tensors.append(parameter.detach().clone())
            tensors.extend(
                torch.as_tensor(optimizer.state[parameter][name]).clone()
                for name in sorted(optimizer.state.get(parameter, {}))
            )
    return tensors


def tensor_states(optimizer: torch.optim.Optimizer, parameter: Tensor) -> dict[str, Tensor]:
    """The states of a parameter without its count of updates."""
    return {name: state for name, state in optimizer.state[parameter].items() if isinstance(state, Tensor)}


def assert_bitwise(actual: Iterable[Tensor], expected: Iterable[Tensor]) -> None:
    for a, b in zip(list(actual), list(expected), strict=True):
        assert a.dtype == b.dtype
        assert a.shape == b.shape
        view = {2: torch.int16, 4: torch.int32, 8: torch.int64}[a.element_size()]
        assert torch.equal(a.detach().contiguous().view(view), b.detach().contiguous().view(view))


def relative_error(actual: Any, expected: Any) -> float:
    actual = actual.detach().double().numpy() if isinstance(actual, Tensor) else np.asarray(actual, dtype=np.float64)
    expected = expected.detach().double().numpy() if isinstance(expected, Tensor) else np.asarray(expected, np.float64)
    norm = frobenius(expected)
    return frobenius(actual - expected) / norm if norm > 0 else frobenius(actual)


def compiled_programs(optimizer: Any) -> list[Any]:
    """The optimizer's compiled programs, for tests that count compilations."""
    return [program.compiled for program in optimizer._programs or []]
