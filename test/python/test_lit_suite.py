"""The lit tests check what they claim to check (case B70): a lint over the files, and the lint's own tests."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

SUITE = Path(__file__).resolve().parents[1] / "lit"
SUFFIXES = {".mlir", ".test"}
DIRECTIVES = "NEXT|SAME|NOT|DAG|LABEL|EMPTY|COUNT-[0-9]+"
COMMENT = r"^\s*(?://|#|;)?\s*"


def lint(text: str) -> list[str]:
    """What is wrong with a lit file, as messages that start with the line number (0 for the whole file)."""
    lines = text.replace("\\\n", " ").splitlines()
    runs = [match[1] for line in lines if (match := re.match(rf"{COMMENT}RUN:(.*)", line))]
    if not runs:
        return ["0: no RUN line"]
    problems = []
    prefixes: set[str] = set()
    for run in runs:
        for stage in re.split(r"\||&&|;", run):
            if "FileCheck" in stage:
                named = re.findall(r"--?check-prefix(?:es)?[= ]([\w,-]+)", stage)
                prefixes.update(",".join(named).split(",") if named else ["CHECK"])
    if any("FileCheck" in run and not re.search(r"[|<].*FileCheck|FileCheck.*(<|--?input-file)", run) for run in runs):
        problems.append("0: FileCheck reads nothing: no pipe and no input file")
    verifies = any("verify-diagnostics" in run for run in runs)
    if not prefixes and not verifies and not any(re.search(r"\b(diff|not|count)\b", run) for run in runs):
        problems.append("0: no RUN line checks an output")
    if verifies and not re.search(r"expected-(error|warning|remark|note)", text):
        problems.append("0: verifies diagnostics, but expects none")

    used = set()
    for number, line in enumerate(lines, 1):
        if re.match(rf"{COMMENT}RUN\b(?!:)", line):
            problems.append(f"{number}: RUN without a colon")
        if match := re.match(rf"{COMMENT}([A-Z][A-Z0-9_-]*?)(?:-(?:{DIRECTIVES}))?(:|\s|$)", line):
            name, end = match[1], match[2]
            if end == ":" and name in prefixes:
                used.add(name)
            elif end == ":" and name != "RUN" and ("CHECK" in name or re.match(rf".*-(?:{DIRECTIVES}):", line)):
                problems.append(f"{number}: prefix {name} is not named by a RUN line")
            elif end != ":" and (name in prefixes or name.startswith("CHECK")):
                problems.append(f"{number}: {name} without a colon")
        if re.search(r"expected-(error|warning|remark|note)", line) and not verifies:
            problems.append(f"{number}: an expected diagnostic, but no RUN line verifies any")
    problems += [f"0: prefix {name} is named by a RUN line, but never used" for name in sorted(prefixes - used)]
    return problems


def suite_files() -> list[Path]:
    return sorted(path for path in SUITE.rglob("*") if path.suffix in SUFFIXES and "Inputs" not in path.parts)


def test_b70_suite_is_not_empty() -> None:
    assert len(suite_files()) >= 9


@pytest.mark.parametrize("path", suite_files(), ids=lambda path: str(path.relative_to(SUITE)))
def test_b70_file_checks_something(path: Path) -> None:
    assert lint(path.read_text(encoding="utf-8")) == []


def test_b70_no_test_outside_the_suite() -> None:
    """lit runs only files with the configured suffixes below its root: a test elsewhere would never run."""
    configured = re.search(r"config\.suffixes = (\[.*\])", (SUITE / "lit.cfg.py").read_text(encoding="utf-8"))
    assert configured is not None
    assert set(re.findall(r'"(\.\w+)"', configured[1])) == SUFFIXES
    stray = []
    for path in (SUITE.parents[1]).rglob("*"):
        parts = path.relative_to(SUITE.parents[1]).parts
        if parts[0] in {"build", ".venv", ".git"} or path.suffix not in {".mlir", ".test", ".ll"}:
            continue
        is_test = re.search(r"^\s*(//|#|;)?\s*RUN:", path.read_text(encoding="utf-8"), re.MULTILINE) is not None
        found = SUITE in path.parents and path.suffix in SUFFIXES and "Inputs" not in parts
        if is_test != found:
            stray.append(str(path))
    assert stray == []


GOOD = "// RUN: kaon-opt %s | FileCheck %s\n"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("// CHECK: a\n", "0: no RUN line"),
        ("// RUN: kaon-opt %s\n", "0: no RUN line checks an output"),
        ("// RUN: kaon-opt %s FileCheck %s\n// CHECK: a\n", "0: FileCheck reads nothing: no pipe and no input file"),
        (GOOD, "0: prefix CHECK is named by a RUN line, but never used"),
        (GOOD + "// CHECK: a\n// CHECK-LABEL b\n", "3: CHECK without a colon"),
        (GOOD + "// CHECK: a\n// CHECK b\n", "3: CHECK without a colon"),
        (GOOD + "// CHECK: a\n// CHECK-ROWS: b\n", "3: prefix CHECK-ROWS is not named by a RUN line"),
        (GOOD + "// CHECK: a\n// ROWS-NEXT: b\n", "3: prefix ROWS is not named by a RUN line"),
        (GOOD + "// CHECK: a\n// RUN kaon-opt %s\n", "3: RUN without a colon"),
        (GOOD + "// CHECK: a\n// expected-error {{b}}\n", "3: an expected diagnostic, but no RUN line verifies any"),
        ("// RUN: kaon-opt %s --verify-diagnostics\n", "0: verifies diagnostics, but expects none"),
        (
            "// RUN: kaon-opt %s | FileCheck %s --check-prefixes=A,B\n// A: a\n",
            "0: prefix B is named by a RUN line, but never used",
        ),
    ],
)
def test_b70_lint_finds(text: str, problem: str) -> None:
    assert problem in lint(text)


@pytest.mark.parametrize(
    "text",
    [
        GOOD + "// CHECK-LABEL: a\n// CHECK-COUNT-2: b\n// A comment about CHECK lines.\n",
        "// RUN: kaon-opt %s --a \\\n// RUN:   | FileCheck %s --check-prefix=A\n// A-SAME: a\n",
        "# RUN: kaon-opt %s -o %t\n# RUN: FileCheck %s < %t\nCHECK: a\n",
        "// RUN: kaon-opt %s --verify-diagnostics\n// expected-error @below {{a}}\n",
    ],
)
def test_b70_lint_accepts(text: str) -> None:
    assert lint(text) == []
