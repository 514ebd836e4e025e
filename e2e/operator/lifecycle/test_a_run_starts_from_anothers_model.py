"""``fromRun`` on a real API server: the second run waits, then gets the first one's model and its volume."""

import json

import pytest
from operators import eventually

from runs import build_run

pytestmark = pytest.mark.process

SECOND = {"model": {"uri": None, "fromRun": {"name": "first"}}}
OBJECT = f"blake3/ab/{'ab' * 32}"


def succeed(world, uri):
    last = {"name": "step-000400", "step": 400, "modelURI": uri}
    outcome = {"kind": "Succeeded", "reason": "Finished"}
    world.report({"step": 400, "lastSnapshot": last, "outcome": outcome}, "first")
    world.wait_for("Finished", "True", "Succeeded", "first")


def order_of(world, name):
    record = world.kubectl.get("configmap", world.run(name)["status"]["configuration"])
    return json.loads(record["data"]["order.json"])


def test_the_second_run_starts_from_what_the_first_has_made(world):
    world.kubectl.apply(build_run("second", SECOND), build_run("first"))
    world.wait_for("Ready", "True", "Running", "first")
    world.wait_for("Reconciling", "True", "WaitingForRun", "second")
    claim = f"ledger-{world.run('first')['metadata']['uid'][:8]}-first-coordinator-0"
    uri = f"pvc://{claim}/objects/{OBJECT}"
    assert order_of(world, "first")["layout"]["objectsUri"] == f"pvc://{claim}/objects"

    succeed(world, uri)
    assert world.run("first")["status"]["lastSnapshot"]["modelURI"] == uri
    world.wait_for("Ready", "True", "Running", "second")
    assert order_of(world, "second")["spec"]["model"]["uri"] == uri
    pod = world.kubectl.get("pod", "second-coordinator-0")["spec"]
    claims = [one.get("persistentVolumeClaim") for one in pod["volumes"]]
    assert {"claimName": claim, "readOnly": True} in claims
    assert world.run("second")["spec"]["model"] == {"fromRun": SECOND["model"]["fromRun"] | LATEST}


LATEST = {"snapshot": "Latest"}


def test_a_volume_that_is_not_the_first_runs_own_is_never_mounted(world):
    world.kubectl.apply(build_run("second", SECOND), build_run("first"))
    world.wait_for("Ready", "True", "Running", "first")
    succeed(world, f"pvc://somebody-elses/objects/{OBJECT}")

    def says_why() -> bool:
        """A run that was applied before the first one once said that there is no such run."""
        stalled = world.wait_for("Stalled", "True", "ReferenceNotFound", "second")
        return "handed on no model 'Latest'" in stalled["message"]

    eventually(says_why, "the second run does not say that it was handed no model of its own")
    eventually(lambda: "second-coordinator" not in world.replicas(), "the second run has children")
