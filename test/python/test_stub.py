"""The stub of the extension names what the extension exports, and nothing else."""

from __future__ import annotations

import ast
from pathlib import Path

import kaon
from kaon import _C


def public_names(names: object) -> set[str]:
    return {name for name in dir(names) if not name.startswith("_")}


def stub() -> ast.Module:
    return ast.parse(Path(kaon.__path__[0], "_C.pyi").read_text(encoding="utf-8"))


# Types that only describe arguments and results; they do not exist at run time.
DESCRIPTIVE = {"Type", "Target"}


def declared(body: list[ast.stmt]) -> set[str]:
    names = set()
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
        elif isinstance(node, ast.Assign):
            names.update(target.id for target in node.targets if isinstance(target, ast.Name))
    return {name for name in names if not name.startswith("_")}


def test_functions_and_classes() -> None:
    assert declared(stub().body) - DESCRIPTIVE == public_names(_C)


def test_members() -> None:
    for node in stub().body:
        if isinstance(node, ast.ClassDef) and node.name not in DESCRIPTIVE:
            exported = getattr(_C, node.name)
            found = public_names(exported)
            if issubclass(exported, tuple):
                found -= public_names(tuple)
            if issubclass(exported, Exception):
                found -= public_names(Exception)
            if node.name == "CompileError":
                found |= {"message", "diagnostics"}
            assert declared(node.body) == found, node.name
