"""A reward in an image of its own beside a real actor: it scores from its container, is killed while it scores, and scores
again; a run with an image that its runtime does not allow begins nothing.

The plugin says in its log what it can reach, and waits in the middle of the run until it is told to go on.
"""

import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from plugin_image import give_plugin
from watched import Result, Stage, WatchedRun, read_result, run_here

from cluster.nodes.addons import build_volume
from runs import lay_over

pytestmark = [pytest.mark.real_nodes, pytest.mark.timeout(900)]

STEPS, SAMPLES = 4, 32
SECONDS = 300.0
POD, PLUGIN = "polite-actors-0", "plugin-polite"
GO = "/tmp/go"
MANIFEST = """{contract: 1, name: polite, version: '1', kind: reward, command: [python, plugin.py],
parameters: [{name: word}, {name: by, default: "2"}]}"""
SCORE = """
def score(prompts, completions, rows, word, by="2"):
    return [{"said": float(word in one.text) * float(by), "asked": 1.0} for one in completions]
"""
SERVED = """
import os, pathlib, time
from rollout.plugins.serving import serve
from scores import score

GO = pathlib.Path("/tmp/go")
CLOSED = ["/var/run/secrets", "/etc/rollout", "/var/lib/rollout", "/var/cache/rollout", "/home/rollout", "/opt/rollout"]
GIVEN = {"ROLLOUT_PLUGIN_SOCKET", "HOME", "HOSTNAME", "PATH", "PYTHONPATH", "PWD", "OLDPWD", "LC_CTYPE"}
asked = 0


def writes(folder):
    try:
        pathlib.Path(folder, "mine").write_text("")
    except OSError:
        return False
    return True


def processes():
    for one in pathlib.Path("/proc").iterdir():
        if one.name.isdigit():
            yield (one / "cmdline").read_text()


def loot():
    yield from (name for name in os.environ if name not in GIVEN and not name.startswith("KUBERNETES_"))
    yield from (path for path in CLOSED if os.path.isdir(path) and os.listdir(path))
    yield from (name for name in os.listdir("/var/run/rollout") if name != "plugins")
    yield from (folder for folder in ("/", "/etc", "/opt/plugin") if writes(folder))
    yield from (line for line in processes() if "rollout.entrypoints" in line or "actor" in line)
    yield from (f"user {one}" for one in (os.getuid(), os.getgid()) if one <= 10001)


def score_slowly(prompts, completions, rows, **given):
    global asked
    asked += len(completions)
    if asked > 12 and not GO.exists():
        print("held", flush=True)
        while not GO.exists():
            time.sleep(0.05)
    return score(prompts, completions, rows, **given)


print("loot", list(loot()), flush=True)
serve(reward=score_slowly)
"""
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
    spec = {
        "runtimeRef": {"kind": "ClusterRolloutRuntime", "name": "cpu"},
        "model": {"uri": "rollout://tiny-agent"},
        "train": train,
        "actors": {"engine": {"embedded": {}}},
    }
    head = {"apiVersion": "rollout.dev/v1alpha1", "kind": "RolloutRun", "metadata": {"name": name}}
    return lay_over({**head, "spec": spec}, {"spec": changes})


