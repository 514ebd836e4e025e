"""The number of servers of a scaled endpoint is its autoscaler's: it comes through the scale subresource, which is not reviewed."""

import pytest

from rollout_operator.webhook.review import review

HEAD = {
    "apiVersion": "rollout.dev/v1alpha1",
    "kind": "RolloutEndpoint",
    "metadata": {"name": "chat"},
}
SPEC = {"model": {"uri": "rollout://tiny-adder"}, "engine": {"embedded": {}}}
SCALED = {"scaling": {"maxReplicas": 4, "hpa": {}}, "replicas": 3}


def verdict(before, after):
    objects = {"object": {**HEAD, "spec": {**SPEC, **after}}}
    if before is not None:
        objects["oldObject"] = {**HEAD, "spec": {**SPEC, **before}}
    return review({"operation": "CREATE" if before is None else "UPDATE", **objects})


def test_what_it_has_written_stops_no_edit_of_something_else():
    assert verdict(SCALED, {**SCALED, "drainSeconds": 5}).allowed
    assert verdict(SCALED, {"scaling": SCALED["scaling"]}).allowed
    assert verdict(SCALED, {"replicas": 3}).allowed
    assert verdict(None, {**SCALED, "replicas": 1}).allowed, "the default of the schema"


@pytest.mark.parametrize("before", [None, {"replicas": 3}, {**SCALED, "replicas": 2}])
def test_a_person_who_writes_both_is_told_what_to_write_instead(before):
    refused = verdict(before, SCALED)
    assert not refused.allowed
    assert "spec.replicas" in refused.message and "scaling.minReplicas" in refused.message
