"""The CUDA runtime through ``kaon._C`` on the imitated driver: kernels run on the CPU, nothing here shows a GPU."""

from __future__ import annotations

import faulthandler
import json
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path

import cuda_plans
import fake_cuda
import numpy as np
import nvrtc_tools
import pytest
from cuda_plans import Model, images, momentum_plan, periodic_plan
from kaon import _C
from kaon.explain import describe_plan
from kaon.optim.plan import kernel_costs
from kaon.target import launch_counts

pytestmark = [
    pytest.mark.skipif(fake_cuda.unavailable() is not None, reason=str(fake_cuda.unavailable())),
    pytest.mark.skipif(nvrtc_tools.find_library() is None, reason="no NVRTC is installed"),
]

SHAPES = [(30, 70), (30, 70), (5, 9001), (1, 7)]


@pytest.fixture
def fake() -> Iterator[fake_cuda.Fake]:
    """The fake, as new. The test has made no fault and leaves no memory behind."""
    fake = fake_cuda.fake()
    fake.set_devices()
    fake.set_version()
    fake.set_delays()
    fake.reset_calls()
    yield fake
    assert fake.take_faults() == []
    assert fake.allocated_bytes() == 0


@pytest.fixture
def driver(fake: fake_cuda.Fake) -> _C.CudaDriver:
    return _C.CudaDriver(str(fake.path))


def test_driver_says_what_it_is(driver: _C.CudaDriver) -> None:
    assert driver.is_fake and driver.version == 13000 and driver.device_count == 1
    device = driver.device(0)
    assert device["name"] == "Kaon fake GPU (runs on the CPU)"
    assert (device["arch"], device["compute_capability"]) == ("sm_90a", (9, 0))


@pytest.mark.parametrize("graphs", [False, True])
@pytest.mark.parametrize("padding", [0, 3])
def test_updates_parameters_and_states(driver: _C.CudaDriver, graphs: bool, padding: int) -> None:
    plan = momentum_plan(SHAPES)
    model, expected = Model(plan, padding), Model(plan, padding)
    executor = _C.CudaExecutor(plan, images(), driver, graphs=graphs)
    for count in range(1, 4):
        assert executor.step(count, model.flat(), [[0.25, 0.5]]) == 0
        expected.momentum_step(count, 0.25, 0.5)
    executor.synchronize()
    assert model.contents() == expected.contents()
    assert executor.matrix_counts == {"momentum": 12} and executor.is_fake


@pytest.mark.parametrize("graphs", [False, True])
def test_phases_and_workspace(driver: _C.CudaDriver, graphs: bool) -> None:
    plan = periodic_plan(SHAPES, concurrent=1)
    model, expected = Model(plan), Model(plan)
    executor = _C.CudaExecutor(plan, images(), driver, graphs=graphs)
    for count in range(1, 6):
        executor.step(count, model.flat(), [[0.25]], check_finite=False)
        expected.descent_step(0.25)
    executor.synchronize()
    assert model.contents() == expected.contents()
    assert executor.matrix_counts == {"transpose_f32": 24, "descent": 20}


@pytest.mark.parametrize(("concurrent", "lock_step"), [(1, False), (2, False), (8, True)])
def test_launches_are_counted_alike(driver: _C.CudaDriver, concurrent: int, lock_step: bool) -> None:
    # With one matrix in flight, two of one shape take two rounds.
    plan = periodic_plan(SHAPES, concurrent, lock_step)
    content = json.loads(plan.to_json())
    wanted = [cost["launches"] for cost in plan.costs]
    per_phase = [
        [count for group in phase for _, count in launch_counts(content, group)] for phase in content["phases"]
    ]
    assert [sum(counts) for counts in per_phase] == wanted
    assert sum(kernel.launches for kernel in kernel_costs(content)) == sum(wanted) / 2
    lines = list(describe_plan(content))
    for residue, count in enumerate(wanted):
        launches = f"{count} launch{'es' if count > 1 else ''}"
        assert f"steps with step mod 2 = {residue}: {launches}" in lines
    executor, model = _C.CudaExecutor(plan, images(), driver), Model(plan)
    for step in (1, 2):
        before = executor.kernel_launches
        executor.step(step, model.flat(), [[0.25]])
        executor.synchronize()
        assert executor.kernel_launches - before == len(executor.kernels(step % 2)) == wanted[step % 2]


