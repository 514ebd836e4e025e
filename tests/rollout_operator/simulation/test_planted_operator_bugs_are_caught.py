"""A promise breaks when the code that keeps it is taken out: the simulation notices."""

from dataclasses import replace

from simulate_operator import disturbed, undisturbed

from rollout_api import names
from rollout_operator.kube.managed_fields import controller_uid
from rollout_operator.run.plan import phases, plan

WITH_A_SUSPENSION = (3, 8, 12)
"""Seeds whose run is suspended and resumed; whether pods of before are still there by then is a matter of moments."""


def test_an_object_that_only_bears_the_labels_is_taken_for_a_child(monkeypatch):
    def by_labels(meta, group, kind):
        run = meta.get("labels", {}).get(names.LABEL_RUN_UID)
        return run if kind == "RolloutRun" and run else controller_uid(meta, group, kind)

    monkeypatch.setattr("rollout_operator.cache.children.controller_uid", by_labels)
    broken = disturbed(1).broken
    assert any("a write on another owner's object" in one for one in broken), broken


def test_an_attempt_that_begins_before_the_pods_of_the_last_are_gone(monkeypatch):
    plan_down = phases.plan_down

    def without_looking(observed, steps, now):
        return plan_down(replace(observed, pods=()), steps, now)

    monkeypatch.setattr(phases, "plan_down", without_looking)
    monkeypatch.setattr(plan, "has_pods", lambda observed: False)  # the second look
    broken = [one for seed in WITH_A_SUSPENSION for one in undisturbed(seed).broken]
    assert any("pods of run attempts" in one for one in broken), broken
