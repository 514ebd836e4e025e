"""An environment in an image of its own beside a real actor: killed while episodes are open, it loses none of them for the run.

The quick tier's guards are `test_a_run_is_scored_by_a_plugin_in_a_container.py`, and the tests of plugins in processes.
"""

from pathlib import Path
from typing import Any

import pytest
from held_plugin import Ended, HeldPlugin, build_image, contained, read_weights
from samples import build_small_run
from watched import Stage, run_here

from cluster.paths import REPOSITORY

pytestmark = [pytest.mark.real_nodes, pytest.mark.slow, pytest.mark.timeout(900)]

STEPS, SAMPLES = 3, 24
ROWS = REPOSITORY / "manifests" / "samples" / "data" / "addition" / "worked-sums.jsonl"
FILES = {
    "plugin.yaml": "{contract: 1, name: patient, version: '1', kind: environment, command: [python, plugin.py]}",
    "games.py": """
class Patient:
    def __init__(self, row):
        self.row, self.replies = row, 0

    def start(self):
        return self.row["prompt"]

    def step(self, reply):
        self.replies += 1
        return f"Not {len(reply)}. Say it again.", self.replies == 2
""",
    "plugin.py": """
from games import Patient
from held import hold
from rollout.plugins.serving import serve


class Held(Patient):
    def step(self, reply):
        hold(1, 19)
        return super().step(reply)


serve(environment=Held)
""",
}


def build_run(environment: dict[str, Any], **more: Any) -> dict[str, Any]:
    pattern = [{"name": "pattern", "value": ".*1.*"}]
    train = {
        "algorithm": {"grpo": {"promptsPerStep": 2, "groupSize": 4}},
        "data": {"jsonl": {"uri": f"file://{ROWS}"}},
        "environment": environment,
        "rewards": [{"builtin": {"name": "format", "parameters": pattern}}],
        "sampling": {"maxNewTokens": 16},
        "maxSteps": STEPS,
    }
    return build_small_run("patient", train, model={"uri": "rollout://tiny-agent"}, **more)


@pytest.fixture(scope="module")
def played(stage: Stage, tmp_path_factory: pytest.TempPathFactory) -> Ended:
    image = build_image(stage, tmp_path_factory.mktemp("image") / "patient", FILES)
    run = stage.start(build_run(contained("patient", image, [])))
    return HeldPlugin(run=run).kill_and_end()


def test_the_run_ends_in_one_attempt_and_every_episode_was_played(played: Ended):
    conditions = {one["type"]: one for one in played.run["status"]["conditions"]}
    assert conditions["Finished"]["reason"] == "Succeeded"
    assert played.run["status"]["attempt"] == 1
    assert played.result.dispositions == {"consumed": SAMPLES, "pending": 0}


def test_an_environments_container_finds_nothing_of_the_run(played: Ended):
    assert [one.splitlines()[0] for one in played.logs] == ["loot []", "loot []"]


def test_its_weights_are_those_of_the_same_class_in_process_on_one_machine(
    played: Ended, tmp_path: Path
):
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "games.py").write_text(FILES["games.py"])
    python = {"python": {"module": "games", "className": "Patient"}}
    manifest = build_run(python, code={"path": "code"})
    # nobody measures the prompts of a container's environment: they may have what the context leaves
    manifest["spec"]["train"]["maxPromptTokens"] = 4096
    run_here(manifest, tmp_path)
    here = read_weights(tmp_path / "run")
    assert len({digest for _, digest in here}) == STEPS + 1, "every step learned something"
    assert played.weights == here