def test_a_group_shares_its_launches(fake: fake_cuda.Fake, driver: _C.CudaDriver) -> None:
    # Four matrices of three shapes; apart, each shape has launches of its own.
    for lock_step, predicted in ((False, [3, 9]), (True, [1, 3])):
        plan = periodic_plan(SHAPES, lock_step=lock_step)
        assert [cost["launches"] for cost in plan.costs] == predicted
        model, expected = Model(plan), Model(plan)
        executor = _C.CudaExecutor(plan, images(), driver, graphs=False)
        for count in range(1, 5):
            fake.reset_calls()
            executor.step(count, model.flat(), [[0.25]], check_finite=False)
            executor.synchronize()
            expected.descent_step(0.25)
            assert fake.calls("cuLaunchKernel") == predicted[count % 2]
        # The executor counts matrices, however many one launch covers.
        assert executor.matrix_counts == {"transpose_f32": 16, "descent": 16}
        assert model.contents() == expected.contents()


@pytest.mark.parametrize("graphs", [False, True])
def test_groups_without_some_gradients(fake: fake_cuda.Fake, driver: _C.CudaDriver, graphs: bool) -> None:
    plan = periodic_plan(SHAPES, lock_step=True)
    model, expected = Model(plan), Model(plan)
    executor = _C.CudaExecutor(plan, images(), driver, graphs=graphs)
    everyone = range(len(SHAPES))
    # One matrix of a shape, a whole shape, all but one matrix, all matrices, none; each on both kinds of steps.
    for number, skipped in enumerate([(0,), (1,), (0, 1, 2), everyone, ()]):
        for count in (2 * number + 1, 2 * number + 2):
            fake.reset_calls()
            executor.step(count, model.flat(skipped), [[0.25]], check_finite=False)
            executor.synchronize()
            expected.descent_step(0.25, skipped)
            launched = 0 if skipped == everyone else plan.costs[count % 2]["launches"]
            assert graphs or fake.calls("cuLaunchKernel") == launched
            assert model.contents() == expected.contents()


def test_workspaces_of_a_group_that_overlap_are_refused() -> None:
    with pytest.raises(ValueError, match=r"phases\[1\]\[0\]\.buckets\[1\]\.workspaceOffset: expects a workspace apart"):
        periodic_plan(SHAPES, lock_step=True, overlap=256)


@pytest.mark.parametrize("graphs", [False, True])
def test_launches_are_counted(fake: fake_cuda.Fake, driver: _C.CudaDriver, graphs: bool) -> None:
    plan = periodic_plan(SHAPES)
    model = Model(plan)
    executor = _C.CudaExecutor(plan, images(), driver, graphs=graphs)
    assert (executor.kernel_launches, executor.graph_launches) == (0, 0)
    fake.reset_calls()
    for count in range(1, 6):
        executor.step(count, model.flat(), [[0.25]], check_finite=False)
    executor.synchronize()
    assert executor.kernel_launches == sum(plan.costs[count % 2]["launches"] for count in range(1, 6))
    assert executor.graph_launches == fake.calls("cuGraphLaunch") == (5 if graphs else 0)
    assert [len(executor.kernels(phase)) for phase in (0, 1)] == [cost["launches"] for cost in plan.costs]
    # A failed launch is none.
    before = executor.kernel_launches, executor.graph_launches
    fake.fail("cuGraphLaunch" if graphs else "cuLaunchKernel", 999)
    with pytest.raises(_C.CudaError):
        executor.step(6, model.flat(), [[0.25]], check_finite=False)
    assert (executor.kernel_launches, executor.graph_launches) == before


def test_one_kernel_is_launched_again(driver: _C.CudaDriver) -> None:
    """On what the last step left: here as if there were more steps with the same scalars and gradients."""
    plan = momentum_plan(SHAPES)
    model, expected = Model(plan), Model(plan)
    executor = _C.CudaExecutor(plan, images(), driver)
    with pytest.raises(ValueError, match=r"repeat: expects a phase of which a step has run, but none has since"):
        executor.repeat(0, 0)
    executor.step(1, model.flat(), [[0.25, 0.5]])
    assert executor.kernels() == ["momentum"]
    executor.repeat(0, 0)
    executor.repeat(0, 0, count=2)
    executor.synchronize()
    for _ in range(4):
        expected.momentum_step(1, 0.25, 0.5)
    assert model.contents() == expected.contents()
    assert (executor.kernel_launches, executor.graph_launches) == (4, 1)
    with pytest.raises(ValueError, match=r"count: expects at least 0, but got -1"):
        executor.repeat(0, 0, count=-1)
    with pytest.raises(ValueError, match=r"repeat: expects a launch below 1, but got 1"):
        executor.repeat(0, 1)
    for call in (executor.kernels, lambda phase: executor.repeat(phase, 0)):
        with pytest.raises(ValueError, match=r"cuda: expects a phase below 1, but got 1"):
            call(1)