def build_plugin(image: str) -> dict[str, Any]:
    resources = {"requests": {"cpu": "50m", "memory": "64Mi"}, "limits": {"memory": "512Mi"}}
    container = {"name": "polite", "image": image, "resources": resources}
    return {"plugin": {"container": container, "parameters": PARAMETERS}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """What was seen of the run whose plugin was killed, and what it came to."""

    logs: tuple[str, str]
    run: dict[str, Any]
    result: Result
    weights: list[tuple[int, str]]


@pytest.fixture(scope="module")
def image(stage: Stage, tmp_path_factory: pytest.TempPathFactory) -> str:
    scratch = tmp_path_factory.mktemp("image")
    folder = scratch / "polite"
    folder.mkdir()
    (folder / "plugin.yaml").write_text(MANIFEST)
    (folder / "plugin.py").write_text(SERVED)
    (folder / "scores.py").write_text(SCORE)
    return give_plugin(stage.cluster, folder, scratch)


@pytest.fixture(scope="module")
def scored(stage: Stage, image: str) -> Scored:
    run = stage.start(build_run("polite", build_plugin(image)))
    run.until(lambda: is_held(run), "a call that the plugin holds", SECONDS)
    first = run.log(POD, PLUGIN)
    run.kill(POD, PLUGIN)
    run.until(lambda: count_restarts(run) == 1, "the plugin's second start", SECONDS)
    run.until(lambda: is_held(run), "a call that the second one holds", SECONDS)
    second = run.log(POD, PLUGIN)
    let_go(run)
    run.wait_for_end(SECONDS)
    place = run.folder()
    return Scored(
        logs=(first, second),
        run=run.read(),
        result=read_result(place),
        weights=read_weights(place),
    )


def is_held(run: WatchedRun) -> bool:
    return "held" in run.kubectl.attempt("logs", POD, "-c", PLUGIN).stdout


def let_go(run: WatchedRun) -> None:
    run.kubectl("exec", POD, "-c", PLUGIN, "--", "touch", GO)


def count_restarts(run: WatchedRun) -> int:
    (pod,) = run.pods("actor")
    statuses = pod["status"]["initContainerStatuses"]
    return next(one["restartCount"] for one in statuses if one["name"] == PLUGIN)


def read_weights(place: Path) -> list[tuple[int, str]]:
    """Each step with the digest of the weights that it made."""
    with closing(sqlite3.connect(f"file:{place / 'ledger.db'}?mode=ro", uri=True)) as ledger:
        return ledger.execute("SELECT step, digest FROM versions ORDER BY step").fetchall()


def test_the_run_ends_in_one_attempt_and_loses_no_sample_though_its_plugin_was_killed(
    scored: Scored,
):
    conditions = {one["type"]: one for one in scored.run["status"]["conditions"]}
    assert conditions["Finished"]["reason"] == "Succeeded"
    assert scored.run["status"]["attempt"] == 1
    assert [step for step, _ in scored.result.chains] == list(range(1, STEPS + 1))
    assert scored.result.dispositions == {"consumed": SAMPLES, "pending": 0}


def test_a_plugins_container_finds_nothing_of_the_run(scored: Scored):
    assert [one.splitlines()[0] for one in scored.logs] == ["loot []", "loot []"]


def test_its_weights_are_those_of_the_same_function_in_process_on_one_machine(
    scored: Scored, tmp_path: Path
):
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "scores.py").write_text(SCORE)
    manifest = build_run("polite", {"python": IN_PROCESS}, code={"path": "code"})
    run_here(manifest, tmp_path)
    here = read_weights(tmp_path / "run")
    assert len({digest for _, digest in here}) == STEPS + 1, "every step learned something"
    assert scored.weights == here


def test_an_image_that_the_runtime_does_not_allow_begins_nothing(stage: Stage, image: str):
    other = image.replace("rollout.test/", "elsewhere.test/")
    run = stage.start(build_run("elsewhere", build_plugin(other)))
    run.until(lambda: run.condition("Ready").get("reason") == "NotAllowed", "a refusal", SECONDS)
    said = run.condition("Ready")["message"]
    assert "spec.train.rewards[0].plugin.container.image" in said
    assert "elsewhere.test/polite" in said
    assert not run.pods()


@pytest.mark.slow
def test_a_run_whose_plugin_was_not_killed_has_the_same_chain(
    stage: Stage, scored: Scored, image: str, tmp_path_factory: pytest.TempPathFactory
):
    """The quick tier's guard is the equality of weights with a run on one machine."""
    folder = tmp_path_factory.mktemp("second")
    folder.chmod(0o777)
    stage.kubectl("delete", "rolloutrun", "polite")
    stage.kubectl.apply(build_volume(f"{stage.kubectl.namespace}-second", str(folder), size="10Gi"))
    run = stage.start(build_run("polite", build_plugin(image)))
    run.until(lambda: is_held(run), "a call that the plugin holds", SECONDS)
    assert count_restarts(run) == 0
    let_go(run)
    run.wait_for_end(SECONDS)
    assert read_result(folder).chains == scored.result.chains
