"""The compiled extension: modules of the kaon dialect, code generation for the host, and the step executor.

Everything here is for :mod:`kaon.driver`; users meet it through :mod:`kaon.optim` and ``python -m kaon``.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypedDict, overload

has_compiler: bool
"""Whether this build has the compiler; without it (``KAON_COMPILER=OFF``) there is only "runtime" below."""

# ---- modules

class CompileError(Exception):
    """Parsing, verification or a pass failed. ``str(error)`` holds every diagnostic."""

    message: str
    diagnostics: list[tuple[str, str, str, list[str]]]
    """``(severity, location, message, notes)`` in order of emission."""

Type = tuple[Any, ...]
"""``("tensor", (4, 6), "f32")`` with None for a dynamic size, ``("f64",)``, ``("i64",)``, ..."""

class Block(NamedTuple):
    """A block of an operation's region. Values are numbers that are unique within the module."""

    arguments: list[int]
    argument_types: list[Type]
    operations: list[Operation]

class Region(NamedTuple):
    """A region of an operation."""

    blocks: list[Block]

class Operation(NamedTuple):
    """An operation as plain data."""

    name: str
    operands: list[int]
    results: list[int]
    result_types: list[Type]
    attributes: dict[str, Any]
    """Enumerators and symbols are strings, arrays are lists, unit attributes are True."""
    regions: list[Region]
    location: str

class KernelSource:
    """A kernel a lowered module needs: its name and the canonical text of a module that holds it alone.

    Texts for CUDA carry locations, which lead from the generated code back to the user's Python.
    """

    @property
    def name(self) -> str: ...
    @property
    def text(self) -> str: ...

class Module:
    """A verified module of the kaon dialect."""

    def run_pipeline(self, pipeline: str) -> None:
        """Run registered passes or pipelines, in the syntax of ``kaon-opt --pass-pipeline``, in place."""

    def print(self, locations: bool = False) -> str: ...
    def clone(self) -> Module: ...
    def to_python(self) -> Operation: ...
    def set_cpu_target(self, target: Mapping[str, Any]) -> None:
        """Record the host's blocking parameters, which packing depends on."""

    def set_cuda_target(self, target: Mapping[str, Any]) -> None:
        """Make a GPU the module's target: ``half`` (``bf16`` or ``f16``) is the type that products take,
        ``shared_bytes`` the shared memory that a block may have (default: that of sm_80)."""

    def kernels(self) -> list[KernelSource]:
        """Every kernel of a scheduled module, once each, in a fixed order."""

def parse(text: str, filename: str = "<kaon>") -> Module:
    """Parse and verify; raises :class:`CompileError`."""

# ---- code generation

def llvm_version() -> str:
    """Version of the LLVM library in use, such as ``22.1.2``."""

class Target(TypedDict):
    """What a processor can do, and the blocking chosen for it."""

    triple: str
    cpu: str
    features: str
    vector_bits: int
    mr: int
    nr: int
    kc: int
    block: int

def host_target() -> Target:
    """Ask the host processor."""

def cpu_target(cpu: str, features: str) -> Target:
    """Another processor of the host's kind, such as ``("x86-64-v3", "+avx2,+fma")``."""

class CompiledKernel:
    """Machine code of one kernel."""

    @property
    def name(self) -> str: ...
    @property
    def object(self) -> bytes:
        """An object file in the host's format."""

    @property
    def seconds(self) -> float: ...
    @property
    def llvm_ir(self) -> str | None: ...
    @property
    def assembly(self) -> str | None: ...

def compile_kernel(text: str, target: Mapping[str, Any], opt_level: int = 3, dump: str | None = None) -> CompiledKernel:
    """Compile the text of a :class:`KernelSource`. Releases the interpreter lock.

    Args:
        dump: ``"llvm"`` or ``"assembly"`` to get that text as well.
    """