@pytest.mark.parametrize("graphs", [False, True])
def test_a_step_takes_nothing_after_the_first_of_its_phase(
    fake: fake_cuda.Fake, driver: _C.CudaDriver, graphs: bool
) -> None:
    plan = periodic_plan(SHAPES)
    model = Model(plan)
    executor = _C.CudaExecutor(plan, images(), driver, graphs=graphs)
    takers = ("cuMemAlloc", "cuMemHostAlloc", "cuEventCreate", "cuGraphCreate", "cuModuleLoadDataEx")
    for count in range(1, 8):
        if count == 3:
            before = [fake.calls(name) for name in takers]
            fake.reset_calls()
        executor.step(count, model.flat(), [[0.25]])
    executor.synchronize()
    # One graph for each of the two phases.
    assert before[3] == (2 if graphs else 0)
    assert [fake.calls(name) for name in takers] == [0] * len(takers)
    # Of each step: its tables and those of the check in one copy each, and the check's answer.
    assert fake.calls("cuMemcpyHtoDAsync") == 2 * 5 and fake.calls("cuMemcpyDtoHAsync") == 5
    assert fake.calls("cuGraphLaunch") == (5 if graphs else 0)
    assert fake.calls("cuStreamSynchronize") == 5
    # The same handle need not be the same stream, so each step waits for the last one on the device.
    assert fake.calls("cuStreamWaitEvent") == 5


def test_steps_do_not_wait_for_the_device(fake: fake_cuda.Fake, driver: _C.CudaDriver) -> None:
    plan = momentum_plan(SHAPES)
    model, expected = Model(plan), Model(plan)
    executor = _C.CudaExecutor(plan, images(), driver)
    with fake.stream() as stream:
        with fake.blocked(stream):
            # There are two slots of page-locked memory, so two steps can be on their way.
            for count in (1, 2):
                executor.step(count, model.flat(), [[0.25, 0.5]], False, stream)
                expected.momentum_step(count, 0.25, 0.5)
            assert model.contents() == Model(plan).contents()
        executor.synchronize()
    assert fake.calls("cuStreamSynchronize") == 0
    assert model.contents() == expected.contents()


@pytest.mark.parametrize("seed", range(1, 13))
def test_random_delays_on_several_streams(fake: fake_cuda.Fake, driver: _C.CudaDriver, seed: int) -> None:
    fake.set_delays(seed, 300)
    plan = periodic_plan(SHAPES, concurrent=1 + seed % 2)
    model, expected = Model(plan), Model(plan)
    executor = _C.CudaExecutor(plan, images(), driver, graphs=seed % 3 != 0)
    with fake.stream() as first, fake.stream() as second:
        for count in range(1, 9):
            # Steps of one executor are in order on whatever streams they are.
            stream = (0, first, second)[(seed * count) % 3]
            skipped = [count % 4] if count > 3 else []
            rate = 0.5 / count
            executor.step(count, model.flat(skipped), [[rate]], count % 3 == 0, stream)
            expected.descent_step(rate, skipped)
        executor.synchronize()
    assert model.contents() == expected.contents()


@pytest.mark.parametrize("seed", range(1, 5))
def test_executors_on_streams_of_their_own(fake: fake_cuda.Fake, driver: _C.CudaDriver, seed: int) -> None:
    fake.set_delays(seed, 200)
    plans = [momentum_plan(SHAPES), periodic_plan(SHAPES)]
    models, expected = [Model(plan) for plan in plans], [Model(plan) for plan in plans]
    executors = [_C.CudaExecutor(plan, images(), driver) for plan in plans]
    with fake.stream() as first, fake.stream() as second:
        for count in range(1, 6):
            executors[0].step(count, models[0].flat(), [[0.25, 0.5]], False, first)
            executors[1].step(count, models[1].flat(), [[0.25]], False, second)
            expected[0].momentum_step(count, 0.25, 0.5)
            expected[1].descent_step(0.25)
        for executor in executors:
            executor.synchronize()
    assert [model.contents() for model in models] == [model.contents() for model in expected]


