"""A reward that cannot be imported, in real pods: the run ends at once, says whose line broke, and asked for no engine.

The author's own code looks, while it is imported, whether the vLLM server beside it was asked for.
"""

from typing import Any

import pytest
from samples import build_manifest
from watched import Stage, WatchedRun

pytestmark = [pytest.mark.real_nodes, pytest.mark.timeout(600)]

END_SECONDS = 400.0
JUDGES = """import os, pathlib
engine = pathlib.Path(os.environ["ROLLOUT_ENGINE_DIR"])
assert (engine / "plugin").is_dir(), f"{engine} is not what actor and engine share"
assert not (engine / "start.json").exists(), "the engine was asked for"
import package_of_nobody

def judge(prompts, completions, rows):
    return [0.0] * len(completions)
"""
CODE = {
    "apiVersion": "v1",
    "kind": "ConfigMap",
    "metadata": {"name": "judges"},
    "data": {"judges.py": JUDGES},
}


@pytest.fixture(scope="module")
def run(stage: Stage) -> WatchedRun:
    stage.kubectl.apply(CODE)
    manifest = build_manifest(code={"configMap": {"name": "judges"}}, learner={"nodes": 1})
    manifest["spec"]["train"]["rewards"] = [{"python": {"module": "judges", "function": "judge"}}]
    return stage.start(manifest)


@pytest.fixture(scope="module")
def ended(run: WatchedRun) -> dict[str, Any]:
    assert run.wait_for_end(END_SECONDS)["reason"] == "Failed"
    return run.status()


def test_the_run_ends_as_a_bad_spec_with_the_authors_line(ended: dict[str, Any]):
    ready = next(one for one in ended["conditions"] if one["type"] == "Ready")
    assert (ready["status"], ready["reason"]) == ("False", "InvalidSpec"), ready
    said = (
        "SpecError: reward 'judge': module 'judges' cannot be imported:"
        " ModuleNotFoundError: No module named 'package_of_nobody' (judges.py:5)"
    )
    assert said in ready["message"]


def test_nothing_was_tried_again(ended: dict[str, Any]):
    assert ended["attempt"] == 1
    assert ended["learner"]["restarts"] == 0
    assert ended["actors"]["restarts"] <= 1, "more than the one that a kubelet makes unasked"
