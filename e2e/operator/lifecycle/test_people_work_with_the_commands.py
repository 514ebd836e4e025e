"""``rollout submit`` to ``rollout delete`` against a real API server, with an editor's, a viewer's and a stranger's rights."""

import json
from collections.abc import Callable

import pytest
import yaml
from accounts import READ, Person, make_person
from operators import eventually

from runs import build_run

pytestmark = pytest.mark.process

RUNS = {"apiGroups": ["rollout.dev"], "resources": ["rolloutruns"]}
SCALE = {"apiGroups": ["rollout.dev"], "resources": ["rolloutruns/scale"]}
LOOK = {"apiGroups": [""], "resources": ["pods", "events"], "verbs": READ}
RIGHTS = {
    "editor": [
        RUNS | {"verbs": [*READ, "create", "patch", "delete"]},
        SCALE | {"verbs": ["get", "patch"]},
        LOOK,
    ],
    "viewer": [RUNS | {"verbs": READ}, LOOK],
    "stranger": [],
}


@pytest.fixture
def person(world, tmp_path) -> Callable[[str], Person]:
    """Makes one of those in ``RIGHTS``."""
    return lambda name: make_person(world.kubectl, name, RIGHTS[name], tmp_path)


def test_an_editor_submits_looks_suspends_scales_and_deletes(world, person, tmp_path):
    editor = person("editor")
    file = tmp_path / "run.yaml"
    file.write_text(yaml.safe_dump(build_run()))

    rehearsed = editor("submit", "-f", str(file), "--dry-run")
    assert rehearsed.returncode == 0, rehearsed.stderr
    assert "would be made" in rehearsed.stdout
    submitted = editor("submit", "-f", str(file), "--set", "train.maxSteps=500")
    assert submitted.returncode == 0, submitted.stderr
    assert world.run()["spec"]["train"]["maxSteps"] == 500
    again = editor("submit", "-f", str(file))
    assert again.returncode == 4
    assert "already exists" in again.stderr

    waited = editor("wait", "arithmetic", "--for", "Ready", "--timeout", "120")
    assert waited.returncode == 0, waited.stderr
    assert editor("get").stdout.splitlines()[1].split()[:3] == ["arithmetic", "True", "Running"]
    described = editor("describe", "arithmetic")
    assert described.returncode == 0, described.stderr
    assert "arithmetic-coordinator-0" in described.stdout
    assert "Ready" in described.stdout
    assert editor("events", "arithmetic").returncode == 0
    assert editor("top", "arithmetic").returncode == 0

    scaled = editor("scale", "arithmetic", "2")
    assert scaled.returncode == 0, scaled.stderr
    eventually(lambda: len(world.pod_uids("actor")) == 2, "actors were not scaled")
    suspended = editor("suspend", "arithmetic")
    assert suspended.returncode == 0, suspended.stderr
    assert editor("wait", "arithmetic", "--for", "Suspended", "--timeout", "120").returncode == 0
    assert editor("resume", "run/arithmetic").returncode == 0
    assert (
        editor("wait", "arithmetic", "--for", "Suspended=False", "--timeout", "120").returncode == 0
    )

    deleted = editor("delete", "arithmetic", "--yes")
    assert deleted.returncode == 0, deleted.stderr
    gone = editor("get", "run/arithmetic")
    assert gone.returncode == 2
    assert "not found" in gone.stderr


def test_a_viewer_sees_and_changes_nothing(world, person):
    world.apply()
    world.wait_for("Ready", "True")
    viewer = person("viewer")

    assert viewer("describe", "arithmetic").returncode == 0
    for command in (
        ("suspend", "arithmetic"),
        ("scale", "arithmetic", "3"),
        ("delete", "arithmetic", "--yes"),
    ):
        refused = viewer(*command)
        assert refused.returncode == 4, command
        assert "you may not" in refused.stderr
    assert world.run()["spec"].get("suspend") is not True


def test_a_stranger_learns_nothing(world, person):
    stranger = person("stranger")
    world.apply()

    for command in (("get",), ("describe", "arithmetic"), ("debug", "stuck", "arithmetic")):
        refused = stranger(*command)
        assert refused.returncode == 4, command
        assert refused.stdout == ""


def test_a_run_that_ends_badly_is_not_waited_for(world, person):
    world.apply()
    world.wait_for("Ready", "True")
    world.report({"outcome": {"kind": "Failed", "reason": "BadRecord", "message": "line 3"}})

    waited = person("viewer")("wait", "arithmetic", "--for", "Complete", "--timeout", "120")

    assert waited.returncode == 1
    assert "line 3" in waited.stderr


def test_what_holds_a_run_up_is_one_page(world, person):
    world.apply(spec={"runtimeRef": {"kind": "RolloutRuntime", "name": "nowhere"}})
    world.wait_for("Stalled", "True")

    page = person("viewer")("debug", "stuck", "arithmetic", "--output", "json")

    assert page.returncode == 0, page.stderr
    causes = json.loads(page.stdout)["causes"]
    assert "nowhere" in causes[0]["what"]
    assert causes[0]["try_this"]