def test_two_threads_step_one_executor(fake: fake_cuda.Fake, driver: _C.CudaDriver) -> None:
    fake.set_delays(3, 50)
    plan = momentum_plan([(30, 70)])
    model, expected = Model(plan), Model(plan)
    executor = _C.CudaExecutor(plan, images(), driver)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda _: executor.step(1, model.flat(), [[0.25, 0.5]], False), range(20)))
    executor.synchronize()
    for _ in range(20):
        expected.momentum_step(1, 0.25, 0.5)
    assert model.contents() == expected.contents()


@pytest.mark.parametrize("graphs", [False, True])
def test_gradients_come_and_go(fake: fake_cuda.Fake, driver: _C.CudaDriver, graphs: bool) -> None:
    plan = momentum_plan(SHAPES)
    model, expected = Model(plan), Model(plan)
    executor = _C.CudaExecutor(plan, images(), driver, graphs=graphs)
    sets = [[], [1], [1], [1], [0, 2], [], [0, 1, 2, 3], [3]]
    for count, skipped in enumerate(sets, 1):
        executor.step(count, model.flat(skipped), [[0.25, 0.5]])
        expected.momentum_step(count, 0.25, 0.5, skipped)
    executor.synchronize()
    assert model.contents() == expected.contents()
    # The first tables get a graph at once, later ones when they are met again.
    assert fake.calls("cuGraphCreate") == (2 if graphs else 0)
    # Smaller tables go where the first ones were.
    assert fake.calls("cuMemAlloc") == 2


def test_rows_move_apart(fake: fake_cuda.Fake, driver: _C.CudaDriver) -> None:
    plan = momentum_plan(SHAPES)
    executor = _C.CudaExecutor(plan, images(), driver)
    for padding in (0, 5, 2, 0):
        model, expected = Model(plan, padding), Model(plan, padding)
        executor.step(1, model.flat(), [[0.25, 0.5]])
        executor.synchronize()
        expected.momentum_step(1, 0.25, 0.5)
        assert model.contents() == expected.contents()


@pytest.mark.parametrize("padding", [0, 2])
def test_gradients_that_are_not_finite(fake: fake_cuda.Fake, driver: _C.CudaDriver, padding: int) -> None:
    plan = momentum_plan(SHAPES)
    model = Model(plan, padding)
    executor = _C.CudaExecutor(plan, images(), driver)
    model.arrays[0][1][29, 69] = np.inf
    model.arrays[0][1][3, 2] = np.nan
    model.arrays[2][1][4, 8999] = np.nan
    before = model.contents()
    assert executor.step(1, model.flat(), [[0.25, 0.5]]) == 2
    executor.synchronize()
    assert model.contents() == before and executor.matrix_counts == {"momentum": 0}
    # One that has no turn is not looked at, and numbers that were found are forgotten.
    assert executor.step(1, model.flat(skipped=[0, 2]), [[0.25, 0.5]]) == 0
    assert executor.step(2, model.flat(skipped=[2]), [[0.25, 0.5]]) == 1
    model.arrays[0][1][:] = 0
    assert executor.step(2, model.flat(skipped=[2]), [[0.25, 0.5]]) == 0
    executor.synchronize()


def test_memory_comes_from_the_allocator(fake: fake_cuda.Fake, driver: _C.CudaDriver) -> None:
    given: list[tuple[int, int]] = []

    def allocate(size: int) -> int:
        given.append((size, fake.allocate(size)))
        return given[-1][1]

    plan = periodic_plan(SHAPES)
    model = Model(plan)
    executor = _C.CudaExecutor(plan, images(), driver, allocate=allocate)
    executor.step(1, model.flat(), [[0.25]], check_finite=False)
    executor.synchronize()
    assert fake.calls("cuMemAlloc") == 0
    assert sum(size for size, _ in given) == executor.workspace_bytes + executor.table_bytes
    del executor
    for _, address in given:
        fake.free(address)


