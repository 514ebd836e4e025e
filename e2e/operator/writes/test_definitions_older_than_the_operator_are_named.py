"""An operator that is newer than the installed definitions says so, and goes on once they are upgraded."""

import json
import time
from contextlib import contextmanager

import pytest
from operators import operating
from stage import World

from cluster.control.ports import find_free_port
from runs import install_crds

CRD = "rolloutruns.rollout.dev"
STATUS = "/spec/versions/0/schema/openAPIV3Schema/properties/status/properties"
NEW = ("settingsGeneration", "configuration")


@contextmanager
def older(kubectl):
    """The definitions of a release whose status has no such fields."""
    body = json.dumps([{"op": "remove", "path": f"{STATUS}/{name}"} for name in NEW])
    kubectl("patch", "crd", CRD, "--type=json", "-p", body)
    try:
        yield
    finally:
        install_crds(kubectl)


@pytest.mark.process
def test_a_status_that_is_refused_names_the_definitions(bare, puppets, tmp_path):
    with operating(bare.kubeconfig, find_free_port(), tmp_path / "log") as operator:
        world = World(kubectl=bare, puppets=puppets, operator=operator)
        with older(bare):
            time.sleep(2)
            world.apply()
            said = world.wait_for("Stalled", "True", "CRDOutdated")
            assert "upgrade the chart rollout-crds" in said["message"]
            assert any(name in said["message"] for name in NEW)
            events = world.kubectl.get("events", "--field-selector=reason=CRDOutdated")
            assert len(events["items"]) == 1
            assert "definitions are outdated" in operator.log.read_text()
        world.wait_for("Ready", "True", "Running")
        assert world.condition("Stalled") == {}
        assert world.run()["status"]["configuration"]
