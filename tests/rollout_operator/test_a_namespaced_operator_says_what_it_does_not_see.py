"""Without rights in the cluster, lost nodes and missing StorageClasses go unnoticed; the run says so."""

from dataclasses import replace

from worlds import World

from rollout_operator.run.plan.plan import plan_run


def conditions(world, **changed):
    plan = plan_run(replace(world.observe(), **changed), world.now)
    return {one["type"]: one for one in (plan.status or {}).get("conditions", ())}


def test_a_run_of_a_namespaced_operator_says_that_nobody_watches_the_cluster():
    found = conditions(World(), namespaced=True)["ClusterWatched"]
    assert (found["status"], found["reason"]) == ("False", "NamespacedMode")
    assert "lost nodes and missing StorageClasses are not noticed" in found["message"]


def test_where_the_cluster_is_watched_nothing_is_said():
    assert "ClusterWatched" not in conditions(World())


def test_it_stays_said_when_the_run_is_suspended():
    world = World(spec=World().spec | {"suspend": True})
    assert "ClusterWatched" in conditions(world, namespaced=True)