def test_questions_leave_the_interpreter_to_the_step_they_wait_for(fake: fake_cuda.Fake, driver: _C.CudaDriver) -> None:
    plan = momentum_plan(SHAPES)
    model = Model(plan)
    executors: list[_C.CudaExecutor] = []
    given: list[int] = []
    asked: list[Future[object]] = []
    questions: list[Callable[[_C.CudaExecutor], object]] = [
        lambda it: it.table_bytes,
        lambda it: it.kernel_launches,
        lambda it: it.graph_launches,
        lambda it: it.kernels(),
    ]
    with ThreadPoolExecutor(len(questions)) as pool:

        def allocate(size: int) -> int:
            for executor in executors:
                # The step that asks for memory holds what the answers wait for.
                asked.extend(pool.submit(question, executor) for question in questions)
                assert not wait(asked, timeout=0.1).done
            given.append(fake.allocate(size))
            return given[-1]

        executors.append(_C.CudaExecutor(plan, images(), driver, allocate=allocate))
        # Whoever waits with the interpreter waits for ever.
        faulthandler.dump_traceback_later(60, exit=True)
        executors[0].step(1, model.flat(), [[0.25, 0.5]], check_finite=True)
        faulthandler.cancel_dump_traceback_later()
        answers = [future.result() for future in asked]
    assert answers == [executors[0].table_bytes, 1, 1, ["momentum"]]
    executors[0].synchronize()
    executors.clear()
    for address in given:
        fake.free(address)


def test_an_allocator_that_fails(driver: _C.CudaDriver) -> None:
    plan = periodic_plan(SHAPES)

    def refuse(size: int) -> int:
        raise MemoryError("no room")

    for allocate, message in (
        (refuse, r"allocate: expects an address for \d+ bytes of device memory, but got: MemoryError: no room"),
        (lambda size: 0, r"allocate: expects an address that is a multiple of 256 .* workspace, but got 0x0"),
        (lambda size: 264, r"allocate: expects an address that is a multiple of 256 .* workspace, but got 0x108"),
    ):
        with pytest.raises(_C.CudaError, match=message):
            _C.CudaExecutor(plan, images(), driver, allocate=allocate)


def test_graphs_and_launches_give_the_same_bits(driver: _C.CudaDriver) -> None:
    plan = periodic_plan(SHAPES)
    contents = []
    for graphs in (False, True):
        model = Model(plan)
        executor = _C.CudaExecutor(plan, images(), driver, graphs=graphs)
        for count in range(1, 6):
            executor.step(count, model.flat(), [[0.3]])
        executor.synchronize()
        contents.append(model.contents())
    assert contents[0] == contents[1]


def test_ptx_runs_where_no_cubin_fits(fake: fake_cuda.Fake) -> None:
    fake.set_devices(capability=(12, 1))
    driver = _C.CudaDriver(str(fake.path))
    assert driver.device(0)["arch"] == "sm_121a"
    plan = momentum_plan(SHAPES)
    model, expected = Model(plan), Model(plan)
    executor = _C.CudaExecutor(plan, images("compute_80"), driver)
    executor.step(1, model.flat(), [[0.25, 0.5]])
    expected.momentum_step(1, 0.25, 0.5)
    executor.synchronize()
    assert model.contents() == expected.contents()


# ---- what goes wrong


@pytest.mark.parametrize(
    ("path", "message"),
    [
        (
            "libnothing.so.7",
            "cuda driver 'libnothing.so.7': expects a library that can be opened, but got: .*libnothing",
        ),
        ("libm.so.6", "expects a driver of CUDA 12.0 or newer, but it has no cuGetProcAddress_v2"),
    ],
)
def test_libraries_that_are_no_driver(path: str, message: str) -> None:
    with pytest.raises(_C.CudaError, match=message):
        _C.CudaDriver(path)


def test_the_stub_of_a_toolkit_is_no_driver() -> None:
    stubs = [path for path in Path("/usr/local").glob("cuda*/**/stubs/libcuda.so") if path.is_file()]
    if not stubs:
        pytest.skip("no CUDA toolkit with a stub is installed")
    with pytest.raises(_C.CudaError, match="it is the stub that a CUDA toolkit has for linking, not a driver"):
        _C.CudaDriver(str(stubs[0]))


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (34, "cuInit failed: CUDA_ERROR_STUB_LIBRARY .*it is the stub that a CUDA toolkit has"),
        (100, "cuInit failed: CUDA_ERROR_NO_DEVICE .*the machine has no GPU that this process may use"),
        (35, "cuInit failed: unknown error .35.: the kernel driver is too old for this libcuda"),
        (803, "cuInit failed: CUDA_ERROR_SYSTEM_DRIVER_MISMATCH .*of different versions"),
        (999, "cuInit failed: unknown error .999.$"),
    ],
)
def test_a_driver_that_does_not_start(fake: fake_cuda.Fake, code: int, message: str) -> None:
    fake.fail("cuInit", code)
    with pytest.raises(_C.CudaError, match=message):
        _C.CudaDriver(str(fake.path))


