"""Configuration of the lit suite. The paths of the build come from lit.site.cfg.py, which includes this file."""

import os
import shlex
from pathlib import Path

import lit.formats
import lit.llvm
from lit.llvm.subst import ToolSubst

source = Path(config.kaon_source_root)
build = Path(config.kaon_build_root)

config.name = "kaon"
config.test_format = lit.formats.ShTest(execute_external=False)
config.suffixes = [".mlir", ".test"]
config.test_source_root = str(source / "test/lit")
config.test_exec_root = str(build / "test/lit")
# A variable captured under one CHECK-LABEL is not visible under another, unless its name starts with `$`.
config.environment["FILECHECK_OPTS"] = "--enable-var-scope"

lit.llvm.initialize(lit_config, config)
tools = [
    "kaon-opt",
    "kaon-translate",
    "kaon-lsp-server",
    "kaon-reduce",
    "FileCheck",
    "not",
    "count",
    "split-file",
    "mlir-tblgen",
    "llc",
]
lit.llvm.llvm_config.add_tool_substitutions(tools, [str(build / "bin"), config.llvm_tools_dir])
lit.llvm.llvm_config.add_tool_substitutions(
    [ToolSubst("%python", command=shlex.quote(config.python), unresolved="fatal")], []
)
config.substitutions.append(("%source", str(source)))
config.substitutions.append(("%mlir_include", config.mlir_include_dir))

# The Python half, for tests that drive it from a script.
config.environment["PYTHONPATH"] = os.pathsep.join([str(build / "python")])
config.environment["KAON_CACHE_DIR"] = str(build / "test-kernel-cache")
if any((build / "python/kaon").glob("_C*.so")):
    config.available_features.add("python")
