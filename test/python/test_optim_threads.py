"""Steps on torch's OpenMP threads."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator

import pytest
import torch
from kaon import _C, knobs
from kaon.optim import PeriodicRowwiseMuon, openmp
from optim_tools import assert_bitwise, parameters, set_gradients

SHAPES = [(300, 500), (64, 1000), (77,)]
FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
PARALLEL = ctypes.CFUNCTYPE(None, FUNCTION, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)


@pytest.fixture(autouse=True)
def _two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    _C.lend_threads(0)
    yield
    _C.lend_threads(0)
    torch.set_num_threads(before)


def trained(steps: int = 4, threads: int | None = None) -> list[torch.nn.Parameter]:
    params = parameters(SHAPES)
    optimizer = PeriodicRowwiseMuon(params, lr=0.1, period=2, threads=threads)
    for index in range(steps):
        set_gradients(params, index)
        optimizer.step()
    return params


def test_torchs_runtime_is_found() -> None:
    assert bool(openmp.parallel_address()) == ("OpenMP" in torch.__config__.parallel_info())


def test_bits_do_not_depend_on_whose_threads() -> None:
    lent = trained()
    _C.lend_threads(0)
    with knobs.scope():
        knobs.runtime.torch_threads = False
        own = trained()
    assert_bitwise(lent, own)


def test_threads_are_lent_where_they_are_as_many(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    @PARALLEL
    def alone(function: object, data: int, threads: int, flags: int) -> None:
        asked.append(threads)
        function(data)  # type: ignore[operator]

    address = ctypes.cast(alone, ctypes.c_void_p).value
    monkeypatch.setattr(openmp, "parallel_address", lambda: address)
    with knobs.scope():
        knobs.runtime.torch_threads = False
        expected = trained()
    trained(threads=3)
    assert not asked
    assert_bitwise(trained(), expected)
    assert set(asked) == {2}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_does_without() -> None:
    params = parameters(SHAPES)
    optimizer = PeriodicRowwiseMuon(params, lr=0.1, period=100)
    set_gradients(params, 0)
    optimizer.step()
    optimizer.step()
    child = os.fork()
    if child == 0:
        optimizer.step()
        os._exit(params[0].detach().numpy().tobytes()[5])
    optimizer.step()
    _, status = os.waitpid(child, 0)
    assert os.WIFEXITED(status) and os.WEXITSTATUS(status) == params[0].detach().numpy().tobytes()[5]
