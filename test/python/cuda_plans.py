"""Step plans and CUDA kernels written by hand, so that the launcher is tested without the compiler."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from typing import Any

import fake_cuda
import numpy as np
import nvrtc_tools
from kaon import _C
from step_arguments import flat_arguments

Array = np.ndarray

# momentum: w = w - rate * m with m = mu * m + g. Operands: w, g, m, then w, m. Scalars: rate, mu.
# descent: w = w - rate * g. Operands: w, g, then w.
KERNELS = fake_cuda.FAKE / "kernels"
TEXTS = {
    name: (KERNELS / f"{name}.cu").read_text() for name in ("momentum", "transpose_f32", "descent", "check_finite_f32")
}

# Elements of a block of an elementwise kernel, rows and columns of a block of a transpose.
CHUNK = 8192
TRANSPOSED = (32, 128)


@functools.cache
def images(architecture: str = "sm_90a") -> dict[str, bytes]:
    """CUBINs of TEXTS, or PTX for a compute_ architecture; the fake can run them afterwards."""
    fake_cuda.build_kernels(TEXTS)
    compiled = {name: nvrtc_tools.compile_text(text, architecture) for name, text in TEXTS.items()}
    return {name: one.cubin or one.ptx.encode() for name, one in compiled.items()}


def _operand(kind: str, shape: tuple[int, int], **more: int) -> dict[str, Any]:
    return {"kind": kind, "rows": shape[0], "cols": shape[1], "type": "f32", **more}


def _launch(
    kernel: int, operands: list[dict[str, Any]], inputs: int, scalars: list[int], **more: Any
) -> dict[str, Any]:
    rows, cols = operands[0]["rows"], operands[0]["cols"]
    launch = {"kernel": kernel, "operands": operands, "inputs": inputs, "scalars": scalars, "sizes": [rows, cols]}
    return launch | {"items": -(-rows * cols // CHUNK), "grain": CHUNK, "flops": 1, "bytes": 1, "sharedBytes": 0} | more


def _kernel(name: str, schedule: str, operands: int, inputs: int, scalars: int) -> dict[str, Any]:
    """A kernel that takes so many ``operands`` of f32, the first ``inputs`` of which it reads."""
    takes = {"operands": ["f32"] * operands, "inputs": inputs, "scalars": scalars}
    return {"name": name, "schedule": schedule, "threads": 256} | takes


def _plan(parts: dict[str, Any]) -> _C.StepPlan:
    header = {"format": "kaon-step-plan", "version": 4, "target": "cuda", "period": len(parts["phases"])}
    return _C.StepPlan.from_json(json.dumps(header | parts))


def _parameters(shapes: Sequence[tuple[int, int]], states: Sequence[str]) -> list[dict[str, Any]]:
    return [
        {
            "name": f"w{index}",
            "rows": rows,
            "cols": cols,
            "paramType": "f32",
            "gradType": "f32",
            "states": [{"name": name, "rows": rows, "cols": cols, "type": "f32"} for name in states],
            "scalarSet": 0,
        }
        for index, (rows, cols) in enumerate(shapes)
    ]


def _buckets(shapes: Sequence[tuple[int, int]], concurrent: int) -> list[dict[str, Any]]:
    """One bucket for each shape, whose sequences are numbered alike."""
    return [
        {
            "sequence": number,
            "members": [index for index, other in enumerate(shapes) if other == shape],
            "concurrent": min(concurrent, shapes.count(shape)),
            "workspaceOffset": 0,
        }
        for number, shape in enumerate(dict.fromkeys(shapes))
    ]


def _alone(bucket: dict[str, Any], launches: int) -> dict[str, Any]:
    """A group of one bucket, whose sequence has so many launches."""
    return {"buckets": [bucket], "launches": [[{"bucket": 0, "launch": index}] for index in range(launches)]}


def _together(buckets: list[dict[str, Any]], launches: int) -> dict[str, Any]:
    """A group whose buckets all take part in every launch."""
    parts = [[{"bucket": number, "launch": index} for number in range(len(buckets))] for index in range(launches)]
    return {"buckets": buckets, "launches": parts}


def momentum_plan(shapes: Sequence[tuple[int, int]], concurrent: int = 8) -> _C.StepPlan:
    """Momentum descent with the rate ``lr / step``: one launch where all matrices are in flight at once, else one for
    each round of each shape. Scalars: lr, mu. State: m."""
    program = [{"op": "arg", "index": 0}, {"op": "step"}, {"op": "div", "operands": [0, 1]}, {"op": "arg", "index": 1}]
    sequences = [
        {
            "name": "momentum",
            "scalarProgram": program,
            "launches": [
                _launch(
                    0,
                    [_operand(kind, shape, index=0) for kind in ("param", "grad", "state", "param", "state")],
                    3,
                    [2, 3],
                )
            ],
            "workspaceBytes": 0,
        }
        for shape in dict.fromkeys(shapes)
    ]
    buckets = _buckets(list(shapes), concurrent)
    in_flight = all(bucket["concurrent"] == len(bucket["members"]) for bucket in buckets)
    return _plan(
        {
            "parameters": _parameters(shapes, ["m"]),
            "scalarSets": [{"names": ["lr", "mu"]}],
            "kernels": [_kernel("momentum", "elementwise", operands=5, inputs=3, scalars=2)],
            "sequences": sequences,
            "phases": [[_together(buckets, 1)] if in_flight else [_alone(bucket, 1) for bucket in buckets]],
            "workspaceBytes": 0,
        }
    )


def _round_up(size: int, unit: int) -> int:
    return -(-size // unit) * unit


def _parts(rows: int, cols: int) -> int:
    """Blocks that turn a matrix of ``rows`` by ``cols``."""
    return -(-rows // TRANSPOSED[0]) * -(-cols // TRANSPOSED[1])


def periodic_plan(
    shapes: Sequence[tuple[int, int]], concurrent: int = 8, lock_step: bool = False, overlap: int = 0
) -> _C.StepPlan:
    """Period 2: on odd steps the gradient is transposed twice through the workspace before w = w - rate * g.

    Args:
        lock_step: whether one launch covers all shapes; ``concurrent`` must let all matrices be in flight.
        overlap: bytes by which the workspaces of shapes overlap, a fault.
    """
    program = [{"op": "arg", "index": 0}]
    straight, detour = [], []
    for rows, cols in dict.fromkeys(shapes):
        there = _operand("workspace", (cols, rows), offset=0, pitch=rows)
        size = _round_up(4 * rows * cols, 256)
        back = _operand("workspace", (rows, cols), offset=size, pitch=cols)
        weight, gradient = _operand("param", (rows, cols)), _operand("grad", (rows, cols))
        parts = {"grain": 1, "sharedBytes": 2112 * 4}
        transposes = [
            _launch(0, [gradient, there], 1, [], items=_parts(rows, cols), **parts),
            _launch(0, [there, back], 1, [], items=_parts(cols, rows), **parts),
        ]
        descend = _launch(1, [weight, gradient, weight], 2, [0])
        common = {"scalarProgram": program}
        straight.append(common | {"name": "straight", "launches": [descend], "workspaceBytes": 0})
        launches = [*transposes, _launch(1, [weight, back, weight], 2, [0])]
        detour.append(common | {"name": "detour", "launches": launches, "workspaceBytes": 2 * size})
    plain = _buckets(list(shapes), concurrent)
    longer = [bucket | {"sequence": bucket["sequence"] + len(straight)} for bucket in plain]
    sequences = [*straight, *detour]
    groups = [[_alone(bucket, 1) for bucket in plain], [_alone(bucket, 3) for bucket in longer]]
    sizes = [bucket["concurrent"] * sequences[bucket["sequence"]]["workspaceBytes"] for bucket in longer]
    if lock_step:
        for index, bucket in enumerate(longer):
            bucket["workspaceOffset"] = sum(sizes[:index]) - index * overlap
        groups = [[_together(plain, 1)], [_together(longer, 3)]]
    return _plan(
        {
            "parameters": _parameters(shapes, []),
            "scalarSets": [{"names": ["rate"]}],
            "kernels": [
                _kernel("transpose_f32", "transpose", operands=2, inputs=1, scalars=0),
                _kernel("descent", "elementwise", operands=3, inputs=2, scalars=1),
            ],
            "sequences": sequences,
            "phases": groups,
            "workspaceBytes": max(b["workspaceOffset"] + size for b, size in zip(longer, sizes, strict=True)),
        }
    )


class Model:
    """Memory for a plan: parameters, gradients and states with the same numbers every time, rows ``padding`` apart."""

    def __init__(self, plan: _C.StepPlan, padding: int = 0):
        generator = np.random.default_rng(7)
        self.arrays: list[list[Array]] = []
        self.gaps: list[Array] = []
        for parameter in json.loads(plan.to_json())["parameters"]:
            shape = (parameter["rows"], parameter["cols"])
            arrays = []
            for _ in range(2 + len(parameter["states"])):
                whole = generator.standard_normal((shape[0], shape[1] + padding), np.float32)
                arrays.append(whole[:, : shape[1]])
                self.gaps.append(whole[:, shape[1] :])
            self.arrays.append(arrays)

    def flat(self, skipped: Sequence[int] = ()) -> list[int]:
        """What ``step`` takes; parameters in ``skipped`` have no gradient."""
        return flat_arguments(self.arrays, skipped)

    def momentum_step(self, count: int, lr: float, mu: float, skipped: Sequence[int] = ()) -> None:
        """What a step of :func:`momentum_plan` does, with the same roundings."""
        rate = np.float32(lr / count)
        for index, (weight, gradient, momentum) in enumerate(self.arrays):
            if index not in skipped:
                momentum[:] = np.float32(mu) * momentum + gradient
                weight[:] = weight - rate * momentum

    def descent_step(self, rate: float, skipped: Sequence[int] = ()) -> None:
        """What a step of :func:`periodic_plan` does."""
        for index, (weight, gradient) in enumerate(self.arrays):
            if index not in skipped:
                weight[:] = weight - np.float32(rate) * gradient

    def contents(self) -> list[bytes]:
        """Every bit of it, gaps included."""
        return [array.tobytes() for arrays in self.arrays for array in arrays] + [gap.tobytes() for gap in self.gaps]
