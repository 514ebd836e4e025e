"""A run in order is left alone: by a resync, and by an operator that has just started."""

import time

import pytest
from operators import eventually, operating
from stage import World, free_port

from faults.proxy import running
from runs import build_run

pytestmark = pytest.mark.process

RUNS = ("a", "b", "c")


def test_neither_a_resync_nor_a_restart_writes_anything(bare, puppets, tmp_path):
    path, log = tmp_path / "kubeconfig", tmp_path / "log"
    with running(bare.kubeconfig) as proxy:
        path.write_text(proxy.kubeconfig())
        with operating(path, free_port(), log, ROLLOUT_RESYNC_SECONDS="10") as operator:
            world = World(kubectl=bare, puppets=puppets, operator=operator)
            bare.apply(*(build_run(name) for name in RUNS))
            for name in RUNS:
                world.wait_for("Ready", "True", "Running", name)
            time.sleep(2)
            versions = statuses(bare)
            proxy.clear()
            seen = operator.metric("rollout_reconcile_total")
            eventually(
                lambda: operator.metric("rollout_reconcile_total") >= seen + 2 * len(RUNS),
                "no resync came",
            )
            assert [record.call for record in proxy.writes()] == []
        proxy.clear()
        with operating(path, free_port(), log) as operator:
            eventually(
                lambda: operator.metric("rollout_reconcile_total") >= len(RUNS),
                "the second operator looked at nothing",
            )
            assert [record.call for record in proxy.writes()] == []
        assert statuses(bare) == versions


def statuses(kubectl):
    found = kubectl.get("rolloutruns")["items"]
    return {one["metadata"]["name"]: one["metadata"]["resourceVersion"] for one in found}


def test_no_annotation_or_finalizer_of_kopf_is_ever_written(world):
    world.apply()
    world.wait_for("Ready", "True")
    text = world.kubectl("get", "rolloutrun,sts,svc,cm,pods", "-o", "yaml")
    assert "kopf" not in text
