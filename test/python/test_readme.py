"""What the README shows is true: its code runs, its error is the real one, its files exist."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()


def code_blocks(language: str) -> list[str]:
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    return [text for name, text in blocks if name == language]


def load(path: Path) -> dict[str, object]:
    """Runs a file as a module would run; updates are read from its source."""
    namespace: dict[str, object] = {"__name__": path.stem, "__file__": str(path)}
    exec(compile(path.read_text(), str(path), "exec"), namespace)
    return namespace


def test_the_first_update_trains(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    first, builtin = code_blocks("python")
    example = tmp_path / "first_update.py"
    example.write_text(first)
    namespace = load(example)
    for optimizer in (namespace["optimizer"], None):
        model = namespace["model"]
        assert isinstance(model, torch.nn.Module)
        if optimizer is None:
            exec(builtin, namespace)
            optimizer = namespace["optimizer"]
        assert isinstance(optimizer, torch.optim.Optimizer)
        images, labels = torch.randn(32, 64), torch.randint(0, 10, (32,))
        losses = []
        for _ in range(6):
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        assert losses[-1] < 0.9 * losses[0], losses


def test_the_error_is_the_one_that_a_user_gets(tmp_path: Path) -> None:
    """The last lines that a script with the mistake prints: Python's own traceback, on the way every user takes."""
    pytest.importorskip("torch")
    (shown,) = (block for block in code_blocks("") if "ShapeError" in block)
    (tmp_path / "rowwise.py").write_text(
        textwrap.dedent("""\
            import kaon
            import kaon.language as kl
            import torch

            @kaon.update
            def rowwise(w: kl.param, g: kl.grad, m: kl.state, lr: kl.scalar):
                m = kl.lerp(m, g, 0.05)
                return w - lr * kl.row_normalize(m @ g), m


            kaon.optimizer(rowwise)(torch.nn.Linear(6, 4), lr=0.02)
            """)
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))}
    script = subprocess.run(
        [sys.executable, "rowwise.py"], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    lines = shown.strip().splitlines()
    printed = script.stderr.replace(f"{tmp_path}/", "").splitlines()
    assert script.returncode == 1
    assert printed[-len(lines) :] == lines
    assert script.stderr.count(lines[0].partition(": ")[2]) == 1, "the message comes once"
    assert not any("/kaon/compiler/" in line for line in printed)


def test_linked_files_exist() -> None:
    links = re.findall(r"\]\(([^)#]+)\)", README)
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []


@pytest.mark.parametrize(
    "document", ["README.md", *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))]
)
def test_files_that_documents_name_exist(document: str) -> None:
    text = (ROOT / document).read_text()
    named = re.findall(r"`((?:test|tools|benchmarks|examples|codegen|runtime|passes|dialect|python)/[\w./-]+)`", text)
    assert [path for path in named if not (ROOT / path).exists()] == []
