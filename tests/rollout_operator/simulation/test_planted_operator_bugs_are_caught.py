"""A promise breaks when the code that keeps it is taken out: the simulation notices."""

from dataclasses import replace

from run_stories import BOTH_WRITE, PAIRS_FROM, SHIFTED_FROM, THAWED
from simulate_operator import disturbed, undisturbed

from rollout_api import names
from rollout_operator.kube.client import VERSION_OF_NOTHING, KubeClient
from rollout_operator.kube.leader import Leader
from rollout_operator.kube.managed_fields import controller_uid
from rollout_operator.run.plan import cleanup, phases, plan

WITH_A_SUSPENSION = (3, 8, 10, 12)
"""Seeds whose run is suspended and resumed; whether pods of before are still there by then is a matter of moments."""
PAIRS = (7, *range(7), *range(8, 40))


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


def is_caught(words: str) -> bool:
    lives = (disturbed(PAIRS_FROM + seed) for seed in PAIRS)
    return any(words in one for life in lives for one in life.broken)


def test_a_replica_that_writes_without_the_lease(monkeypatch):
    monkeypatch.setattr(Leader, "require", lambda _: None)
    assert is_caught("holds the Lease")


def test_a_replica_that_takes_a_lease_from_a_holder_who_is_not_silent(monkeypatch):
    monkeypatch.setattr(Leader, "_silent", lambda *_: True)
    assert is_caught("holds the Lease")


def test_a_replica_that_leads_by_its_clock_though_it_reads_that_another_one_does(monkeypatch):
    monkeypatch.setattr(Leader, "_step_down", lambda _: None)
    broken = disturbed(SHIFTED_FROM + PAIRS_FROM + THAWED).broken
    assert any("undoes what" in one for one in broken), broken


def test_a_write_that_takes_whatever_version_is_there(monkeypatch):
    apply = KubeClient.apply

    async def unbound(client, body, resource, **named):
        meta = dict(body["metadata"])
        if meta.get("resourceVersion") != VERSION_OF_NOTHING:
            meta.pop("resourceVersion", None)
        return await apply(client, {**body, "metadata": meta}, resource, **named)

    monkeypatch.setattr(KubeClient, "apply", unbound)
    assert any("bound to no version" in one for one in undisturbed(PAIRS_FROM).broken)


def test_children_of_a_finished_run_that_a_stale_leader_makes_again(monkeypatch):
    """Of a leader that believes its clock more than the Lease: of all others it is rare to meet a finished run so late."""
    monkeypatch.setattr(Leader, "_step_down", lambda _: None)
    assert not disturbed(PAIRS_FROM + BOTH_WRITE[0]).broken
    monkeypatch.setattr(cleanup, "_may_make_again", lambda record, **_: record is not None)
    assert any("undoes what" in one for one in disturbed(PAIRS_FROM + BOTH_WRITE[0]).broken)
