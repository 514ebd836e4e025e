"""Settings of torch that equality depends on, and the identity of what computes."""

from __future__ import annotations

import os
import platform

import torch

CUBLAS_WORKSPACE = ":4096:8"


def apply_numerics(*, threads: int, exact: bool) -> None:
    """Fix thread counts; with ``exact`` allow deterministic kernels only. Once per process, early.

    An operation without a deterministic kernel then raises RuntimeError instead of drifting.
    """
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", CUBLAS_WORKSPACE)
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(exact)
    # Filling fresh memory with NaN finds reads of it; nothing here reads any.
    torch.utils.deterministic.fill_uninitialized_memory = False  # pyrefly: ignore - a property of a module
    torch.backends.cudnn.benchmark = not exact
    if exact:
        torch.backends.cuda.matmul.allow_tf32 = False
        torch.backends.cudnn.allow_tf32 = False


def runtime_identity(*, world_size: int, device: torch.device) -> dict[str, str]:
    """What must be equal for a restore to be exact; PyTorch promises nothing across these."""
    hardware = (
        torch.cuda.get_device_name(device)
        if device.type == "cuda"
        else torch.backends.cpu.get_cpu_capability()
    )
    return {
        "torch": str(torch.__version__),
        "machine": platform.machine(),
        "device": device.type,
        "hardware": hardware,
        "threads": str(torch.get_num_threads()),
        "world_size": str(world_size),
    }
