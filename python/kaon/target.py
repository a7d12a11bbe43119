"""What programs are compiled for: the protocol of a target, and the part of lowering that all targets share.

A target says how a module is scheduled for it, turns the text of a kernel into what it compiles, and loads the kernels
of a lowered program into something that steps.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from kaon import knobs
from kaon.cache import Cache, make_key
from kaon.extension import DriverError, build_id, extension
from kaon.stages import StageFiles, without_locations

if TYPE_CHECKING:
    from kaon import _C

S = TypeVar("S")
T = TypeVar("T")

SIMPLIFY_PIPELINE = "kaon-simplify-pipeline"

PRODUCT_DTYPES = {"bfloat16": "bf16", "float16": "f16"}
"""What the operands of matrix products may be on a GPU, as users and torch name it, and as the compiler does."""

DEFAULT_PRODUCT_DTYPE = "bfloat16"

_DTYPES = {"float64": "f64", "float32": "f32", **PRODUCT_DTYPES}

ELEMENT_BYTES = {"f64": 8, "f32": 4, "bf16": 2, "f16": 2}


def product_type(name: str | None) -> str:
    """The compiler's name of what products on a GPU are of: ``name`` out of :data:`PRODUCT_DTYPES`, or the default."""
    return PRODUCT_DTYPES[name or DEFAULT_PRODUCT_DTYPE]


def buckets(phase: Iterable[Mapping[str, Any]]) -> Iterator[Any]:
    """The buckets of a phase of a plan (as JSON), in order."""
    for group in phase:
        yield from group["buckets"]


