"""The attacker's runs are as large as etcd takes them, more than anybody may start, or ask for what the platform bounds."""

import pytest
from chart_installation import CEILINGS, RUNS_MAX
from operators import eventually
from tenant import RUN, example

pytestmark = pytest.mark.control_plane
RUNS = "count/rolloutruns.rollout.dev"
DEVICES = {"requests": {"nvidia.com/gpu": "1"}, "limits": {"nvidia.com/gpu": "1"}}


def env_of(size_bytes):
    count = -(-size_bytes // 16_000)
    return {"env": [{"name": f"E{n}", "value": "x" * (size_bytes // count)} for n in range(count)]}


@pytest.mark.parametrize("size_bytes", [1_300_000, 66_000])
def test_a_spec_of_mine_fills_the_operator(mallory, size_bytes):
    answer = mallory.try_to_make("large", env_of(size_bytes))
    assert answer.status == 422
    assert 'admission webhook "runs.rollout.dev" denied the request: spec.env' in answer.words
    assert "takes 65,536" in answer.words
    assert mallory.me.get("RolloutRun", "large").status == 404


def test_a_small_run_grows_after_it_was_let_in(mallory):
    before = mallory.start()
    answer = mallory.me.patch("RolloutRun", RUN, {"spec": env_of(1_000_000)})
    assert not answer.done
    assert "spec.env" in answer.words
    assert mallory.world.run()["spec"] == before["spec"]


def test_more_runs_are_started_than_may_be(mallory):
    made = [f"r{n}" for n in range(RUNS_MAX + 2)]
    for name in made:
        mallory.make(name)

    def started():
        return [
            name
            for name in made
            if mallory.world.condition("Ready", name).get("reason") == "Running"
        ]

    eventually(lambda: len(started()) == RUNS_MAX, "not as many were started as may be")
    waiting = [name for name in made if name not in started()]
    for name in waiting:
        said = mallory.world.wait_for("Ready", "False", "TooManyRuns", name=name)
        assert f"{RUNS_MAX} may be (operator.runsPerNamespace)" in said["message"]
    assert len(mallory.world.replicas()) == 3 * RUNS_MAX, "those that wait have nothing"
    gone = started()[0]
    assert mallory.me.delete("RolloutRun", gone).done
    made.remove(gone)
    eventually(
        lambda: len(set(started()) & set(waiting)) == 1, "a place that is given back is taken"
    )


def test_a_run_that_i_hold_back_from_deletion_gives_its_place_to_another(mallory):
    """A finalizer of mine keeps a deleted run, and its pods: it goes on counting."""
    for number in range(RUNS_MAX):
        mallory.start(f"r{number}")
    held = {"metadata": {"finalizers": ["mallory.example/mine"]}}
    assert mallory.me.patch("RolloutRun", "r0", held).done
    assert mallory.me.delete("RolloutRun", "r0").done
    mallory.make("more")
    mallory.world.wait_for("Ready", "False", "TooManyRuns", name="more")
    assert mallory.me.patch("RolloutRun", "r0", {"metadata": {"finalizers": None}}).done
    mallory.world.wait_for("Ready", "True", "Running", name="more")


def is_counted(mallory, quota):
    """Whether the quota knows of runs. Its controller learns of new kinds every 30 s, and looks at a quota that is edited."""
    quota["spec"]["hard"]["pods"] = str(int(quota["spec"]["hard"]["pods"]) + 1)
    mallory.kubectl.apply(quota)
    live = mallory.kubectl.get("resourcequota", "objects")
    return RUNS in live.get("status", {}).get("used", {})


def test_my_quota_is_for_others(mallory):
    """The example's quota, with room for two runs."""
    (quota,) = example(mallory.namespace, "ResourceQuota")
    quota["spec"]["hard"][RUNS] = "2"
    eventually(lambda: is_counted(mallory, quota), "the quota does not count runs", every=0.5)
    mallory.start("first")
    mallory.make("second")
    answer = mallory.try_to_make("third")
    assert answer.status == 403
    assert "exceeded quota: objects" in answer.words
    path = f"/api/v1/namespaces/{mallory.namespace}/resourcequotas/objects"
    assert mallory.me.send("DELETE", path).status == 403


# -- ceilings ---------------------------------------------------------------------------------------


def scale(mallory, replicas):
    """By the scale subresource, which no webhook is asked about."""
    body = {"spec": {"replicas": replicas}}
    return mallory.me.patch("RolloutRun", RUN, body, subresource="scale")


def edit(mallory, replicas):
    return mallory.me.patch("RolloutRun", RUN, {"spec": {"actors": {"replicas": replicas}}})


@pytest.mark.parametrize("ask", [scale, edit])
def test_a_run_that_works_is_scaled_past_its_ceiling(mallory, ask):
    mallory.start()
    answer = ask(mallory, 4096)
    assert answer.done, answer.words
    said = mallory.world.wait_for("ActorsReady", "False", "CeilingExceeded")
    most = CEILINGS["actorReplicas"]
    assert f"4096 are wanted, the runtime allows {most}" in said["message"]
    eventually(lambda: mallory.world.replicas()[f"{RUN}-actors"] == most, "no more actors came")
    assert len(mallory.world.pod_uids("actor")) <= most


def test_my_coordinator_wants_more_actors_than_there_may_be(mallory):
    mallory.start(spec={"actors": {"autoscale": {"min": 1, "max": 3}}})
    progress = {"status": {"progress": {"step": 1, "actorsWanted": 4096}}}
    answer = mallory.as_pod("coordinator").patch("RolloutRun", RUN, progress, subresource="status")
    assert answer.done, answer.words
    eventually(lambda: mallory.world.replicas()[f"{RUN}-actors"] == 3, "no more actors came")


def test_devices_are_asked_for_where_nobody_counts_them(mallory):
    for role in ("actors", "learner"):
        answer = mallory.try_to_make("greedy", {role: {"resources": DEVICES}})
        assert answer.status == 422
        assert f"spec.{role}.resources.limits: 'nvidia.com/gpu' is a device" in answer.words
    wanted = {"accelerator": {"className": "gpu", "count": 8}, "replicas": 2}
    mallory.make("greedy", {"actors": wanted})
    said = mallory.world.wait_for("Ready", "False", "CeilingExceeded", name="greedy")
    assert "the runtime allows 8" in said["message"]
    assert not mallory.world.replicas()


def test_a_runtime_of_mine_has_other_ceilings(mallory):
    head = {"apiVersion": "rollout.dev/v1alpha1", "metadata": {"name": "default"}, "spec": {}}
    for kind in ("RolloutRuntime", "ClusterRolloutRuntime"):
        assert mallory.me.create(head | {"kind": kind}).status == 403, kind
    assert (
        mallory.me.patch("ClusterRolloutRuntime", "default", {"spec": {"ceilings": None}}).status
        == 403
    )


ADDED = {
    "priorityClassName": {"learner": {"priorityClassName": "system-node-critical"}},
    "tolerations[0]": {"learner": {"tolerations": [{"operator": "Exists"}]}},
    "engine.vllm.image": {"actors": {"engine": {"vllm": {"image": "stranger.example/vllm:1"}}}},
    "storage.uri": {"storage": {"uri": "s3://somebody-elses/runs"}},
    "does not serve namespace": {"runtimeRef": {"name": "others"}},
}


def test_my_runs_add_what_no_runtime_names_or_take_another_teams(mallory):
    for number, (words, spec) in enumerate(ADDED.items()):
        mallory.make(f"adds-{number}", spec)
        said = mallory.world.wait_for("Ready", "False", "NotAllowed", name=f"adds-{number}")
        assert words in said["message"]
    assert not mallory.world.replicas()