def emit_cuda(text: str, lines: bool = True) -> str:
    """The CUDA C++ of a :class:`KernelSource` of a module for CUDA. Releases the interpreter lock.

    Args:
        lines: whether ``#line`` directives lead back to the user's Python. Equal kernels have equal texts without them.

    Raises:
        CompileError: the kernel computes what CUDA kernels cannot.
    """

def cuda_library() -> dict[str, str]:
    """The headers that CUDA kernels include by name, as embedded when this extension was built: name -> text."""

class KernelLibrary:
    """Loaded kernels. Owns their code."""

    def __init__(self) -> None: ...
    def add(self, name: str, object: bytes) -> None:
        """Load an object file that defines the kernel; raises :class:`CompileError` for anything else."""

    def address(self, name: str) -> int:
        """Address of a loaded kernel; raises KeyError where there is none."""

    @property
    def table(self) -> KernelTable: ...

# ---- CUDA

class CudaBinary:
    """What NVRTC made of a text."""

    @property
    def image(self) -> bytes:
        """What a CUDA driver loads."""

    @property
    def kind(self) -> str:
        """What the image is: ``cubin`` or ``ptx``."""

    @property
    def ptx(self) -> str: ...
    @property
    def log(self) -> str: ...
    @property
    def seconds(self) -> float: ...

class Nvrtc:
    """NVIDIA's run-time compiler, opened at run time. Usable from any number of threads at once."""

    def __init__(self, candidates: Sequence[str]) -> None:
        """Open the first usable of ``candidates``; raises OSError, which says for each why it is none."""

    @staticmethod
    def find_loaded() -> str:
        """The path of an NVRTC in this process, or an empty string."""

    @property
    def path(self) -> str: ...
    @property
    def version(self) -> tuple[int, int]: ...
    def supports(self, arch: str) -> bool:
        """Whether code can be generated for an architecture."""

    def compile(
        self,
        source: str,
        name: str,
        arch: str,
        options: Sequence[str] = (),
        headers: Mapping[str, str] = {},
    ) -> CudaBinary:
        """Compile a text that may include ``headers``; raises :class:`CompileError` with the log.

        Releases the interpreter lock.

        Args:
            arch: ``sm_90a`` and the like for a CUBIN, ``compute_80`` and the like for PTX alone.
        """

# ---- runtime

class KernelTable:
    """Addresses of kernels by name. Does not own their code."""

    def __init__(self) -> None: ...
    def add(self, name: str, address: int) -> None: ...
    def __contains__(self, name: str) -> bool: ...

class StepPlan:
    """What each phase of a program runs, as data. ``str(plan)`` is a listing for people."""

    @staticmethod
    def from_json(text: str) -> StepPlan:
        """Raises ValueError, naming the field, for a plan that is not valid."""

    def to_json(self) -> str: ...
    @property
    def period(self) -> int: ...
    @property
    def workspace_bytes(self) -> int: ...
    @property
    def costs(self) -> list[dict[str, int]]:
        """For each phase the ``flops``, ``bytes`` and ``launches`` of a step."""

def build_plan(module: Module) -> StepPlan:
    """The plan of a memory-planned module. Kernels are referred to by name."""

