"""What this machine has for a run: its memory, and that of the accelerators that the process may see."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import psutil

from rollout.errors import SpecError
from rollout.models.shapes import read_shape
from rollout.runs.plan.facts import model_facts
from rollout_api.checks.accelerators.fitting import model_fits
from rollout_api.checks.facts import DataFacts, Facts
from rollout_api.v1alpha1.run import RolloutRunSpec

DEVICES_VARIABLE = "CUDA_VISIBLE_DEVICES"
SECONDS_MAX = 20.0
MIB = 1 << 20


def host_bytes() -> int:
    """Memory of this machine."""
    return int(psutil.virtual_memory().total)


def device_bytes() -> tuple[int, ...]:
    """Memory of each NVIDIA device, in the driver's order; () where there is none or the driver does not answer."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return ()
    asked = [tool, "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    try:
        said = subprocess.run(
            asked, capture_output=True, text=True, timeout=SECONDS_MAX, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return ()
    sizes = [int(line) * MIB for line in said.split() if line.isdigit()]
    names = visible_devices(os.environ, len(sizes))
    if all(name.isdigit() for name in names):
        return tuple(sizes[int(name)] for name in names if int(name) < len(sizes))
    return tuple(sizes[: len(names)])  # named by what only the driver knows: taken to be alike


def visible_devices(environment: Mapping[str, str], count: int) -> tuple[str, ...]:
    """Of ``count`` accelerators those that a process may see, as CUDA_VISIBLE_DEVICES names them: all, where it is unset."""
    named = environment.get(DEVICES_VARIABLE)
    there = [str(index) for index in range(count)] if named is None else named.split(",")
    return tuple(name.strip() for name in there if name.strip())[:count]


def require_room(spec: RolloutRunSpec, model: Path, prompt_tokens_max: int | None) -> None:
    """Look whether a run of the model in a folder fits this machine's accelerators; without any all do.

    ``spec`` names its dtype. Raises SpecError with the nearest settings that fit.
    """
    devices = device_bytes()
    if not devices or spec.train is None:
        return
    facts = Facts(
        platform="local",
        model=model_facts(read_shape(model)),
        data=DataFacts(prompt_tokens_max=prompt_tokens_max),
        device_bytes=devices,
        host_bytes=host_bytes(),
    )
    for problem in model_fits(spec, facts):
        raise SpecError(f"{problem.field}: {problem.message}; {problem.fix}")
