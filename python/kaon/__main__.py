"""``python -m kaon``: doctor, explain, compile and cache."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence

from kaon import driver, knobs
from kaon.cache import open_cache
from kaon.cuda_target import CudaTarget
from kaon.errors import KaonError
from kaon.explain import (
    DEFAULT_SECTIONS,
    SECTIONS,
    ExplainError,
    explain,
    find_update,
    parse_constexpr,
    parse_shape,
    quantity,
)
from kaon.extension import extension
from kaon.target import DEFAULT_PRODUCT_DTYPE, PRODUCT_DTYPES, product_type

_DTYPES = ("f64", "f32", "bf16", "f16")
_ON_THE_CPU = "on the CPU products are of f32 (f64 for f64 parameters)"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m kaon", description="A compiler for matrix optimizers.")
    commands = parser.add_subparsers(dest="command", required=True)

    commands.add_parser("doctor", help="what works on this machine, and why not what does not")

    explained = commands.add_parser("explain", help="an update's way from Python to kernels")
    _add_update_arguments(explained)
    explained.add_argument(
        "--show",
        metavar="SECTIONS",
        default=",".join(DEFAULT_SECTIONS),
        help=f"comma-separated: {', '.join(SECTIONS)} (default: %(default)s)",
    )

    explained.add_argument(
        "--arch", metavar="ARCH", help="for a GPU such as sm_80, sm_90a or sm_100a instead of the host's processor"
    )

    compiled = commands.add_parser("compile", help="compile for some shapes, into the cache or into a package")
    _add_update_arguments(compiled, packaged=True)
    compiled.add_argument("-o", "--output", metavar="DIR", help="write a package there, which kaon.load reads")
    compiled.add_argument(
        "--arch",
        metavar="LIST",
        help="of a package, comma-separated: sm_80, sm_90a, sm_100a, compute_80 (PTX), ...; or x86-64-v3, -v4, host",
    )

    cache = commands.add_parser("cache", help="the directory of compiled kernels")
    cache.add_argument("action", choices=("show", "list", "clear"), nargs="?", default="show")
    return parser


def _add_update_arguments(parser: argparse.ArgumentParser, packaged: bool = False) -> None:
    optimizers = "; with -o also kaon.optim:Muon and the like" if packaged else ""
    parser.add_argument("update", help=f"module:update, or path/to/file.py:update{optimizers}")
    parser.add_argument(
        "--shape",
        "--shapes",
        action="append",
        required=True,
        metavar="MxN",
        help="rows x columns, or N for one dimension; may repeat" + (", or be a list: 64x64*12,64" if packaged else ""),
    )
    parser.add_argument(
        "--dtype", "--param-dtype", choices=_DTYPES, default="f32", help="of the parameter (default: f32)"
    )
    parser.add_argument("--grad-dtype", choices=_DTYPES, help="of the gradient (default: the parameter's)")
    parser.add_argument(
        "--constexpr",
        *(["--option"] if packaged else []),
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a compile-time option; may repeat",
    )
    parser.add_argument(
        "--product-dtype",
        choices=PRODUCT_DTYPES,
        help=f"of matrix products on the GPU of --arch (default: {DEFAULT_PRODUCT_DTYPE})",
    )


def _explain(options: argparse.Namespace) -> None:
    sections = options.show.split(",")
    unknown = sorted(set(sections) - set(SECTIONS))
    if unknown:
        raise ExplainError(f"--show expects names out of {', '.join(SECTIONS)}, but got {', '.join(unknown)}")
    if options.arch is None and options.product_dtype is not None:
        raise ExplainError(f"--product-dtype {options.product_dtype} expects --arch with a GPU; {_ON_THE_CPU}")
    target = None if options.arch is None else _gpu_target(options)
    update = find_update(options.update)
    constexprs = dict(map(parse_constexpr, options.constexpr))
    for shape in map(parse_shape, options.shape):
        text = explain(
            update,
            shape,
            param_dtype=options.dtype,
            grad_dtype=options.grad_dtype,
            constexprs=constexprs,
            sections=sections,
            target=target,
        )
        sys.stdout.write(text)


def _gpu_target(options: argparse.Namespace) -> CudaTarget:
    """The target that ``--arch`` names."""
    from kaon.package.machine import GpuArchitecture

    if GpuArchitecture.parse(options.arch) is None:
        raise ExplainError(f"--arch expects a GPU such as sm_80, sm_90a or sm_100a, but got {options.arch!r}")
    if "f64" in (options.dtype, options.grad_dtype):
        raise ExplainError("--arch expects matrices of f32, bf16 or f16 for a GPU, but got f64")
    return CudaTarget.of_arch(options.arch, product_type(options.product_dtype))


def _compile(options: argparse.Namespace) -> None:
    if options.output is not None:
        _compile_package(options)
        return
    if options.arch is not None:
        raise ExplainError("--arch expects -o DIR, where the package goes")
    if options.product_dtype is not None:
        raise ExplainError(f"--product-dtype {options.product_dtype} expects -o DIR and a GPU in --arch; {_ON_THE_CPU}")
    update = find_update(options.update)
    constexprs = dict(map(parse_constexpr, options.constexpr))
    entries = [
        driver.MatrixEntry(update, rows, cols, options.dtype, options.grad_dtype or options.dtype, constexprs, text)
        for text in options.shape
        for rows, cols in [parse_shape(text)]
    ]
    statistics = driver.compile_program(entries).statistics
    seconds = statistics.emit_seconds + statistics.lower_seconds + statistics.compile_seconds
    print(
        f"{statistics.kernels_compiled} kernels compiled, {statistics.kernels_loaded} found in the cache, "
        f"{seconds:.2f} s"
    )


def _compile_package(options: argparse.Namespace) -> None:
    from kaon.package import building

    if options.arch is None:
        raise ExplainError("-o expects --arch, such as sm_90a")
    try:
        shapes = building.parse_shapes(",".join(options.shape))
    except ValueError as error:
        raise ExplainError(f"--shapes {error}") from None
    request = building.Request(
        shapes=shapes,
        architectures=tuple(options.arch.split(",")),
        param_dtype=options.dtype,
        grad_dtype=options.grad_dtype,
        options=dict(map(parse_constexpr, options.constexpr)),
        product_dtype=options.product_dtype,
    )
    module, _, name = options.update.rpartition(":")
    if module == "kaon.optim":
        built = building.compile_optimizer(building.find_optimizer(name), request, options.output)
    else:
        built = building.compile_update(find_update(options.update), request, options.output)
    size = quantity(built.size, "B")
    print(f"{built.directory}: {built.kernels} kernels, {built.files} files, {size}, {built.seconds:.2f} s")


def _cache(action: str) -> None:
    cache = open_cache()
    if cache.directory is None:
        print("no cache directory is in use")
        return
    if action == "clear":
        print(f"removed {cache.clear()} entries from {cache.directory}")
        return
    entries = cache.entries()
    size = quantity(sum(entry.size for entry in entries), "B")
    limit = quantity(knobs.cache.size_limit, "B")
    print(f"{cache.directory}: {len(entries)} entries, {size} of at most {limit}")
    if action == "list":
        for entry in entries:
            used = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(entry.used))
            print(f"{entry.key}  {entry.size:>9}  {used}")


def _mistakes() -> tuple[type[Exception], ...]:
    """What is raised for a user's mistake; where there is a compiler, also for an update that it cannot take."""
    mistakes: tuple[type[Exception], ...] = (ExplainError, KaonError, knobs.KnobError)
    try:
        compiler = extension()
    except KaonError:
        return mistakes
    return (*mistakes, compiler.CompileError) if compiler.has_compiler else mistakes


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command. Returns the exit status: 1 for a user's mistake or, from doctor, something broken."""
    options = _parser().parse_args(arguments)
    try:
        if options.command == "doctor":
            from kaon import doctor

            return 0 if doctor.report(sys.stdout.write) else 1
        if options.command == "explain":
            _explain(options)
        elif options.command == "compile":
            _compile(options)
        else:
            _cache(options.action)
    except _mistakes() as error:
        print(f"kaon: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:  # piped into head
        sys.stderr.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