class StepInputs:
    """The addresses, strides and scalars of steps, and how the tensors were that they are of.

    A row is a parameter with its gradient and states. Keeps no tensor alive but gradients, from :meth:`compare` to
    :meth:`release`: they are handed in as entries,
    ``(parameter, its states, the key of their count of updates or None, then key and tensor of each state)``.
    """

    def __init__(
        self,
        tensor_type: type,
        exchange: object | None,
        make_handles: Callable[[list[Any]], list[Any]] | None = None,
    ) -> None:
        """``exchange`` is torch's ``__dlpack_c_exchange_api__``; without it tensors are read by their attributes.
        ``make_handles`` is torch's function that makes handles for its C functions; without it, or where these are not
        in libtorch_cpu, or do not describe a tensor as Python does, tensors are compared as they are read."""

    @property
    def uses_exchange(self) -> bool: ...
    @property
    def uses_shim(self) -> bool:
        """Whether torch's C functions compare tensors, where these can tell."""

    def add(self, matrices: int, states: int) -> int:
        """Add a row; returns its number. Raises ValueError where all rows would have more than 2**26 operands."""

    def place(self, row: int, matrix: int, operand: int, address: int, stride: int) -> None:
        """Say where a matrix of an operand lies: 0 is the parameter, 1 the gradient, then come the states."""

    def add_scalars(self, values: int, count: int, counting_row: int = -1) -> None:
        """Add a scalar set with the ``count`` values numbered ``values``, after the number of this update of
        ``counting_row``, if that is not -1. Raises ValueError where all sets would have 2**26 values."""

    def set_values(self, values: int, numbers: Sequence[float]) -> None:
        """Give the values numbered ``values`` to the sets that have them; raises ValueError for another number."""

    def compare(self, entries: list[tuple[Any, ...]], states: Mapping[Any, Any]) -> list[int]:
        """Compare every row with what it was when it was accepted, and its states with the optimizer's ``states``.

        An address that changed is corrected. Returns the rows that have anything else, or of which torch does not say.
        Holds the gradients of all rows until :meth:`release`, since a parameter may make another at each question.
        """

    def gradient(self, row: int) -> Any:
        """The gradient of a row that :meth:`compare` or :meth:`accept` holds; None without one to update with."""

    def accept(self, row: int, entry: tuple[Any, ...], gradient: Any, in_place: bool) -> None:
        """Take a row for what it is now, and hold its ``gradient``; ``in_place``: whether that is read where it is.

        Raises TypeError where the row counts its updates and its count is no int.
        """

    def clear(self, row: int) -> None:
        """A row without a gradient, which a step leaves alone."""

    def release(self) -> None:
        """Let go of the gradients that :meth:`compare` and :meth:`accept` hold."""

    def count_updates(self, entries: list[tuple[Any, ...]]) -> None:
        """Add one to the count of every row with a gradient that has one. Where states raise, those of the other rows
        are counted, and the first error is raised then."""

    def addresses(self) -> list[int]:
        """Address and stride of each operand of each matrix, as :meth:`Executor.step` takes them."""

    def scalars(self) -> list[list[float]]:
        """The values of each scalar set."""

def has_same_items(dict: Mapping[Any, Any], snapshot: tuple[Any, ...]) -> bool:
    """Whether a dict has the very items of ``(key, value, ...)``, in that order; the value ``...`` stands for any."""

def has_same_objects(sequence: Sequence[Any], objects: tuple[Any, ...]) -> bool:
    """Whether a sequence has the very objects of a tuple, in that order."""

def any_to_update(tensors: tuple[Any, ...]) -> bool:
    """Whether any of the tensors requires a gradient and has one."""

class Executor:
    """Replays a plan. Allocates its workspace and starts the process's worker threads when it is made."""

    @overload
    def __init__(self, plan: StepPlan, library: KernelLibrary, threads: int = 0) -> None: ...
    @overload
    def __init__(self, plan: StepPlan, library: KernelTable, threads: int = 0) -> None: ...
    def step(
        self, step: int, parameters: Sequence[int], scalars: Sequence[Sequence[float]], check_finite: bool = True
    ) -> int:
        """Run one step; see :meth:`kaon.driver.CompiledProgram.step`. Releases the interpreter lock."""

    def step_with(self, step: int, inputs: StepInputs, check_finite: bool = True) -> int:
        """As :meth:`step`, on addresses and scalars kept from one step to the next."""

    @property
    def plan(self) -> StepPlan: ...
    @property
    def matrix_counts(self) -> dict[str, int]:
        """For each kernel, how many matrices it ran on so far."""

    @property
    def workspace_bytes(self) -> int: ...

