"""A reward in an image of its own beside a real actor: it scores from its container, is killed while it scores, and scores
again; a run with an image that its runtime does not allow begins nothing.

The plugin says in its log what it can reach, and waits in the middle of the run until it is told to go on (`held_plugin`).
"""

from pathlib import Path
from typing import Any

import pytest
from held_plugin import SECONDS, Ended, HeldPlugin, build_image, contained, read_weights
from samples import build_small_run
from watched import Stage, read_result, run_here

from cluster.nodes.addons import build_volume
from runs import lay_over

pytestmark = [pytest.mark.real_nodes, pytest.mark.timeout(900)]

STEPS, SAMPLES = 4, 32
FILES = {
    "plugin.yaml": """{contract: 1, name: polite, version: '1', kind: reward, command: [python, plugin.py],
parameters: [{name: word}, {name: by, default: "2"}]}""",
    "scores.py": """
def score(prompts, completions, rows, word, by="2"):
    return [{"said": float(word in one.text) * float(by), "asked": 1.0} for one in completions]
""",
    "plugin.py": """
from held import hold
from rollout.plugins.serving import serve
from scores import score


def score_slowly(prompts, completions, rows, **given):
    hold(len(completions), 12)
    return score(prompts, completions, rows, **given)


serve(reward=score_slowly)
""",
}
PARAMETERS = [{"name": "word", "value": "1"}]
IN_PROCESS = {"module": "scores", "function": "score", "parameters": PARAMETERS}


def build_run(name: str, reward: dict[str, Any], **changes: Any) -> dict[str, Any]:
    train = {
        "algorithm": {"grpo": {"promptsPerStep": 2, "groupSize": 4}},
        "environment": {"builtin": {"name": "arithmetic"}},
        "rewards": [reward],
        "sampling": {"maxNewTokens": 16},
        "maxSteps": STEPS,
    }
    made = build_small_run(name, train, model={"uri": "rollout://tiny-agent"})
    return lay_over(made, {"spec": changes})


@pytest.fixture(scope="module")
def image(stage: Stage, tmp_path_factory: pytest.TempPathFactory) -> str:
    return build_image(stage, tmp_path_factory.mktemp("image") / "polite", FILES)


@pytest.fixture(scope="module")
def scored(stage: Stage, image: str) -> Ended:
    run = stage.start(build_run("polite", contained("polite", image, PARAMETERS)))
    return HeldPlugin(run=run).kill_and_end()


def test_the_run_ends_in_one_attempt_and_loses_no_sample_though_its_plugin_was_killed(
    scored: Ended,
):
    conditions = {one["type"]: one for one in scored.run["status"]["conditions"]}
    assert conditions["Finished"]["reason"] == "Succeeded"
    assert scored.run["status"]["attempt"] == 1
    assert [step for step, _ in scored.result.chains] == list(range(1, STEPS + 1))
    assert scored.result.dispositions == {"consumed": SAMPLES, "pending": 0}


def test_a_plugins_container_finds_nothing_of_the_run(scored: Ended):
    assert [one.splitlines()[0] for one in scored.logs] == ["loot []", "loot []"]


def test_its_weights_are_those_of_the_same_function_in_process_on_one_machine(
    scored: Ended, tmp_path: Path
):
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "scores.py").write_text(FILES["scores.py"])
    manifest = build_run("polite", {"python": IN_PROCESS}, code={"path": "code"})
    run_here(manifest, tmp_path)
    here = read_weights(tmp_path / "run")
    assert len({digest for _, digest in here}) == STEPS + 1, "every step learned something"
    assert scored.weights == here


def test_an_image_that_the_runtime_does_not_allow_begins_nothing(stage: Stage, image: str):
    other = image.replace("rollout.test/", "elsewhere.test/")
    run = stage.start(build_run("elsewhere", contained("polite", other, PARAMETERS)))
    run.until(lambda: run.condition("Ready").get("reason") == "NotAllowed", "a refusal", SECONDS)
    said = run.condition("Ready")["message"]
    assert "spec.train.rewards[0].plugin.container.image" in said
    assert "elsewhere.test/polite" in said
    assert not run.pods()


@pytest.mark.slow
def test_a_run_whose_plugin_was_not_killed_has_the_same_chain(
    stage: Stage, scored: Ended, image: str, tmp_path_factory: pytest.TempPathFactory
):
    """The quick tier's guard is the equality of weights with a run on one machine."""
    folder = tmp_path_factory.mktemp("second")
    folder.chmod(0o777)
    stage.kubectl("delete", "rolloutrun", "polite")
    stage.kubectl.apply(build_volume(f"{stage.kubectl.namespace}-second", str(folder), size="10Gi"))
    run = stage.start(build_run("polite", contained("polite", image, PARAMETERS)))
    plugin = HeldPlugin(run=run)
    plugin.wait()
    assert plugin.restarts() == 0
    plugin.let_go()
    run.wait_for_end(SECONDS)
    assert read_result(folder).chains == scored.result.chains
