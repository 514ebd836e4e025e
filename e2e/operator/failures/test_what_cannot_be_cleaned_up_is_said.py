"""A right that is missing when a finished run's time is over: said, and the clean-up goes on once it is given."""

import pytest
from operators import eventually, operating
from stage import World

from cluster.control.ports import find_free_port
from faults.kinds import Answer
from faults.proxy import running
from faults.rules import Rule

OTHERS = "statefulsets,secrets,rolebindings,networkpolicies,poddisruptionbudgets,pods"
LIMITS = {"ttlSecondsAfterFinished": 0, "ttlAction": "DeleteRun"}


@pytest.mark.process
def test_services_that_may_not_be_deleted_are_named_and_keep_nothing_else(bare, puppets, tmp_path):
    path = tmp_path / "kubeconfig"
    with running(bare.kubeconfig) as proxy:
        path.write_text(proxy.kubeconfig())
        fault = Answer(status=403)
        proxy.inject(Rule(verbs={"delete"}, resources={"services"}, fault=fault, times=None))
        with operating(path, find_free_port(), tmp_path / "log") as operator:
            world = World(kubectl=bare, puppets=puppets, operator=operator)
            world.apply(spec={"limits": LIMITS})
            world.wait_for("Ready", "True", "Running")
            world.succeed()

            said = world.wait_for("CleanedUp", "False", "Forbidden")
            assert "/services/arithmetic-" in said["message"]
            eventually(lambda: not left(world, OTHERS), "other children were kept too")
            assert len(left(world, "services")) == 3
            assert world.condition("Finished")["reason"] == "Succeeded"

            proxy.clear()
            eventually(
                lambda: not left(world, "rolloutruns", "arithmetic"), "the run is still there"
            )
        assert not left(world, "services")


def left(world, kinds, name=""):
    selected = () if name else ("-l", "rollout.dev/run=arithmetic")
    return world.kubectl.get(kinds, *selected)["items"]
