"""Fixtures shared by all Python tests."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator

import pytest
from kaon import knobs

_cache_owner = "KAON_CACHE_DIR" not in os.environ
if _cache_owner:
    # Set here, before pytest-xdist starts its workers, so that all of them and all child processes share it.
    os.environ["KAON_CACHE_DIR"] = tempfile.mkdtemp(prefix="kaon-test-cache-")


def pytest_unconfigure() -> None:
    if _cache_owner:
        shutil.rmtree(os.environ.pop("KAON_CACHE_DIR"), ignore_errors=True)


@pytest.fixture(autouse=True)
def _noted_kernels(request: pytest.FixtureRequest) -> Iterator[None]:
    """For the summary of tools/run_tests.py, the kernels that the fake GPU ran, each once in a process."""
    yield
    tools = sys.modules.get("cuda_tools")
    for name in tools.take_ran() if tools is not None else ():
        request.node.user_properties.append(("kaon-cuda-ran", name))


@pytest.fixture(autouse=True)
def _scoped_knobs() -> Iterator[None]:
    """No test leaks a knob into the next one."""
    with knobs.scope():
        yield