def test_a_driver_without_a_function(fake: fake_cuda.Fake) -> None:
    message = "expects the function cuGraphLaunch of version 10000, but it has none"
    with fake.hidden("cuGraphLaunch"), pytest.raises(_C.CudaError, match=message):
        _C.CudaDriver(str(fake.path))


def test_a_driver_without_devices(fake: fake_cuda.Fake) -> None:
    fake.set_devices(count=0)
    with pytest.raises(_C.CudaError, match="the machine has no GPU that this process may use"):
        _C.CudaDriver(str(fake.path))


def test_devices_that_are_not_there(driver: _C.CudaDriver) -> None:
    for index in (-1, 1):
        with pytest.raises(ValueError, match=f"device: expects a number from 0 to 0, but got {index}"):
            driver.device(index)
        with pytest.raises(ValueError, match=f"device: expects a number from 0 to 0, but got {index}"):
            _C.CudaExecutor(momentum_plan(SHAPES), images(), driver, device=index)


def test_several_devices(fake: fake_cuda.Fake) -> None:
    fake.set_devices(count=2)
    driver = _C.CudaDriver(str(fake.path))
    plan = momentum_plan(SHAPES)
    model, expected = Model(plan), Model(plan)
    executor = _C.CudaExecutor(plan, images(), driver, device=1)
    executor.step(1, model.flat(), [[0.25, 0.5]])
    executor.synchronize()
    expected.momentum_step(1, 0.25, 0.5)
    assert model.contents() == expected.contents()


def with_image(name: str, image: bytes | None) -> dict[str, bytes]:
    """The images, one of them changed or left out."""
    changed = images() | ({name: image} if image is not None else {})
    if image is None:
        del changed[name]
    return changed


