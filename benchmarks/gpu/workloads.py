"""What is compiled into packages, run and timed: names, shapes and dtypes, at full size and tiny for the fakes."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from kaon.language import coefficients

Shape = tuple[int, ...]

ARCHITECTURES = ("sm_90a",)


@dataclass(frozen=True)
class Workload:
    """One package, or another run of it.

    Args:
        name: of what is measured or checked, and of the package's directory.
        subject: an optimizer of kaon.optim, or an update of gpu.updates.
        shapes: of its parameters.
        options: of the optimizer.
        products: dtype of matrix products.
        main_loop: of those products, "mma" or, where all are compiled for sm_90a, "wgmma".
        package: of another workload, with the same of all above, which this runs in place of one of its own.
        scale: of the gradients of matrices.
        layout: "dense", or "mixed": parameters and gradients one element off the alignment of the allocator, or with
            gaps between rows, or neither, in turn.
        useful_bytes: what a step must at least move of each element, where that is what bounds it.
    """

    name: str
    subject: str
    shapes: tuple[Shape, ...]
    param: str = "f32"
    grad: str = "f32"
    options: dict[str, Any] = field(default_factory=dict)
    products: str = "bfloat16"
    main_loop: str = "mma"
    package: str = ""
    scale: float = 1.0
    layout: str = "dense"
    useful_bytes: int = 0

    @property
    def directory(self) -> str:
        """Of the package."""
        return self.package or self.name

    @property
    def by_warpgroups(self) -> Workload:
        """The same with the main loop of sm_90a."""
        package = f"{self.package}-wgmma" if self.package else ""
        return replace(self, name=f"{self.name}-wgmma", main_loop="wgmma", package=package)

    def again(self, name: str, **differences: Any) -> Workload:
        """Another run of the same package."""
        return replace(self, name=f"{self.name}-{name}", package=self.directory, **differences)

    def suits(self, architectures: tuple[str, ...]) -> bool:
        """Whether all of these have its main loop."""
        return self.main_loop == "mma" or set(architectures) == {"sm_90a"}


SHAPES: tuple[Shape, ...] = (
    (1, 1), (1, 17), (17, 1), (3, 5), (7, 129), (8, 8), (16, 16), (31, 33), (64, 64), (65, 63), (127, 128), (128, 128),
    (129, 130), (200, 72), (256, 256), (255, 1023), (384, 96), (96, 768), (768, 96), (640, 1152), (1152, 640),
    (1000, 1000), (1024, 1024), (1024, 4096), (4096, 1024), (513, 2049), (2048, 128), (128, 8192), (3, 65536),
    (2, 70001),
)  # fmt: skip
"""Square, wide and tall; multiples of a tile, ragged, thin; rows on the chip and rows that stream."""

FEW: tuple[Shape, ...] = ((3, 5), (127, 128), (129, 130), (384, 96), (640, 1152), (2, 70001))
"""Of the same kinds: below, at and across a tile, tall, in Gram form, streaming."""

TINY_SHAPES: tuple[Shape, ...] = (
    (1, 1), (1, 17), (17, 1), (3, 5), (8, 8), (9, 13), (13, 9), (16, 16), (2, 300),
)  # fmt: skip

NOT_TINY = (
    "muon-bf16", "muon-f32-bf16", "muon-f16", "muon-heavy-ball", "adamw-f32", "product-f16-products",
    "muon-f16-products-tiny", "muon-f16-products-zero", "row-step-f32-mixed", "adamw-amsgrad-mixed",
    "muon-f32-huge-wgmma", "muon-f32-tiny-wgmma", "muon-f32-zero-wgmma", "muon-f32-mixed-wgmma",
)  # fmt: skip
"""What the fakes leave out: other kernels of kinds that they run, each compiled for two machines in a second or two,
and other runs of the same kinds."""

SCALES = {"huge": 1e30, "tiny": 1e-30, "zero": 0.0}
"""Of gradients: beyond and below what products can take without the launch that saves such matrices, and no direction
at all."""

DECAY_MODES = ("after", "cautious")
"""Beside "decoupled", which all others have."""

VECTORS: tuple[Shape, ...] = ((1,), (7,), (1000,), (8193,))
"""Parameters that go to AdamW."""

TIGHT_TABLES = ("polar_express", "polar_express_nanogpt", "cans")
"""Checked with products of f16. Each polynomial of "polar_express" and "cans" ends where values of the one before may
end: what bf16 rounds beyond that blows up. "polar_express_nanogpt" has 2 % of slack, but f16 has the tighter bound."""


def correctness(tiny: bool) -> list[Workload]:
    """Every kernel of the bundled optimizers, in the dtypes that a GPU steps."""
    shapes = TINY_SHAPES if tiny else SHAPES
    vectors = VECTORS[:2] if tiny else VECTORS
    few = shapes[:6] if tiny else FEW
    # Tables for singular values far below 1 cancel at 1, the only one of a single row, and then blow roundings up.
    full_rank = ((3, 5), (13, 9)) if tiny else FEW
    square = tuple(shape for shape in shapes if shape[0] == shape[1])
    periodic = "PeriodicRowwiseMuon"
    period = {"period": 2, "lr": 0.5, "weight_decay": 0.01, "adamw_lr": 0.05}
    muon = {"lr": 0.5, "weight_decay": 0.01}
    found = [
        Workload("muon-f32", periodic, (*shapes, *vectors), options=period),
        Workload("muon-bf16", periodic, (*shapes, *vectors), "bf16", "bf16", period),
        Workload("muon-f32-bf16", periodic, (*few, *vectors), "f32", "bf16", period),
        Workload("muon-f16", periodic, (*few, *vectors), "f16", "f16", period),
        Workload("muon-f16-products", periodic, shapes, options=period, products="float16"),
        Workload("muon-calibrated", periodic, few, options={**period, "row_scale": "calibrated"}),
        Workload("muon-heavy-ball", "Muon", few, options={**muon, "momentum_form": "heavy_ball", "nesterov": False}),
        *(Workload(f"muon-decay-{mode}", "Muon", few, options={**muon, "decay_mode": mode}) for mode in DECAY_MODES),
        *(_with_table(table, full_rank, muon) for table in coefficients.names()),
        Workload("adamw-f32", "AdamW", (*shapes, *vectors), options={"lr": 0.05}),
        Workload("adamw-amsgrad", "AdamW", (*few, *vectors), options={"lr": 0.05, "amsgrad": True}),
        Workload("row-step-f32", "row_step", shapes, options={"lr": 0.5}),
        Workload("product-f32", "symmetric_product", square, options={"lr": 0.5}),
        Workload("product-bf16", "symmetric_product", square, "bf16", "bf16"),
        Workload("product-f16-products", "symmetric_product", square, "f16", "f16", products="float16"),
    ]
    scaled = ("muon-f32", "muon-f16-products")
    found += [item.again(name, scale=SCALES[name]) for item in found if item.name in scaled for name in SCALES]
    mixed = ("muon-f32", "muon-f32-bf16", "muon-f16", "adamw-amsgrad", "row-step-f32", "product-bf16")
    found += [item.again("mixed", layout="mixed") for item in found if item.name in mixed]
    # Last: should they end or spoil the device, which has never run them, the others have been checked.
    both = ("muon-f32", "muon-f16-products", "product-f32", *(f"muon-f32-{name}" for name in (*SCALES, "mixed")))
    found += [item.by_warpgroups for item in found if item.name in both]
    left_out = {name for name in NOT_TINY if tiny}
    return [item for item in found if not left_out & {item.name, item.directory}]


def _with_table(table: str, shapes: tuple[Shape, ...], options: dict[str, Any]) -> Workload:
    """Muon with a table of coefficients, as many steps as it has."""
    options = {**options, "ns_coefficients": table, "ns_steps": None}
    products = "float16" if table in TIGHT_TABLES else "bfloat16"
    return Workload(f"muon-{table}", "Muon", shapes, options=options, products=products)


TRAINING = Workload(
    "training",
    "PeriodicRowwiseMuon",
    ((96, 48), (96,), (96, 96), (96,), (12, 96), (12,)),
    options={"lr": 0.02, "period": 3, "row_scale": "calibrated", "adamw_lr": 2e-3},
)
"""The parameters of the network of gpu.training."""

SANITIZED = Workload("sanitized", "PeriodicRowwiseMuon", ((72, 136), (136, 72), (40,)), options={"period": 2})


def elementwise(tiny: bool) -> Workload:
    """AdamW on 64 M elements: parameter and two states read and written, the gradient read."""
    shapes = ((16, 40),) if tiny else ((4096, 4096),) * 4
    return Workload("time-adamw", "AdamW", shapes, options={"lr": 1e-4}, useful_bytes=28)


def rows(tiny: bool) -> list[Workload]:
    """Row steps on 64 M elements, rows of 4096 and of 16384 columns: parameter and momentum read and written, the
    gradient read."""
    if tiny:
        return [Workload("time-rows-40", "row_step", ((16, 40),), useful_bytes=20)]
    several = ((4096, 4096),) * 4
    return [
        Workload("time-rows-4096", "row_step", several, useful_bytes=20),
        Workload("time-rows-16384", "row_step", ((4096, 16384),), useful_bytes=20),
        Workload("time-rows-4096-bf16-gradient", "row_step", several, grad="bf16", useful_bytes=18),
    ]


def products(tiny: bool) -> list[Workload]:
    """Symmetric products of bf16, alone and in batches: some have four waves if 2 blocks are on each of 132
    multiprocessors, each with a tile of 128x128 of one triangle. How many it are is found where they run."""
    sizes = [(16, 2)] if tiny else [(1024, 30), (2048, 1), (2048, 8), (4096, 1), (4096, 2), (8192, 1)]
    return [
        Workload(f"time-product-{size}-{batch}", "symmetric_product", ((size, size),) * batch, "bf16", "bf16")
        for size, batch in sizes
    ]


def newton_schulz(tiny: bool) -> list[Workload]:
    """Newton-Schulz of bf16: square, 2:1 and 4:1, alone and in batches."""
    sizes = (
        [(8, 16, 2)]
        if tiny
        else [
            (2048, 2048, 1), (2048, 2048, 4), (2048, 2048, 12), (2048, 4096, 4), (2048, 8192, 4), (8192, 2048, 4),
            (4096, 4096, 4), (4096, 16384, 1), (1024, 1024, 12),
        ]
    )  # fmt: skip
    return [
        Workload(f"time-ns-{m}x{n}-{batch}", "orthogonalize", ((m, n),) * batch, "bf16", "bf16")
        for m, n, batch in sizes
    ]


def host(tiny: bool) -> Workload:
    """200 small matrices, whose steps cost the host more than the GPU."""
    return Workload("time-host", "row_step", ((8, 8),) * 6 if tiny else ((128, 128),) * 200)


def all_workloads(tiny: bool) -> list[Workload]:
    """Everything to compile."""
    multiplied = [*products(tiny), *newton_schulz(tiny)]
    both = [*multiplied, *(workload.by_warpgroups for workload in multiplied)]
    checked = [workload for workload in correctness(tiny) if not workload.package]
    return [*checked, TRAINING, SANITIZED, elementwise(tiny), *rows(tiny), *both, host(tiny)]
