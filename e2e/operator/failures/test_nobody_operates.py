"""What goes on without an operator, and what is made up for when one comes back.

No test of this file takes `world`: its operator would live as long as the file.
"""

import time
from statistics import median

import pytest
from clocks import LATE_SECONDS_MAX, RUNS, STAMP_SECONDS, Watcher, seconds_of
from operators import eventually, operating
from stage import World

from cluster.control.ports import find_free_port
from runs import build_run
from waiting import Pace

pytestmark = pytest.mark.process

ACTIVE_SECONDS, TTL_SECONDS = 15, 10
LIMITS = {"activeSeconds": ACTIVE_SECONDS, "noProgressSeconds": 5}
BRIEF = {"limits": {"ttlSecondsAfterFinished": TTL_SECONDS}}
WORKLOADS = "statefulsets,services,secrets,rolebindings"
MINE = ("-l", "rollout.dev/run=arithmetic")


def test_a_run_is_deleted_at_once(bare, puppets, tmp_path):
    with operating(bare.kubeconfig, find_free_port(), tmp_path / "log") as operator:
        bare.apply(build_run())
        World(kubectl=bare, puppets=puppets, operator=operator).wait_for("Ready", "True")
    bare("delete", "rrun", "arithmetic", "--cascade=background", "--timeout=20s")
    assert bare.get("rrun")["items"] == []
    eventually(lambda: not bare.get(WORKLOADS, *MINE)["items"], "children are left")
    eventually(lambda: not bare.get("pods")["items"], "pods are left")


def test_a_namespace_is_deleted_with_all_that_is_in_it(bare, puppets, tmp_path):
    """Runs at work, suspended and never looked at, and what people keep beside them."""
    with operating(bare.kubeconfig, find_free_port(), tmp_path / "log") as operator:
        world = World(kubectl=bare, puppets=puppets, operator=operator)
        world.apply("working")
        world.apply("suspended", {"suspend": True})
        world.wait_for("Ready", "True", "Running", "working")
        world.wait_for("Suspended", "True", name="suspended")
    kept = {"kind": "RolloutSnapshot", "spec": {"source": {"run": {"name": "working"}}}}
    bare.apply(build_run("unseen"), build_run("kept") | kept)
    bare("delete", "namespace", bare.namespace, "--timeout=100s")
    assert bare.attempt("get", "namespace", bare.namespace).returncode != 0


@pytest.mark.slow
def test_a_deadline_that_passed_is_kept_soon_after_the_start(bare, puppets, tmp_path):
    """Quick: with an operator, test_what_is_due_is_done_in_time.py."""
    with operating(bare.kubeconfig, find_free_port(), tmp_path / "log") as operator:
        world = World(kubectl=bare, puppets=puppets, operator=operator)
        watcher = Watcher(world, RUNS)
        bare.apply(*(build_run(name, {"limits": LIMITS}) for name in RUNS))
        watcher.wait_for_all(lambda name: watcher.status(name).get("startTime"), "no run began")
    began = [seconds_of(watcher.status(name)["startTime"]) for name in RUNS]
    sleep_until(max(began) + ACTIVE_SECONDS)
    assert not any(watcher.finished(name) for name in RUNS)
    with operating(bare.kubeconfig, find_free_port(), tmp_path / "log"), Pace() as pace:
        started = time.time()
        ended = watcher.wait_for_all(watcher.finished, "a run outlived its deadline")
    assert median(ended.values()) - started <= pace.stretch(LATE_SECONDS_MAX)


@pytest.mark.slow
def test_children_whose_time_passed_go_soon_after_the_start(bare, puppets, tmp_path):
    """Quick: with an operator, test_what_is_due_is_done_in_time.py."""
    with operating(bare.kubeconfig, find_free_port(), tmp_path / "log") as operator:
        world = World(kubectl=bare, puppets=puppets, operator=operator)
        watcher = Watcher(world, RUNS)
        bare.apply(*(build_run(name, BRIEF) for name in RUNS))
        for name in RUNS:
            world.wait_for("Ready", "True", "Running", name)
        for name in RUNS:
            watcher.succeed(name)
        watcher.wait_for_all(watcher.finished, "a run did not finish")
    ended = [seconds_of(watcher.status(name)["completionTime"]) for name in RUNS]
    sleep_until(max(ended) + TTL_SECONDS)
    assert all(watcher.children(name) for name in RUNS)
    with operating(bare.kubeconfig, find_free_port(), tmp_path / "log"), Pace() as pace:
        started = time.time()
        gone = watcher.wait_for_all(lambda name: not watcher.children(name), "children are left")
    assert median(gone.values()) - started <= pace.stretch(LATE_SECONDS_MAX)


def sleep_until(due):
    time.sleep(max(0.0, due + STAMP_SECONDS - time.time()))
