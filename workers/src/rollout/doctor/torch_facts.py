"""``python -m rollout.doctor.torch_facts``: one line of JSON about the installed torch and its devices."""

from __future__ import annotations

import json
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import Any


def main() -> None:
    """Print it."""
    import torch

    devices = [_device(index) for index in range(torch.cuda.device_count())]
    said = {
        "version": torch.__version__,
        "built_for": f"cuda {torch.version.cuda}" if torch.version.cuda else "cpu",
        "nccl": ".".join(map(str, torch.cuda.nccl.version())) if devices else "",
        "triton": _triton(),
        "devices": devices,
    }
    sys.stdout.write(json.dumps(said) + "\n")


def _triton() -> str:
    try:
        return version("triton")
    except PackageNotFoundError:
        return ""


def _device(index: int) -> dict[str, Any]:
    import torch

    free, memory = torch.cuda.mem_get_info(index)
    return {
        "name": torch.cuda.get_device_name(index),
        "memory": memory,
        "free": free,
        "capability": torch.cuda.get_device_capability(index),
    }


if __name__ == "__main__":
    main()
