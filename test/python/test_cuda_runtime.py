"""The CUDA runtime through ``kaon._C`` on the imitated driver: kernels run on the CPU, nothing here shows a GPU."""

from __future__ import annotations

from collections.abc import Iterator

import fake_cuda
import nvrtc_tools
import pytest
from cuda_plans import Model, images, momentum_plan, periodic_plan
from kaon import _C

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
    assert executor.launch_counts() == {"momentum": 12} and executor.is_fake


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
    assert executor.launch_counts() == {"transpose_f32": 24, "descent": 20}
