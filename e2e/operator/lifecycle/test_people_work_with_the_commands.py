"""``rollout submit`` to ``rollout delete`` against a real API server, with an editor's, a viewer's and a stranger's rights."""

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from operators import eventually

from runs import build_run

pytestmark = pytest.mark.process

READ = ["get", "list", "watch"]
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Person:
    """Somebody with a kubeconfig."""

    kubeconfig: Path

    def __call__(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "rollout", *arguments],
            env={"KUBECONFIG": str(self.kubeconfig), "PATH": "/usr/bin:/bin", "COLUMNS": "240"},
            capture_output=True,
            text=True,
            timeout=180,
            check=False,
        )


@pytest.fixture
def people(world, tmp_path) -> dict[str, Person]:
    return {name: _make(world.kubectl, name, rules, tmp_path) for name, rules in RIGHTS.items()}


def _make(kubectl, name, rules, folder) -> Person:
    """An account with a Role of these rules, and a kubeconfig with its token."""
    meta = {"metadata": {"name": name}}
    rbac = {"apiVersion": "rbac.authorization.k8s.io/v1"}
    subject = {"kind": "ServiceAccount", "name": name, "namespace": kubectl.namespace}
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name}
    kubectl.apply(
        {"apiVersion": "v1", "kind": "ServiceAccount", **meta},
        {**rbac, "kind": "Role", **meta, "rules": rules},
        {**rbac, "kind": "RoleBinding", **meta, "subjects": [subject], "roleRef": reference},
    )
    if rules:
        eventually(lambda: kubectl.may(name, "get", "rolloutruns"), f"{name} may do nothing")
    config = yaml.safe_load(kubectl.kubeconfig.read_text())
    [server] = config["clusters"]
    token = kubectl("create", "token", name).strip()
    context = {"cluster": server["name"], "user": name, "namespace": kubectl.namespace}
    config |= {
        "users": [{"name": name, "user": {"token": token}}],
        "contexts": [{"name": name, "context": context}],
        "current-context": name,
    }
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(config))
    return Person(kubeconfig=path)


def test_an_editor_submits_looks_suspends_scales_and_deletes(world, people, tmp_path):
    editor = people["editor"]
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


def test_a_viewer_sees_and_changes_nothing(world, people):
    world.apply()
    world.wait_for("Ready", "True")
    viewer = people["viewer"]

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


def test_a_stranger_learns_nothing(world, people):
    world.apply()

    for command in (("get",), ("describe", "arithmetic"), ("debug", "stuck", "arithmetic")):
        refused = people["stranger"](*command)
        assert refused.returncode == 4, command
        assert refused.stdout == ""


def test_a_run_that_ends_badly_is_not_waited_for(world, people):
    world.apply()
    world.wait_for("Ready", "True")
    world.report({"outcome": {"kind": "Failed", "reason": "BadRecord", "message": "line 3"}})

    waited = people["viewer"]("wait", "arithmetic", "--for", "Complete", "--timeout", "120")

    assert waited.returncode == 1
    assert "line 3" in waited.stderr


def test_what_holds_a_run_up_is_one_page(world, people):
    world.apply(spec={"runtimeRef": {"kind": "RolloutRuntime", "name": "nowhere"}})
    world.wait_for("Stalled", "True")

    page = people["viewer"]("debug", "stuck", "arithmetic", "--output", "json")

    assert page.returncode == 0, page.stderr
    causes = json.loads(page.stdout)["causes"]
    assert "nowhere" in causes[0]["what"]
    assert causes[0]["try_this"]
