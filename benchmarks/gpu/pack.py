"""Compiles all packages and the CPU target's training run into a directory; needs the compiler and NVRTC, no GPU.

usage: python -m gpu.pack DIR --commit COMMIT [--fake] [--arch LIST]
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

import torch
from kaon import knobs
from kaon.package import building

from . import environment, network, updates
from .training import REFERENCE
from .workloads import ARCHITECTURES, TRAINING, Workload, all_workloads

REPOSITORY = Path(__file__).resolve().parents[2]


def compile_workload(workload: Workload, directory: Path, architectures: tuple[str, ...]) -> building.Built:
    """The package of one workload."""
    on_gpu = architectures[0].startswith(("sm_", "compute_"))
    request = building.Request(
        workload.shapes,
        architectures,
        workload.param,
        workload.grad,
        workload.options,
        workload.products if on_gpu else None,
    )
    update = getattr(updates, workload.subject, None)
    with knobs.scope():
        knobs.cuda.main_loop = workload.main_loop
        if update is not None:
            return building.compile_update(update, request, directory / workload.name)
        return building.compile_optimizer(building.find_optimizer(workload.subject), request, directory / workload.name)


def write_reference(directory: Path) -> None:
    """The training run on the CPU target."""
    device = torch.device("cpu")
    weights = network.parameters(device)
    cls = building.find_optimizer(TRAINING.subject)
    losses = network.train(cls(weights, **TRAINING.options), weights, device)
    torch.save({"weights": [weight.detach() for weight in weights], "losses": losses}, directory / REFERENCE)


def write_fakes(directory: Path) -> None:
    """The imitated driver, and every kernel of the packages compiled for this processor: what tests of it use, too."""
    sys.path.insert(0, str(REPOSITORY / "test" / "python"))
    import fake_cuda

    reason = fake_cuda.unavailable()
    if reason is not None:
        raise RuntimeError(f"the fakes expect more of this machine: {reason}")
    texts = {path.stem: path.read_text() for path in sorted(directory.glob("*/*.cu"))}
    fake_cuda.build_portable(texts, directory / "fake" / "kernels")
    shutil.copy(fake_cuda.driver_path(), directory / "fake" / "libkaon_fake_cuda.so")


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--commit", required=True, help="of the repository, for the results")
    parser.add_argument("--fake", action="store_true", help="tiny sizes, with a driver and kernels for this processor")
    parser.add_argument("--arch", default=",".join(ARCHITECTURES), help="architectures (default: %(default)s)")
    options = parser.parse_args(arguments)
    options.directory.mkdir(parents=True, exist_ok=True)
    architectures = tuple(options.arch.split(","))
    workloads = [workload for workload in all_workloads(options.fake) if workload.suits(architectures)]
    for number, workload in enumerate(workloads, 1):
        built = compile_workload(workload, options.directory, architectures)
        print(
            f"[{number}/{len(workloads)}] {workload.name}: {built.kernels} kernels, {built.size >> 10} KiB, "
            f"{built.seconds:.1f} s",
            file=sys.stderr,
            flush=True,
        )
    write_reference(options.directory)
    environment.write_packed(options.directory, options.commit)
    if options.fake:
        write_fakes(options.directory)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
