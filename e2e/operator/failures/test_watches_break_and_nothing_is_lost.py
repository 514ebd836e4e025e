"""Watches that are cut, fall silent, lag, are too old or end in an error: the same end, and no loop.

The operator's process lives through all of it; a watch that stays dead is what liveness is for.
"""

import time
import urllib.error

import pytest
from deaths import CLIENT, crew
from lives import LIVES
from operators import eventually, operating
from stage import World

from cluster.control.ports import find_free_port
from faults.kinds import Answer, CutWatch, ExpireWatch, LagWatch, StallWatch
from faults.proxy import running
from faults.rules import Rule
from rollout_operator.kube.resources import NODES, OWN_KINDS, PODS, WATCHED_CHILDREN
from waiting import Pace

DEAD_SECONDS = 180.0
GIVEN_UP_SECONDS_MAX = 75.0
REFUSED_SECONDS = 12.0
WATCHED = [one.plural for one in (*OWN_KINDS, *WATCHED_CHILDREN, PODS, NODES)]
OWN = [one.plural for one in OWN_KINDS]


def rules(fault, kinds=WATCHED, times=None):
    """The fault at every watch of each kind."""
    return [
        Rule(verbs={"watch"}, resources={kind}, client=CLIENT, times=times, fault=fault)
        for kind in kinds
    ]


@pytest.fixture
def stage(bare, puppets, tmp_path):
    """Starts an operator behind a proxy, with rules that hold from the beginning."""
    path = tmp_path / "kubeconfig"
    with running(bare.kubeconfig) as proxy:
        path.write_text(proxy.kubeconfig())

        def begin(found=(), *, wait=True):
            for rule in found:
                proxy.inject(rule)
            return operating(path, find_free_port(), tmp_path / "log", wait=wait)

        yield begin, proxy, lambda one: World(kubectl=bare, puppets=puppets, operator=one)


@pytest.mark.process
def test_watches_that_are_cut_after_each_event(stage):
    begin, proxy, build = stage
    with begin(rules(CutWatch(after_events=1))) as operator:
        began = time.monotonic()
        world = build(operator)
        world.apply()
        world.wait_for("Ready", "True", "Running")
        lasted = time.monotonic() - began
        opened = [one for one in proxy.records() if one.call.resource == "nodes"]
        assert len(opened) <= 10 + lasted  # nothing happens to nodes: no loop
        assert operator.process.poll() is None


@pytest.mark.process
def test_watches_that_end_at_once_are_opened_with_pauses(stage):
    begin, proxy, build = stage
    with begin(rules(CutWatch(after_events=0)), wait=False) as operator:
        eventually(lambda: len(proxy.records()) > len(WATCHED), "no watch was opened")
        time.sleep(10)
        opened = [one for one in proxy.records() if one.call.verb == "watch"]
        for kind in WATCHED:
            count = sum(one.call.resource == kind for one in opened)
            assert 2 <= count <= 14, (kind, count)
        proxy.clear()
        world = build(operator)
        world.apply()
        world.wait_for("Ready", "True", "Running")


@pytest.mark.slow
def test_watches_that_are_half_open_are_given_up_in_time(stage):
    """Quick: tests/rollout_operator/kube/test_a_watch_never_dies_silently.py."""
    begin, proxy, build = stage
    with begin(rules(StallWatch(), times=1)) as operator:
        world = build(operator)
        world.apply()
        world.wait_for("Ready", "True", "Running")
        stalled = [one for one in proxy.records() if one.fault == "StallWatch"]
        assert {one.call.resource for one in stalled} == set(WATCHED)
        assert all(one.ended - one.arrived <= GIVEN_UP_SECONDS_MAX for one in stalled)
        assert operator.get("/healthz") == "ok"


@pytest.mark.slow
@pytest.mark.parametrize("life", LIVES[2:3], ids=lambda life: life.name)
def test_what_is_known_is_old(life, bare, puppets, tmp_path):
    """Quick: a run that is deleted while its watch lags, below, and tests/rollout_operator/kube/test_old_news_changes_nothing.py."""
    live_with_lag(life, bare, puppets, tmp_path, seconds=1.5)


@pytest.mark.slow
@pytest.mark.parametrize("life", LIVES, ids=lambda life: life.name)
def test_what_is_known_is_very_old(life, bare, puppets, tmp_path):
    """Quick: what the test above names."""
    live_with_lag(life, bare, puppets, tmp_path, seconds=5.0)


def live_with_lag(life, bare, puppets, tmp_path, seconds):
    with crew(bare, puppets, tmp_path) as team:
        clean = team.play(life)
        team.close()
        team.proxy.clear()
        for rule in rules(LagWatch(seconds=seconds)):
            team.proxy.inject(rule)
        team.world()  # its watches are opened under the rules, and keep them
        team.play_under(life, (), clean)


