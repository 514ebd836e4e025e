"""Fields that the schema declares and no part reads yet are refused by name, with what to write instead."""

from rollout_api.checks import check_document
from rollout_api.problems import Severity

HEAD = {"apiVersion": "rollout.dev/v1alpha1", "metadata": {"name": "default"}}


def test_a_runtime_that_declares_a_sandbox_is_refused_as_there_are_no_tools():
    for kind in ("RolloutRuntime", "ClusterRolloutRuntime"):
        document = {**HEAD, "kind": kind, "spec": {"sandbox": {"runtimeClassName": "gvisor"}}}

        [problem] = check_document(document)

        assert (problem.field, problem.reason) == ("spec.sandbox", "NotSupported")
        assert problem.severity is Severity.error
    assert check_document({**HEAD, "kind": "RolloutRuntime", "spec": {}}) == ()


def test_an_object_that_nothing_acts_on_is_named_when_it_is_validated():
    document = {**HEAD, "kind": "RolloutSnapshot", "spec": {"run": {"name": "a"}}}

    [problem] = check_document(document)

    assert (problem.field, problem.severity) == ("kind", Severity.warning)
    assert "does not act on RolloutSnapshots" in problem.message
