"""Two steps of a small package and nothing else: what compute-sanitizer watches.

usage: python -m gpu.small_step PACK [--fake]
"""

from __future__ import annotations

import sys
from pathlib import Path

from .sanitizer import FINITE
from .workloads import SANITIZED


def main(arguments: list[str]) -> int:
    """Run; 0 if the parameters are finite afterwards."""
    from .main import open_device

    directory, fake = Path(arguments[0]), "--fake" in arguments
    device = open_device(directory, fake)
    import torch

    from .packages import load

    loaded = load(directory, SANITIZED, device)
    for _ in range(2):
        loaded.optimizer.step()
    device.synchronize()
    finite = all(bool(torch.isfinite(parameter).all()) for parameter in loaded.parameters)
    print(FINITE if finite else "two steps, NOT finite")
    return 0 if finite else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