def launch_counts(plan: Mapping[str, Any], group: Mapping[str, Any]) -> Iterator[tuple[int, int]]:
    """The number of the kernel of each launch of a group of buckets (of a plan as JSON), and how often a step makes the
    launch if all gradients are there: once for each round of as many matrices as are in flight at once. This is how
    ``StepPlan.costs`` counts."""
    rounds = max(-(-len(bucket["members"]) // bucket["concurrent"]) for bucket in group["buckets"])
    for parts in group["launches"]:
        first = group["buckets"][parts[0]["bucket"]]
        yield plan["sequences"][first["sequence"]]["launches"][parts[0]["launch"]]["kernel"], rounds


def product_dtypes(plan: Mapping[str, Any]) -> tuple[str, ...]:
    """What the operands of a plan's matrix products are (the plan as JSON), by torch's names; empty if it has none."""
    names = {type_: name for name, type_ in _DTYPES.items()}
    found = {
        launch["operands"][0]["type"]
        for sequence in plan["sequences"]
        for launch in sequence["launches"]
        if plan["kernels"][launch["kernel"]]["schedule"] == "matmul"
    }
    return tuple(names[type_] for type_ in sorted(found))


@dataclass
class Statistics:
    """What compiling took. Seconds are wall clock."""

    kernels_compiled: int = 0
    kernels_loaded: int = 0
    """Taken from the cache instead."""
    programs_lowered: int = 0
    programs_loaded: int = 0
    """Taken from the cache instead."""
    emit_seconds: float = 0.0
    """Python functions to module text."""
    lower_seconds: float = 0.0
    """Module text to plan and kernel texts, or loading them."""
    compile_seconds: float = 0.0
    """Kernel texts to loaded machine code."""

    def add(self, other: Statistics) -> None:
        """Add ``other`` to this."""
        for item in fields(self):
            setattr(self, item.name, getattr(self, item.name) + getattr(other, item.name))


@dataclass(frozen=True)
class Kernel:
    """A kernel of a lowered program: its name, and the text that the target compiles."""

    name: str
    text: str
    file: str = ""
    """Where an edited text comes from."""


@dataclass(frozen=True)
class Lowered:
    """A program after all passes: what to run, and the kernels it needs."""

    plan_json: str
    kernels: tuple[Kernel, ...]
    stages: Mapping[str, str] = field(default_factory=dict)
    """Stage name to module text; empty when the program came from the cache."""
    sources: Mapping[str, str] = field(default_factory=dict)
    """Kernel name to the text of its IR; empty when the program came from the cache."""


class CompiledProgram:
    """Machine code and plan for a list of matrices, ready to step.

    Attributes:
        plan: the ``_C.StepPlan``; ``str(plan)`` is a listing for people.
        executor: the ``_C.Executor``, which owns the workspace.
        statistics: what compiling it took.
        module_text: the module the front end made.
        kernel_names: the kernels it uses.
        target: for people, what it runs on.
    """

    def __init__(
        self,
        plan: _C.StepPlan,
        executor: Any,
        statistics: Statistics,
        module_text: str,
        kernel_names: list[str],
        target: str,
    ):
        self.plan = plan
        self.executor = executor
        self.statistics = statistics
        self.module_text = module_text
        self.kernel_names = kernel_names
        self.target = target

    def step(
        self, step: int, parameters: Sequence[int], scalars: Sequence[Sequence[float]], check_finite: bool = True
    ) -> int:
        """Update every matrix in place.

        Args:
            step: 1 at the first step.
            parameters: flat, per matrix: address and row stride of the parameter, of the gradient (address 0: leave
                this matrix alone), and of each state. Strides count elements; columns are adjacent.
            scalars: per scalar set, the values of the update's scalars in order.
            check_finite: whether a non-finite gradient stops the step before anything changes.

        Returns:
            How many matrices have a non-finite gradient; if not 0, nothing was changed.
        """
        return int(self.executor.step(step, parameters, scalars, check_finite))

    def step_with(self, step: int, inputs: _C.StepInputs, check_finite: bool = True) -> int:
        """As :meth:`step`, on addresses and scalars that the extension keeps from one step to the next."""
        return int(self.executor.step_with(step, inputs, check_finite))


class Target(Protocol):
    """Something that programs are compiled for."""

    @property
    def name(self) -> str:
        """Also that of the attribute that states the target on a module: ``kaon.<name>``."""
        ...

    @property
    def schedule_pipeline(self) -> str:
        """The passes from simplified updates to kernels and buffers."""
        ...

    def key(self) -> str:
        """Everything of the target that lowering depends on."""
        ...

    def state_on(self, module: _C.Module) -> None:
        """State the target on ``module``."""
        ...

    def finish_kernel(self, kernel: Kernel, files: StageFiles) -> Kernel:
        """The kernel, from the text of its IR to the text that is compiled."""
        ...

    def support_kernels(self, plan_json: str, files: StageFiles) -> tuple[Kernel, ...]:
        """Kernels that running the plan takes beside its own."""
        ...

    def load(
        self, text: str, lowered: Lowered, cache: Cache, files: StageFiles, statistics: Statistics
    ) -> CompiledProgram:
        """Compile the kernels of ``lowered``, made from the module ``text``, and load them."""
        ...


@dataclass(frozen=True)
class FiniteCheck:
    """What looking for gradients of one type that are not finite takes at every step, in one launch for all."""

    matrices: int
    bytes: int


def finite_checks(plan: Mapping[str, Any]) -> dict[str, FiniteCheck]:
    """The checks of a step plan (as JSON) by the names of their kernels, when every matrix has a gradient."""
    sizes: dict[str, list[int]] = {}
    for matrix in plan["parameters"]:
        kind = matrix["gradType"]
        sizes.setdefault(f"check_finite_{kind}", []).append(matrix["rows"] * matrix["cols"] * ELEMENT_BYTES[kind])
    return {name: FiniteCheck(len(taken), sum(taken)) for name, taken in sorted(sizes.items())}


def lower(text: str, target: Target, files: StageFiles | None = None) -> Lowered:
    """Run every pass on the module ``text`` and build its plan. Compiles no kernel.

    Raises:
        kaon._C.CompileError: the module is not valid, or a pass failed; carries the diagnostics.
    """
    compiler = extension()
    files = files or StageFiles(text, target.name)

    def stage(name: str, module: _C.Module) -> _C.Module:
        """Dump ``module``, and continue with the edited file where there is one."""
        if files.wants(name):
            files.write(name, module.print(locations=True))
        edited = files.replacement(name)
        if edited is not None:
            module = compiler.parse(edited[0], edited[1])
        stages[name] = str(module)
        return module

    stages: dict[str, str] = {}
    module = compiler.parse(text)
    target.state_on(module)  # before the dump, so that kaon-opt makes the next stage of it
    module = stage("kaon", module)
    if f"kaon.{target.name}" not in stages["kaon"]:  # an edited file that does without
        target.state_on(module)
    module.run_pipeline(SIMPLIFY_PIPELINE)
    module = stage("simplified", module)
    module.run_pipeline(target.schedule_pipeline)
    module = stage("scheduled", module)
    sources = [_edited(Kernel(source.name, source.text), files) for source in module.kernels()]
    kernels = tuple(target.finish_kernel(source, files) for source in sources)
    plan_json = _plan(module, files)
    kernels += target.support_kernels(plan_json, files)
    files.warn_unused()
    return Lowered(plan_json, kernels, stages, {source.name: source.text for source in sources})


def _edited(kernel: Kernel, files: StageFiles) -> Kernel:
    """The IR of ``kernel``, dumped, and replaced by an edited file where there is one."""
    files.write("kernels", kernel.text, kernel.name)
    edited = files.replacement("kernels", kernel.name)
    if edited is None:
        return kernel
    extension().parse(*edited)  # a mistake is reported with the name of the file
    return Kernel(kernel.name, *edited)


def _plan(module: _C.Module, files: StageFiles) -> str:
    """The plan of a lowered module, or an edited one, as JSON."""
    compiler = extension()
    plan_json: str = compiler.build_plan(module).to_json()
    files.write("plan", plan_json)
    edited = files.replacement("plan")
    if edited is not None:
        plan_json, name = edited
        try:
            compiler.StepPlan.from_json(plan_json)
        except ValueError as error:
            raise DriverError(f"{name}: {error}") from None
    return plan_json


def lower_cached(text: str, target: Target, cache: Cache, statistics: Statistics) -> Lowered:
    """:func:`lower`, unless the cache holds the result for this program, compiler and target."""
    files = StageFiles(text, target.name)
    if files.active:
        statistics.programs_lowered += 1
        return lower(text, target, files)
    key = make_key(
        "program",
        build_id(),
        target.name,
        target.key(),
        SIMPLIFY_PIPELINE,
        target.schedule_pipeline,
        without_locations(text),
    )
    payload = None if knobs.compilation.always_compile else cache.load(key)
    if payload is not None:
        try:
            stored = json.loads(payload)
            lowered = Lowered(stored["plan"], tuple(Kernel(*kernel) for kernel in stored["kernels"]))
        except (ValueError, KeyError, TypeError) as error:
            cache.reject(key, f"not a lowered program ({error})")
        else:
            statistics.programs_loaded += 1
            return lowered
    lowered = lower(text, target, files)
    statistics.programs_lowered += 1
    stored = {"plan": lowered.plan_json, "kernels": [[kernel.name, kernel.text] for kernel in lowered.kernels]}
    cache.store(key, json.dumps(stored).encode())
    return lowered


def compile_missing(
    kernels: Sequence[Kernel],
    load: Callable[[Kernel], bool],
    build: Callable[[Kernel], T],
    keep: Callable[[T], None],
    statistics: Statistics,
) -> None:
    """Load every kernel that can be loaded, and build the others side by side: compilers run without Python's lock.

    Args:
        load: takes a kernel from the cache, if it is there.
        keep: takes what ``build`` made; called on this thread, in the order of the kernels.
    """
    missing = [kernel for kernel in kernels if not load(kernel)]
    statistics.kernels_loaded += len(kernels) - len(missing)
    for built in side_by_side(build, missing):
        keep(built)
        statistics.kernels_compiled += 1


def side_by_side(build: Callable[[S], T], items: Sequence[S]) -> Iterator[T]:
    """What ``build`` makes of each item, in the order of the items; ``KAON_COMPILE_THREADS`` of them are built at the
    same time."""
    workers = min(len(items), knobs.compilation.threads or knobs.available_cores())
    with ThreadPoolExecutor(max(1, workers), thread_name_prefix="kaon-compile") as pool:
        yield from pool.map(build, items)