def test_images_that_do_not_fit(driver: _C.CudaDriver) -> None:
    other_entry = nvrtc_tools.compile_text(
        cuda_plans.TEXTS["momentum"].replace("momentum(const", "momentous(const"), "sm_90a"
    ).cubin
    few = cuda_plans.TEXTS["momentum"].replace(
        ",\n         const double *scalars) {", ") { const double *scalars = nullptr;"
    )
    few_parameters = nvrtc_tools.compile_text(few.replace(" {  const", " { const"), "sm_90a").cubin
    few_threads = nvrtc_tools.compile_text(cuda_plans.TEXTS["momentum"].replace("(256, 2)", "(128, 2)"), "sm_90a").cubin
    unbounded = cuda_plans.TEXTS["momentum"].replace("KAON_KERNEL(256, 2)", 'extern "C" __global__ void')
    no_threads = nvrtc_tools.compile_text(unbounded, "sm_90a").cubin
    few_in_ptx = images("compute_80")["momentum"].replace(b".maxntid 256", b".maxntid 128")
    cubin = images()["momentum"]
    for image, message in (
        (None, "expects code for the kernel 'momentum', but there is none; given: 'check_finite_f32', 'descent', "),
        (
            images("sm_80")["momentum"],
            r"kernel 'momentum': expects code for sm_90a \(Kaon fake GPU .*\), but got code for sm_80",
        ),
        (other_entry, "kernel 'momentum': expects an entry of this name in its code, but there is none"),
        (
            few_parameters,
            "kernel 'momentum': expects the parameters 8 bytes at 0, 8 bytes at 8, 8 bytes at 16, but its code has "
            "8 bytes at 0, 8 bytes at 8$",
        ),
        (few_threads, "expects code for blocks of 256 threads, but its code is for 128"),
        (no_threads, "expects code for blocks of 256 threads, but its code does not say for how many"),
        (few_in_ptx, "expects code for blocks of 256 threads, but its code is for 128"),
        (cubin[:100], "kernel 'momentum': cubin: expects a table of section names, but the file is cut off or damaged"),
        (cubin[:4], "kernel 'momentum': cubin: expects a 64-bit ELF header, but the file is cut off or damaged"),
        (
            cubin[:18] + b"\x3e\0" + cubin[20:],
            "kernel 'momentum': cubin: expects code for machine 190 .CUDA., but got 62",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            _C.CudaExecutor(momentum_plan(SHAPES), with_image("momentum", image), driver)


def test_damaged_cubins_are_refused(driver: _C.CudaDriver) -> None:
    # The reader follows offsets of the file; none of them may lead out of it.
    cubin = images()["momentum"]
    for end in range(0, len(cubin), 97):
        with pytest.raises(ValueError if end >= 4 else _C.CudaError, match="kernel 'momentum': "):
            _C.CudaExecutor(momentum_plan(SHAPES), with_image("momentum", cubin[:end]), driver)


def test_ptx_that_the_driver_refuses(fake: fake_cuda.Fake, driver: _C.CudaDriver) -> None:
    with pytest.raises(_C.CudaError, match=r"kernel 'momentum': loading its code failed: no \.version in the text"):
        _C.CudaExecutor(momentum_plan(SHAPES), with_image("momentum", b"not a text of PTX"), driver)
    fake.set_version(12080)
    with pytest.raises(
        _C.CudaError, match=r"PTX is newer than the driver: update the NVIDIA driver\): PTX 9\.0 is too new"
    ):
        _C.CudaExecutor(momentum_plan(SHAPES), images("compute_80"), driver)


def reducing_plan(reductions: int) -> _C.StepPlan:
    """A plan whose kernel ``momentum`` takes shared memory for so many reductions of rows, 256 bytes each."""
    plan = json.loads(momentum_plan(SHAPES).to_json())
    (kernel,) = plan["kernels"]
    kernel |= {"schedule": "rows", "reductions": reductions}
    for sequence in plan["sequences"]:
        for launch in sequence["launches"]:
            launch |= {"items": launch["sizes"][0], "grain": 1, "sharedBytes": 256 * reductions}
    return _C.StepPlan.from_json(json.dumps(plan))


def test_more_shared_memory_than_there_is(driver: _C.CudaDriver) -> None:
    with pytest.raises(ValueError, match="kernel 'momentum': expects 256000 bytes of shared memory for a block"):
        _C.CudaExecutor(reducing_plan(1000), images(), driver)


def test_shared_memory_is_opted_in_to(fake: fake_cuda.Fake, driver: _C.CudaDriver) -> None:
    _C.CudaExecutor(reducing_plan(192), images(), driver)
    assert fake.calls("cuFuncSetAttribute") == 0
    _C.CudaExecutor(reducing_plan(193), images(), driver)
    assert fake.calls("cuFuncSetAttribute") == 1


def test_plans_for_the_other_target(driver: _C.CudaDriver) -> None:
    text = (
        '{"format": "kaon-step-plan", "version": 4, "target": "cpu", "period": 1, "parameters": [], "scalarSets": [],'
    )
    plan = _C.StepPlan.from_json(text + '"kernels": [], "sequences": [], "phases": [[]], "workspaceBytes": 0}')
    with pytest.raises(ValueError, match="target: expects a plan for cuda, but got one for cpu"):
        _C.CudaExecutor(plan, {}, driver)


def test_checks_without_code(driver: _C.CudaDriver) -> None:
    plan = momentum_plan(SHAPES)
    model = Model(plan)
    before = model.contents()
    executor = _C.CudaExecutor(plan, with_image("check_finite_f32", None), driver)
    with pytest.raises(ValueError, match="check_finite: expects code for the kernel 'check_finite_f32'"):
        executor.step(1, model.flat(), [[0.25, 0.5]])
    executor.synchronize()
    assert model.contents() == before
    executor.step(1, model.flat(), [[0.25, 0.5]], check_finite=False)
    executor.synchronize()
    assert model.contents() != before


def test_wrong_arguments_change_nothing(driver: _C.CudaDriver) -> None:
    plan = momentum_plan(SHAPES)
    model = Model(plan)
    before = model.contents()
    executor = _C.CudaExecutor(plan, images(), driver)
    flat = model.flat()
    for count, parameters, scalars, message in (
        (0, flat, [[0.25, 0.5]], "step: expects the step count"),
        (1, flat[:-2], [[0.25, 0.5]], "step: expects 12 buffers"),
        (1, flat[:-1], [[0.25, 0.5]], "parameters: expects a pointer and a row stride each"),
        (1, [0, *flat[1:]], [[0.25, 0.5]], "parameter 'w0': expects a pointer"),
        (1, flat, [[0.25]], "scalar set 0: expects 2 values"),
    ):
        with pytest.raises(ValueError, match=message):
            executor.step(count, parameters, scalars)
    executor.synchronize()
    assert model.contents() == before


def test_streams_that_are_captured(fake: fake_cuda.Fake, driver: _C.CudaDriver) -> None:
    plan = momentum_plan(SHAPES)
    model = Model(plan)
    executor = _C.CudaExecutor(plan, images(), driver)
    with fake.stream() as stream:
        fake.set_capturing(stream, True)
        with pytest.raises(ValueError, match="step: expects a stream that is not being captured"):
            executor.step(1, model.flat(), [[0.25, 0.5]], True, stream)
        fake.set_capturing(stream, False)
        executor.step(1, model.flat(), [[0.25, 0.5]], True, stream)
        executor.synchronize()


@pytest.mark.parametrize(
    ("function", "code", "graphs", "message"),
    [
        (
            "cuLaunchKernel",
            701,
            False,
            "kernel 'momentum': launching 9 blocks of 256 threads with 0 bytes of shared memory failed: "
            "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES .701, too many resources requested for launch.",
        ),
        ("cuGraphLaunch", 719, True, "cuGraphLaunch: CUDA_ERROR_LAUNCH_FAILED"),
        ("cuGraphInstantiateWithFlags", 2, True, "graph of 1 kernels: CUDA_ERROR_OUT_OF_MEMORY"),
        ("cuMemcpyHtoDAsync", 700, True, "cuMemcpyHtoDAsync: sending tables: CUDA_ERROR_ILLEGAL_ADDRESS"),
        ("cuEventSynchronize", 700, True, "waiting for an earlier step: CUDA_ERROR_ILLEGAL_ADDRESS"),
        ("cuEventRecord", 400, True, "cuEventRecord: CUDA_ERROR_INVALID_HANDLE"),
        ("cuCtxPushCurrent", 201, True, "cuCtxPushCurrent: CUDA_ERROR_INVALID_CONTEXT"),
    ],
)
def test_steps_that_fail(
    fake: fake_cuda.Fake, driver: _C.CudaDriver, function: str, code: int, graphs: bool, message: str
) -> None:
    plan = momentum_plan(SHAPES)
    model, expected = Model(plan), Model(plan)
    executor = _C.CudaExecutor(plan, images(), driver, graphs=graphs)
    fake.fail(function, code)
    with pytest.raises(_C.CudaError, match=message):
        executor.step(1, model.flat(), [[0.25, 0.5]], check_finite=False)
    # The executor goes on, and nobody is locked out.
    executor.synchronize()
    fresh = Model(plan)
    executor.step(1, fresh.flat(), [[0.25, 0.5]], check_finite=False)
    expected.momentum_step(1, 0.25, 0.5)
    executor.synchronize()
    assert fresh.contents() == expected.contents()


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (
            "cuDevicePrimaryCtxRetain",
            r"device 0 \(Kaon fake GPU .*\): cuDevicePrimaryCtxRetain failed: CUDA_ERROR_OUT_OF",
        ),
        ("cuMemAlloc", r"cuMemAlloc: expects \d+ free bytes of device memory for workspace: CUDA_ERROR_OUT_OF_MEMORY"),
        ("cuMemHostAlloc", r"cuMemHostAlloc: expects \d+ bytes of page-locked memory: CUDA_ERROR_OUT_OF_MEMORY"),
        ("cuEventCreate", "cuEventCreate: CUDA_ERROR_OUT_OF_MEMORY"),
        ("cuModuleLoadDataEx", "kernel 'transpose_f32': loading its code failed: CUDA_ERROR_OUT_OF_MEMORY"),
        ("cuFuncGetAttribute", "kernel 'transpose_f32': cuFuncGetAttribute: CUDA_ERROR_OUT_OF_MEMORY"),
    ],
)
def test_executors_that_cannot_be_made(
    fake: fake_cuda.Fake, driver: _C.CudaDriver, function: str, message: str
) -> None:
    fake.fail(function, 2)
    with pytest.raises(_C.CudaError, match=message):
        _C.CudaExecutor(periodic_plan(SHAPES), images(), driver)