class CudaError(RuntimeError):
    """A GPU or its driver is not there or failed."""

class CudaDriver:
    """The CUDA driver, opened at run time. Raises :class:`CudaError`, saying what helps."""

    def __init__(self, path: str | None = None) -> None:
        """``path`` is a file or a name for the loader, ``libcuda.so.1`` if it is None."""

    @property
    def path(self) -> str: ...
    @property
    def version(self) -> int:
        """The version of CUDA that it implements, 13000 for 13.0."""

    @property
    def is_fake(self) -> bool:
        """Whether it only imitates a driver, for tests."""

    @property
    def device_count(self) -> int: ...
    def device(self, index: int) -> dict[str, Any]:
        """``name``, ``arch`` (``"sm_90a"``), ``compute_capability``, ``multiprocessors``, ``threads_per_block``,
        ``shared_bytes`` (that a block may have), ``shared_bytes_per_multiprocessor``, ``l2_cache_bytes``,
        ``memory_bytes``."""

class CudaExecutor:
    """Replays a plan on a GPU. Takes its memory when it is made."""

    def __init__(
        self,
        plan: StepPlan,
        images: dict[str, bytes],
        driver: CudaDriver,
        device: int = 0,
        allocate: Callable[[int], int] | None = None,
        graphs: bool = True,
    ) -> None:
        """Load the kernels.

        Args:
            images: CUBIN or PTX of each of the plan's kernels and, for steps that check gradients, of
                ``check_finite_<type>``.
            allocate: gives the address of so many bytes of device memory, aligned to 256 bytes, that stays as long as
                the executor. Without it the driver gives memory.
            graphs: launch each phase as one CUDA graph.

        Raises ValueError for a plan or code that does not fit, :class:`CudaError` for a failing device.
        """

    def step(
        self,
        step: int,
        parameters: Sequence[int],
        scalars: Sequence[Sequence[float]],
        check_finite: bool = True,
        stream: int = 0,
    ) -> int:
        """As :meth:`Executor.step`, on a CUDA stream, given by its handle.

        Returns before the work is done; only ``check_finite`` waits for the stream. A failure of the device may be
        raised by a later step.
        """

    def step_with(self, step: int, inputs: StepInputs, check_finite: bool = True, stream: int = 0) -> int:
        """As :meth:`step`, on addresses and scalars kept from one step to the next."""

    def synchronize(self) -> None:
        """Wait until all steps are done."""

    @property
    def plan(self) -> StepPlan: ...
    @property
    def matrix_counts(self) -> dict[str, int]:
        """For each kernel, how many matrices it ran on so far."""

    @property
    def kernel_launches(self) -> int:
        """How many times a kernel of the plan was launched, alone or in a graph; one covers any number of matrices."""

    @property
    def graph_launches(self) -> int:
        """How many times a graph was launched."""

    def kernels(self, phase: int = 0) -> list[str]:
        """The kernels that a step of a phase launches, in order; raises ValueError for no such phase."""

    def repeat(self, phase: int, launch: int, count: int = 1, stream: int = 0) -> None:
        """Launch one kernel of a phase again, on what the last step left: for measurements of it alone.

        Parameters and states change as it changes them. The tensors of the last step must still be there, gradients
        too.

        Args:
            launch: its position in :meth:`kernels`.

        Raises ValueError before the first step of the phase, for no such phase or launch, and for a negative count.
        """

    @property
    def workspace_bytes(self) -> int: ...
    @property
    def table_bytes(self) -> int: ...
    @property
    def is_fake(self) -> bool: ...

def set_pool_threads(threads: int) -> None:
    """How many threads steps may use in this process, the caller's included; 0 for one per processor."""

def lend_threads(parallel: int) -> None:
    """Let steps run on the process's own threads: the address of OpenMP's ``GOMP_parallel``; 0 ends that."""

def pool_threads() -> int: ...
