"""A promise breaks when the code that keeps it is taken out: the simulation notices."""

from simulate_operator import disturbed

from rollout_api import names
from rollout_operator.kube.managed_fields import controller_uid


def test_an_object_that_only_bears_the_labels_is_taken_for_a_child(monkeypatch):
    def by_labels(meta, group, kind):
        run = meta.get("labels", {}).get(names.LABEL_RUN_UID)
        return run if kind == "RolloutRun" and run else controller_uid(meta, group, kind)

    monkeypatch.setattr("rollout_operator.cache.children.controller_uid", by_labels)
    broken = disturbed(1).broken
    assert any("a write on another owner's object" in one for one in broken), broken
