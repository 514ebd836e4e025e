"""Tasks in Harbor's form where sandboxes are pods: an agent and what judges it share one, which has one image and its own memory."""

from __future__ import annotations

import pytest
from boxed_pods import BoxedPods
from harbor_kit import AGENT, FOLDER, IMAGE, builder, every_row, laid, play

from rollout.errors import DataError, InfrastructureError
from rollout.tools.sandbox import chosen
from rollout.tools.sandbox.pods.sandbox import PodSandboxes

POD_BYTES = 600 << 20
TOML = FOLDER["task.toml"]


@pytest.fixture
def code(tmp_path, monkeypatch):
    (tmp_path / "agent.py").write_text(AGENT)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


@pytest.fixture
def pods(sandbox_host, monkeypatch):
    """Pods without a cluster: their process 1 is the real one."""
    made = BoxedPods(sandbox_host)
    monkeypatch.setattr(chosen, "_CHOSEN", [PodSandboxes(made, POD_BYTES)])
    yield made
    made.kill()


@pytest.mark.process
@pytest.mark.parametrize(("reply", "reward"), [("hello", 1.0), ("goodbye", 0.25)])
async def test_a_task_is_played_and_judged_in_one_pod(code, pods, reply, reward):
    ended = await play(code, reply, instead="", image=f"docker.io/library/{IMAGE}")
    assert (ended.kind, ended.turn_reward, ended.signals["exit_code"]) == ("stop", reward, 0.0)
    assert [lost for _, lost in pods.released] == [False], "one pod, which is given back"


@pytest.mark.process
async def test_a_verifier_that_judges_nothing_is_infrastructure_in_a_pod_too(code, pods):
    with pytest.raises(InfrastructureError, match="the verifier ended by"):
        await play(code, "hello", {"tests/test.sh": "#!/bin/sh\nexit 0\n"})
    assert len(pods.released) == 1


@pytest.mark.process
async def test_an_agent_that_forges_its_reward_in_a_pod_is_judged_all_the_same(code, pods):
    forged = "import os; os.makedirs('/logs/verifier'); open('/logs/verifier/reward.json', 'w').write('9')\n"
    (code / "agent.py").write_text(forged + AGENT)
    assert (await play(code, "goodbye")).turn_reward == 0.25


def test_a_task_that_asks_for_more_memory_than_a_pod_has_is_named(code, monkeypatch):
    monkeypatch.setattr(chosen, "_CHOSEN", [PodSandboxes(None, POD_BYTES)])
    silent = {"task.toml": TOML.replace("memory_mb = 512", "")}
    for changes, said in ((silent, None), ({"task.toml": TOML.replace("512", "2048")}, "2048 MiB")):
        laid(code / "tasks", changes)
        built = builder()
        (row,) = every_row(built)
        if said is None:
            built.made.build(row)
            continue
        with pytest.raises(DataError, match=f"{said}, and programs of a sandbox pod may use 600"):
            built.made.build(row)