@pytest.mark.process
def test_a_run_that_is_deleted_while_its_watch_lags_leaves_nothing(stage):
    begin, proxy, build = stage
    with begin(rules(LagWatch(seconds=4.0), kinds=["rolloutruns"])) as operator:
        world = build(operator)
        world.apply()
        world.wait_for("Ready", "True", "Running")
        world.kubectl("delete", "rolloutrun", "arithmetic", "--wait=false")
        eventually(lambda: runs_known(operator) == 0, "the operator keeps a run that is gone")
        eventually(lambda: is_quiet(proxy), "children of a deleted run are made again and again")
        eventually(lambda: nothing_left(world), "children of a deleted run are left")


@pytest.mark.process
def test_watches_that_are_too_old_again_and_again(stage):
    begin, _proxy, build = stage
    with begin(rules(ExpireWatch(), times=3)) as operator:
        world = build(operator)
        world.apply()
        world.wait_for("Ready", "True", "Running")
        assert operator.process.poll() is None


@pytest.mark.process
def test_a_run_that_is_deleted_while_its_watch_is_too_old_is_forgotten(stage):
    begin, proxy, build = stage
    with begin() as operator:
        world = build(operator)
        world.apply()
        world.wait_for("Ready", "True", "Running")
        away = Rule(verbs={"list"}, resources={"rolloutruns"}, times=None, fault=Answer(status=503))
        proxy.inject(away)
        for rule in rules(ExpireWatch(), kinds=["rolloutruns"], times=1):
            proxy.inject(rule)
        proxy.cut_connections()
        eventually(lambda: proxy.matched(away), "the watch was not opened anew")
        world.kubectl("delete", "rolloutrun", "arithmetic")
        eventually(lambda: nothing_left(world), "children of a deleted run are left")
        proxy.clear()
        eventually(lambda: runs_known(operator) == 0, "the operator keeps a run that is gone")
        eventually(lambda: is_quiet(proxy), "children of a deleted run are made again and again")
        eventually(lambda: nothing_left(world), "children of a deleted run are left")
        assert operator.process.poll() is None


@pytest.mark.process
@pytest.mark.parametrize("status", [400, 429, 500])
def test_watches_that_end_in_an_error(status, stage):
    begin, _proxy, build = stage
    with begin(rules(ExpireWatch(status=status), times=2)) as operator:
        world = build(operator)
        world.apply()
        world.wait_for("Ready", "True", "Running")
        assert operator.process.poll() is None


@pytest.mark.process
@pytest.mark.parametrize(
    "status", [403, *(pytest.param(one, marks=pytest.mark.slow) for one in (401, 404, 503))]
)
def test_a_server_that_refuses_everything_for_a_while(status, stage):
    """Quick for one status: what each comes to is tests/rollout_operator/apply/test_what_the_api_server_refuses_is_said.py."""
    begin, proxy, build = stage
    with begin() as operator:
        world = build(operator)
        world.apply("before")
        world.wait_for("Ready", "True", "Running", "before")
        proxy.inject(Rule(client=CLIENT, times=None, fault=Answer(status=status)))
        world.apply()
        world.kubectl("delete", "rolloutrun", "before")
        proxy.cut_connections()
        time.sleep(REFUSED_SECONDS)
        assert len(proxy.records()) < 20 * len(WATCHED)
        proxy.clear()
        world.wait_for("Ready", "True", "Running")
        eventually(lambda: runs_known(operator) == 1, "the operator keeps a run that is gone")
        assert operator.process.poll() is None


@pytest.mark.slow
def test_a_watch_that_stays_dead_fails_liveness_within_its_bound(stage):
    begin, proxy, _ = stage
    with begin() as operator:
        assert operator.get("/healthz") == "ok"
        with Pace() as pace:
            began = time.monotonic()
            for rule in rules(Answer(status=503), kinds=["services", "rolloutruns"]):
                proxy.inject(rule)
            proxy.cut_connections()
            told = eventually(lambda: complaint(operator), "no complaint", seconds=300, every=1.0)
            took = time.monotonic() - began
        assert took <= DEAD_SECONDS + pace.stretch(5)
        eventually(lambda: len(complaint(operator).splitlines()) == 2, "not both are named")
        assert "watch of rolloutruns silent" in told or "watch of services silent" in told
        proxy.clear()
        eventually(lambda: not complaint(operator), "liveness does not come back", seconds=120)


def complaint(operator):
    """What liveness says; empty while it is well."""
    try:
        operator.get("/healthz")
    except urllib.error.HTTPError as error:
        return error.read().decode()
    return ""


def runs_known(operator):
    return operator.metric("rollout_runs")


def nothing_left(world):
    kinds = "statefulsets,services,secrets,configmaps,rolebindings,serviceaccounts"
    return not world.kubectl.get(kinds, "-l", "rollout.dev/run")["items"]


def is_quiet(proxy, seconds=5.0):
    """Whether nothing was written for a while."""
    writes = proxy.writes()
    return not writes or time.monotonic() - writes[-1].ended > seconds
