"""The set-up script: it does only what is missing, and each thing it cannot do is one clear line instead of a trace."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


class Machine:
    """A pretended machine: the real script in a copy of the tree, with the system's commands replaced by stubs."""

    def __init__(self, directory: Path) -> None:
        self.tree = directory / "kaon"
        shutil.copytree(ROOT / "tools/setup", self.tree / "tools/setup")
        shutil.copy(ROOT / "pyproject.toml", self.tree)
        self.bin = directory / "bin"
        self.bin.mkdir()
        self.calls = directory / "calls"
        self.calls.touch()
        self.command("dpkg-query", 'echo "install ok installed"')
        self.command("apt-get", "exit 0")
        self.command("apt-cache", "echo found")
        self.command("llvm-config-22", "echo 22.1.8")
        self.command("df", 'printf "header\\n/dev/x 999999999 1 99999999 1%% /\\n"')
        # The script's python: real, so that version and header checks are, but pip and venv are only recorded.
        self.command("python3", f'case "$*" in *pip*|*venv*) exit 0;; esac; exec {sys.executable} "$@"')
        self.environment_with("print('')")

    def environment_with(self, missing: str) -> None:
        """A ready .venv whose check for missing packages runs ``missing``."""
        (self.tree / "tools/setup/missing_packages.py").write_text(missing)
        venv = self.tree / ".venv/bin"
        venv.mkdir(parents=True, exist_ok=True)
        pip = 'case "$*" in *"pip install"*) exit ${PIP_STATUS:-0};; esac'
        self.command("python", f'{pip}; exec {sys.executable} "$@"', venv)

    def command(self, name: str, body: str, directory: Path | None = None) -> None:
        path = (directory or self.bin) / name
        path.write_text(f'#!/bin/bash\necho "{name} $*" >>"{self.calls}"\n{body}\n')
        path.chmod(path.stat().st_mode | stat.S_IXUSR)

    def run(self, **environment: str) -> subprocess.CompletedProcess[str]:
        path = f"{self.bin}:{os.environ['PATH']}"
        clean = {key: value for key, value in os.environ.items() if key != "KAON_VENV"}
        command = ["bash", str(self.tree / "tools/setup/install.sh")]
        return subprocess.run(command, env={**clean, "PATH": path, **environment}, capture_output=True, text=True)

    def called(self, name: str) -> list[str]:
        return [line for line in self.calls.read_text().splitlines() if line.startswith(name)]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def assert_one_line(result: subprocess.CompletedProcess[str], *expected: str) -> None:
    assert result.returncode == 1
    (line,) = result.stderr.splitlines()
    assert line.startswith("setup: ")
    for text in expected:
        assert text in line


def test_a_ready_machine_installs_nothing(machine: Machine) -> None:
    result = machine.run()
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
    assert not machine.called("apt-get") and not any("pip install" in call for call in machine.called("python"))


def test_only_missing_packages_are_installed(machine: Machine) -> None:
    machine.command("dpkg-query", 'case "$*" in *ninja-build*) exit 1;; esac; echo "install ok installed"')
    machine.environment_with("print('lit==23.1.5')")
    result = machine.run()
    assert result.returncode == 0, result.stderr
    (install,) = [call for call in machine.called("apt-get") if " install " in call]
    assert install.endswith(" ninja-build")
    (pip,) = [call for call in machine.called("python") if "pip install" in call]
    assert pip.endswith(" lit==23.1.5")


def test_a_package_that_does_not_exist(machine: Machine) -> None:
    machine.command("dpkg-query", 'case "$*" in *libmlir-22-dev*) exit 1;; esac; echo "install ok installed"')
    machine.command("apt-cache", "true")
    assert_one_line(machine.run(), "libmlir-22-dev", "bookworm-security")


def test_llvm_of_another_version(machine: Machine) -> None:
    machine.command("llvm-config-22", "echo 22.0.1")
    assert_one_line(machine.run(), "expects LLVM 22.1", "found 22.0.1")


