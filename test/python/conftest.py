"""Fixtures shared by all Python tests."""

from __future__ import annotations

import importlib.util
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from kaon import knobs

REPOSITORY = Path(__file__).resolve().parents[2]
REFERENCE = REPOSITORY.parent / "shared" / "reference" / "optimizers.py"

_cache_owner = "KAON_CACHE_DIR" not in os.environ
if _cache_owner:
    # Set here, before pytest-xdist starts its workers, so that all of them and all child processes share it.
    os.environ["KAON_CACHE_DIR"] = tempfile.mkdtemp(prefix="kaon-test-cache-")


def pytest_unconfigure() -> None:
    if _cache_owner:
        shutil.rmtree(os.environ.pop("KAON_CACHE_DIR"), ignore_errors=True)


@pytest.fixture(autouse=True)
def _scoped_knobs() -> Iterator[None]:
    """No test leaks a knob into the next one."""
    with knobs.scope():
        yield


@pytest.fixture(scope="session")
def reference() -> ModuleType:
    """The float64 oracle of optimizer steps, an independent derivation kept outside the repository."""
    if not REFERENCE.is_file():
        pytest.skip(f"the reference optimizers are not at {REFERENCE}")
    spec = importlib.util.spec_from_file_location("kaon_reference_optimizers", REFERENCE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
