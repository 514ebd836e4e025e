"""Tools in an image of their own beside a real actor: the run says which there are, the actor asks, and a liar plays nothing."""

import json
from pathlib import Path
from typing import Any

import pytest
from held_plugin import build_image
from samples import build_small_run
from watched import Stage, WatchedRun

from cluster.nodes.addons import build_volume

pytestmark = [pytest.mark.real_nodes, pytest.mark.slow, pytest.mark.timeout(900)]

SECONDS = 400.0
STEPS = 2
FILES = {
    "plugin.yaml": "{contract: 1, name: shelf, version: '1', kind: tool, command: [python, plugin.py]}",
    "plugin.py": """
import held
from rollout.plugins.serving import serve


def area(width: float) -> str:
    "Area of a shelf, in square metres."
    return str(2 * width)


serve(tool=area)
""",
}
AREA = {
    "name": "area",
    "description": "Area of a shelf, in square metres.",
    "parameters": json.dumps(
        {
            "type": "object",
            "additionalProperties": False,
            "properties": {"width": {"type": "number"}},
            "required": ["width"],
        }
    ),
}


def build_run(name: str, image: str, tool: dict[str, str]) -> dict[str, Any]:
    train = {
        "algorithm": {"grpo": {"promptsPerStep": 2, "groupSize": 4}},
        "environment": {
            "builtin": {"name": "arithmetic"},
            "toolPlugins": [{"container": {"name": "shelf", "image": image, "tools": [tool]}}],
        },
        "rewards": [{"builtin": {"name": "exact-match"}}],
        "sampling": {"maxNewTokens": 16},
        "maxSteps": STEPS,
    }
    return build_small_run(name, train, model={"uri": "rollout://tiny-agent"})


@pytest.fixture(scope="module")
def image(stage: Stage, tmp_path_factory: pytest.TempPathFactory) -> str:
    return build_image(stage, tmp_path_factory.mktemp("image") / "shelf", FILES)


def ended(run: WatchedRun) -> str:
    run.wait_for_end(SECONDS)
    return run.condition("Finished")["reason"]


def test_a_run_trains_beside_its_tools_which_find_nothing_of_it(stage: Stage, image: str):
    run = stage.start(build_run("shelf", image, AREA))

    def loot() -> str:
        return run.kubectl.said("shelf-actors-0", "plugin-shelf")

    assert run.until(loot, "the plugin's first words", SECONDS).splitlines()[0] == "loot []"
    assert ended(run) == "Succeeded"


def test_an_image_with_other_tools_than_the_run_says_ends_the_run_by_name(
    stage: Stage, image: str, tmp_path: Path
):
    tmp_path.chmod(0o777)
    volume = f"{stage.kubectl.namespace}-liar"
    stage.kubectl.apply(build_volume(volume, str(tmp_path), size="10Gi"))
    run = stage.start(build_run("liar", image, {**AREA, "description": "Free shelves."}))
    assert ended(run) == "Failed"
    assert "shelf__area is not what toolPlugins says" in run.condition("Ready")["message"]
