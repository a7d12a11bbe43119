"""Which devices parameters may be on, and what steps them there. No test here needs a GPU or a fake of one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import kaon.cuda
import pytest
import torch
from kaon import driver, knobs
from kaon.cuda_target import CudaTarget
from kaon.optim import AdamW, Muon
from kaon.optim.base import _Cohort
from kaon.optim.devices import check_device, check_product_dtype, placement_for, target_for, target_name
from optim_tools import assert_bitwise, parameters, set_gradients, snapshot

CPU, GPU = torch.device("cpu"), torch.device("cuda", 1)
LABEL = "parameter 3 ('head.weight') of shape (4, 8)"


@pytest.mark.parametrize("device", ["mps", "xpu", "meta", "mtia"])
def test_other_devices_are_refused_by_name(device: str) -> None:
    with pytest.raises(ValueError) as caught:
        check_device(LABEL, "Muon", torch.device(device), torch.float32)
    assert str(caught.value) == f"Muon expects parameters on the CPU or on a CUDA device, but {LABEL} is on {device}"


def test_rocm_s_cuda_devices_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "hip", "6.4")
    with pytest.raises(ValueError, match=r"head\.weight.* is on cuda:1$"):
        check_device(LABEL, "Muon", GPU, torch.float32)


def test_float64_is_refused_on_a_gpu_and_nowhere_else(monkeypatch: pytest.MonkeyPatch) -> None:
    check_device(LABEL, "Muon", CPU, torch.float64)
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        check_device(LABEL, "Muon", GPU, dtype)
    with pytest.raises(TypeError) as caught:
        check_device(LABEL, "Muon", GPU, torch.float64)
    assert str(caught.value) == (
        "Muon expects a dtype out of torch.float32, torch.bfloat16, torch.float16 on CUDA, "
        f"but {LABEL} is torch.float64 on cuda:1"
    )
    monkeypatch.setenv("KAON_TARGET", "cuda")
    with pytest.raises(
        TypeError, match=r"parameter 0 of shape \(3, 5\) is torch.float64 for CUDA, as KAON_TARGET says"
    ):
        Muon(parameters([(3, 5)], torch.float64))


def test_the_target_follows_the_device_unless_told_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (target_name(CPU), target_name(GPU)) == ("cpu", "cuda")
    target = target_for(CPU, 3)
    assert isinstance(target, driver.CpuTarget) and target.threads == 3
    monkeypatch.setenv("KAON_TARGET", "cuda")
    assert (target_name(CPU), target_name(GPU)) == ("cuda", "cuda")
    monkeypatch.setenv("KAON_TARGET", "cpu")
    assert (target_name(CPU), target_name(GPU)) == ("cpu", "cuda")
    with pytest.raises(
        driver.DriverError, match="KAON_TARGET=cpu expects parameters on the CPU, but they are on cuda:1"
    ):
        target_for(GPU, None)
    monkeypatch.setenv("KAON_TARGET", "tpu")
    with pytest.raises(knobs.KnobError, match="KAON_TARGET expects one of cpu, cuda, but got 'tpu'"):
        target_name(CPU)


def _driver(monkeypatch: pytest.MonkeyPatch, fake: bool) -> None:
    """A driver with one H100, as far as choosing a target looks at it."""
    device = {"name": "H100", "arch": "sm_90a", "shared_bytes": 232448}
    found = SimpleNamespace(path="/lib/libcuda.so.1", is_fake=fake, device_count=1, device=lambda index: device)
    monkeypatch.setattr(kaon.cuda, "open_driver", lambda: found)
    monkeypatch.setattr("kaon.cuda_target.open_driver", lambda: found)


def test_a_real_driver_cannot_step_parameters_of_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    _driver(monkeypatch, fake=False)
    knobs.runtime.target = "cuda"
    with pytest.raises(
        driver.DriverError, match=r"KAON_TARGET=cuda expects parameters on a CUDA device, or a fake driver"
    ):
        target_for(CPU, None)


@pytest.mark.parametrize("has_raw_streams", [True, False])
def test_steps_are_on_the_current_stream_of_torch(monkeypatch: pytest.MonkeyPatch, has_raw_streams: bool) -> None:
    _driver(monkeypatch, fake=False)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda index: SimpleNamespace(cuda_stream=1000 + index))
    if has_raw_streams:
        monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: 2000 + index, raising=False)
    else:
        monkeypatch.delattr(torch._C, "_cuda_getCurrentRawStream", raising=False)
    placement = placement_for(GPU)
    assert (placement.device, placement.wait) == (1, False)
    assert placement.stream() == (2001 if has_raw_streams else 1001)


def test_a_fake_driver_cannot_step_parameters_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    _driver(monkeypatch, fake=True)
    with pytest.raises(
        driver.DriverError, match=r"expects a real driver for parameters on cuda:1, but .* is a fake one"
    ):
        target_for(GPU, None)


@pytest.mark.parametrize(("known", "arch"), [(True, "sm_90a"), (False, "compute_80")])
def test_code_is_for_the_device_or_ptx_where_its_architecture_is_unknown(
    monkeypatch: pytest.MonkeyPatch, known: bool, arch: str
) -> None:
    _driver(monkeypatch, fake=True)
    monkeypatch.setattr("kaon.nvrtc.load", lambda: SimpleNamespace(supports=lambda name: known))
    knobs.runtime.target = "cuda"
    target = target_for(CPU, None)
    assert isinstance(target, CudaTarget)
    assert (target.arch, target.shared_bytes, target.placement.device, target.placement.wait) == (arch, 232448, 0, True)


def test_a_device_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    _driver(monkeypatch, fake=False)
    with pytest.raises(kaon.cuda.CudaUnavailable, match="expects a device below 1, but got 1: there are 1 device"):
        target_for(GPU, None)


def test_without_a_driver_a_step_fails_and_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAON_TARGET", "cuda")
    monkeypatch.setenv("KAON_CUDA_DRIVER", "/nowhere/libcuda.so.1")
    optimizer = AdamW(parameters([(3, 5)]))
    set_gradients(optimizer.param_groups[0]["params"], 1)
    before = snapshot(optimizer)
    with pytest.raises(kaon.cuda.CudaUnavailable, match=r"/nowhere/libcuda\.so\.1"):
        optimizer.step()
    assert_bitwise(snapshot(optimizer), before)
    assert optimizer.param_groups[0]["step"] == 0


def test_parameters_of_several_devices_are_in_several_programs() -> None:
    cohorts: list[_Cohort] = []
    joined = [
        _Cohort.joining(cohorts, device, 4, period) for device, period in [(CPU, 1), (GPU, 3), (CPU, 3), (GPU, 1)]
    ]
    assert [cohort.device for cohort in cohorts] == [CPU, GPU]
    assert joined[0] is joined[2] and joined[1] is joined[3] and [cohort.period for cohort in cohorts] == [3, 3]


def test_gradients_and_states_are_on_the_device_of_their_parameter() -> None:
    params = parameters([(3, 5), (4, 6)])
    optimizer = Muon(params)
    set_gradients(params, 1)
    optimizer.step()
    (program,) = optimizer._collect()
    # torch lets nobody assign such a gradient, but a tensor may move under it.
    with pytest.raises(
        ValueError, match=r"expects the gradient of parameter 1 of shape \(4, 6\) on cpu, .* it is on meta"
    ):
        program.records[1].place_gradient(program.inputs, torch.empty(4, 6, device="meta"))
    optimizer.state[params[0]]["momentum_buffer"] = torch.empty(3, 5, device="meta")
    with pytest.raises(ValueError, match=r"expects state momentum_buffer of parameter 0 .* on cpu, .* it is on meta"):
        optimizer.step()


def test_a_model_that_moved_needs_a_new_optimizer() -> None:
    params = parameters([(3, 5)])
    optimizer = Muon(params)
    set_gradients(params, 1)
    optimizer.step()
    programs: Any = optimizer._programs
    programs[0].records[0].device = GPU  # where it was
    params[0].data = params[0].detach().clone()
    with pytest.raises(
        ValueError, match=r"was on cuda:1, but is on cpu now; make the optimizer after moving the model"
    ):
        optimizer.step()


def test_the_interpreter_reads_memory_of_the_cpu_only(monkeypatch: pytest.MonkeyPatch) -> None:
    params = parameters([(3, 5)])
    optimizer = Muon(params)
    set_gradients(params, 1)
    (program,) = optimizer._build()
    program.device = GPU
    monkeypatch.setenv("KAON_INTERPRET", "1")
    with pytest.raises(driver.DriverError, match=r"KAON_INTERPRET=1 expects .* on the CPU, but parameter 0 .* cuda:1"):
        program.compile()


def test_nonfinite_gradients_of_several_programs_are_found_together() -> None:
    params = parameters([(3, 5), (4, 6), (7, 2)])
    optimizer = Muon(params)
    set_gradients(params, 1)
    optimizer.step()
    params[1].grad[2, 3] = float("nan")  # type: ignore[index]
    (program,) = optimizer._collect()
    assert [record.index for record in program.nonfinite_records()] == [1]
    assert str(optimizer.plan(show=False)).splitlines()[-2].startswith("target: cpu (")


def test_loaded_states_are_on_the_device_of_their_parameter() -> None:
    params = parameters([(3, 5)])
    optimizer = AdamW(params)
    set_gradients(params, 1)
    optimizer.step()
    again = AdamW(parameters([(3, 5)]))
    again.load_state_dict(optimizer.state_dict())
    (states,) = again.state.values()
    assert {state.device for state in states.values() if isinstance(state, torch.Tensor)} == {CPU}


# ---- products


@pytest.mark.parametrize("value", ["float32", "f16", torch.float32, 16, None])
def test_other_dtypes_of_products_are_refused(value: Any) -> None:
    with pytest.raises(ValueError) as caught:
        check_product_dtype(value)
    assert str(caught.value) == f"expects product_dtype out of bfloat16, float16, but got {value!r}"


def test_a_dtype_of_products_is_refused_where_there_is_no_gpu() -> None:
    with pytest.raises(ValueError, match=r"expects product_dtype out of bfloat16, float16, but got 'half'"):
        Muon(parameters([(3, 5)]), product_dtype="half")
    with pytest.raises(ValueError) as caught:
        Muon(parameters([(3, 5), (4,)]), product_dtype=torch.float16)
    assert str(caught.value) == (
        "Muon expects parameters on a CUDA device for product_dtype 'float16', but all 2 are on the CPU, where "
        "products are of float32 (float64 for float64 parameters)"
    )
    with pytest.raises(TypeError, match="product_dtype"):
        AdamW(parameters([(3, 5)]), product_dtype="float16")  # type: ignore[call-arg]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
def test_the_plan_says_what_the_cpu_multiplies(dtype: torch.dtype) -> None:
    params = parameters([(3, 5)], dtype)
    computed = "float64" if dtype == torch.float64 else "float32"
    assert Muon(params).plan(show=False).targets[0].endswith(f", products of {computed}")
    assert "products of" not in str(AdamW(params).plan(show=False))