def test_too_little_disk(machine: Machine) -> None:
    machine.command("dpkg-query", "exit 1")
    machine.command("df", 'printf "header\\n/dev/x 9999999 1 1048576 1%% /\\n"')
    assert_one_line(machine.run(), "needs 3 GiB free", "only 1 GiB")


def test_no_network_for_debian_packages(machine: Machine) -> None:
    machine.command("dpkg-query", "exit 1")
    machine.command("apt-get", "exit 100")
    assert_one_line(machine.run(), "apt-get update failed", "setup.log")


def test_no_network_for_python_packages(machine: Machine) -> None:
    machine.environment_with("print('lit==23.1.5')")
    assert_one_line(machine.run(PIP_STATUS="1"), "pip install failed", "setup.log")


def test_an_old_python(machine: Machine) -> None:
    machine.command("python3", '[ "$1" = -V ] && echo "Python 3.9.2"; exit 1')
    assert_one_line(machine.run(), "expects Python 3.11 or newer", "Python 3.9.2")


def test_an_environment_that_is_not_there(machine: Machine, tmp_path: Path) -> None:
    assert_one_line(machine.run(KAON_VENV=str(tmp_path / "nowhere")), "KAON_VENV names", "nowhere")


def test_the_users_environment_is_used_and_not_replaced(machine: Machine) -> None:
    own = machine.tree / ".venv"
    theirs = own.rename(machine.tree.parent / "theirs")
    result = machine.run(KAON_VENV=str(theirs))
    assert result.returncode == 0, result.stderr
    assert not own.exists()
    assert any("missing_packages.py --existing" in call for call in machine.called("python"))


def missing_packages(*arguments: str, versions: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Runs missing_packages.py with the installed versions replaced."""
    script = (
        "import runpy, sys\nfrom importlib import metadata\n"
        f"versions = {versions!r}\n"
        "def version(name):\n"
        "    if name not in versions: raise metadata.PackageNotFoundError(name)\n"
        "    return versions[name]\n"
        f"metadata.version = version\nsys.argv = ['missing_packages.py', *{arguments!r}]\n"
        f"runpy.run_path({str(ROOT / 'tools/setup/missing_packages.py')!r}, run_name='__main__')\n"
    )
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)


def pinned_versions() -> dict[str, str]:
    lines = (ROOT / "tools/setup/requirements.txt").read_text().splitlines()
    return dict(line.split("==") for line in lines if line and not line.startswith("#"))


def test_missing_packages_names_what_differs_from_the_pins() -> None:
    pins = pinned_versions()
    assert missing_packages(versions=pins).stdout.split() == []
    assert missing_packages(versions={**pins, "torch": pins["torch"] + "+cpu"}).stdout.split() == []
    changed = {**pins, "torch": "2.9.1"}
    del changed["lit"]
    assert missing_packages(versions=changed).stdout.split() == [f"lit=={pins['lit']}", f"torch=={pins['torch']}"]


def test_missing_packages_accepts_a_users_versions_in_range_and_refuses_others() -> None:
    pins = pinned_versions()
    assert missing_packages("--existing", versions={**pins, "torch": "2.9.1"}).stdout.split() == []
    refused = missing_packages("--existing", versions={**pins, "torch": "1.13.1"})
    assert refused.returncode == 1
    assert "expects torch 2.9 or newer" in refused.stderr and "found 1.13.1" in refused.stderr


PRESETS = [preset["name"] for preset in json.loads((ROOT / "CMakePresets.json").read_text())["configurePresets"]]


@pytest.mark.parametrize("preset", [name for name in PRESETS if name != "base"])
def test_every_preset_configures_and_has_tests(preset: str, tmp_path: Path) -> None:
    configure = ["cmake", "--preset", preset, "-S", ROOT, "-B", tmp_path, f"-DPython_EXECUTABLE={sys.executable}"]
    configured = subprocess.run(configure, capture_output=True, text=True)
    assert configured.returncode == 0, configured.stdout + configured.stderr
    targets = subprocess.run(["ninja", "-C", tmp_path, "-t", "targets", "all"], capture_output=True, text=True).stdout
    assert "check-kaon: phony" in targets
