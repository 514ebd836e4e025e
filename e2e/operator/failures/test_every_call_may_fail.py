"""Every verb on every kind, refused, throttled, broken or left without an answer: tried again, with pauses.

What passes by itself leaves no trace; what a person must mend is said, with the verb and the object.
"""

import itertools
from collections import defaultdict
from functools import partial

import pytest
from deaths import CLIENT, crew
from endings import events_of
from lives import LIVES
from operators import eventually, operating
from stage import World

from cluster.control.ports import find_free_port
from faults.kinds import Answer, Cut, Hang, LoseAnswer
from faults.proxy import running
from faults.rules import Rule
from rollout_operator.controller.queue import HOLD_SECONDS_MAX
from rollout_operator.rbac import RULES
from runs import build_run

FAULTS = {
    "conflict": Answer(status=409),
    "throttled": Answer(status=429, retry_after_seconds=1),
    "forbidden": Answer(status=403),
    "broken": Answer(status=500),
    "away": Answer(status=503),
    "late": Answer(status=504),
    "cut": Cut(),
    "lost": LoseAnswer(),
}
EACH = 2
CREATED = {"secrets", "events", "serviceaccounts/token"}
APPLIED = (
    "configmaps", "serviceaccounts", "rolebindings", "services", "networkpolicies",
    "poddisruptionbudgets", "statefulsets",
)  # fmt: skip
SLACK = 0.9
FAULTS_SECONDS_MAX = 900.0
"""Each kind of call fails, most of them one after the other: pauses grow, and one that hangs takes half a minute."""


def pairs():
    """(verb, resource) of every call that the rights allow; the Lease is another test's, and `bind` is no call."""
    found = set()
    for rule in RULES:
        for resource, verb in itertools.product(rule.resources, rule.verbs):
            if verb == "bind" or (verb == "create" and resource not in CREATED):
                continue
            found.add(("apply" if verb == "patch" else verb, resource))
    return sorted(pair for pair in found if pair[1] != "leases")


def rule_for(verb, resource, fault, **more):
    kind, _, part = resource.partition("/")
    return Rule(
        verbs={verb}, resources={kind}, subresources={part}, client=CLIENT, fault=fault, **more
    )


@pytest.mark.process
def test_each_call_of_a_create_fails_in_one_way_or_another(bare, puppets, tmp_path):
    kinds = itertools.cycle(FAULTS.values())
    with crew(bare, puppets, tmp_path) as team:
        clean = team.play(LIVES[0])
        rules = [rule_for(*pair, next(kinds)) for pair in pairs()]
        team.play_under(LIVES[0], rules, clean, FAULTS_SECONDS_MAX)


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("life", LIVES, ids=lambda life: life.name)
def test_each_call_of_a_life_fails_twice(life, fault, bare, puppets, tmp_path):
    with crew(bare, puppets, tmp_path) as team:
        clean = team.play(life)
        rules = [rule_for(*pair, FAULTS[fault], times=EACH) for pair in pairs()]
        team.play_under(life, rules, clean, FAULTS_SECONDS_MAX)


@pytest.mark.slow
def test_calls_that_hang_are_given_up(bare, puppets, tmp_path):
    with crew(bare, puppets, tmp_path) as team:
        clean = team.play(LIVES[0])
        rules = [rule_for(*pair, Hang(), times=1) for pair in pairs() if pair[0] != "watch"]
        team.play_under(LIVES[0], rules, clean, FAULTS_SECONDS_MAX)


@pytest.fixture
def proxied(bare, puppets, tmp_path):
    """A proxy and a world whose operator speaks through it."""
    path = tmp_path / "kubeconfig"
    with running(bare.kubeconfig) as proxy:
        path.write_text(proxy.kubeconfig())
        with operating(path, find_free_port(), tmp_path / "log") as operator:
            yield proxy, World(kubectl=bare, puppets=puppets, operator=operator)


@pytest.mark.process
def test_a_right_that_is_missing_is_named_and_asked_for_seldom(proxied):
    proxy, world = proxied
    refuse = partial(Answer, status=403)
    proxy.inject(rule_for("create", "secrets", refuse(message="cannot create secrets"), times=None))
    world.apply("no-secrets")
    assert (
        "cannot create secrets"
        in world.wait_for("Stalled", "True", "Forbidden", "no-secrets")["message"]
    )
    proxy.clear()
    lacking = {f"no-{kind}": kind for kind in APPLIED}
    for run, kind in lacking.items():
        fault = refuse(message=f'User "operator" cannot patch resource "{kind}"')
        proxy.inject(rule_for("apply", kind, fault, prefix=run, times=None))
    world.kubectl.apply(*(build_run(run) for run in lacking))
    for run, kind in lacking.items():
        said = world.wait_for("Stalled", "True", "Forbidden", run)["message"]
        assert f'cannot patch resource "{kind}"' in said
        uid = world.run(run)["metadata"]["uid"]
        assert events_of(world, uid).count("Forbidden") == 1
    tries = defaultdict(list)
    for record in proxy.records():
        if record.fault:
            tries[record.call.path].append(record.arrived)
    for path, times in tries.items():
        pauses = [later - sooner for sooner, later in itertools.pairwise(times)]
        assert all(pause >= HOLD_SECONDS_MAX * SLACK for pause in pauses), (path, pauses)
    proxy.clear()
    for run in ("no-secrets", *lacking):
        world.wait_for("Ready", "True", "Running", run)
        assert world.condition("Stalled", run) == {}


@pytest.mark.process
def test_a_server_that_asks_for_patience_gets_it(proxied):
    proxy, world = proxied
    fault = Answer(status=429, retry_after_seconds=2)
    rule = proxy.inject(rule_for("apply", "services", fault, names={"arithmetic-learner"}, times=3))
    world.apply()
    world.wait_for("Ready", "True", "Running")
    times = arrivals(proxy, rule)
    assert all(later - sooner >= 2.0 for sooner, later in itertools.pairwise(times[:4])), times


@pytest.mark.process
def test_a_server_that_stays_broken_is_asked_ever_more_seldom_and_then_named(proxied):
    proxy, world = proxied
    fault = Answer(status=503, message="etcdserver: no leader")
    rule = proxy.inject(
        rule_for("apply", "services", fault, names={"arithmetic-learner"}, times=None)
    )
    world.apply()
    said = world.wait_for("Stalled", "True", "ApiServerRefused")["message"]
    assert "arithmetic-learner" in said
    assert "etcdserver: no leader" in said
    times = arrivals(proxy, rule)
    pauses = [later - sooner for sooner, later in itertools.pairwise(times)]
    assert all(p >= 0.1 * 2**n for n, p in enumerate(pauses)), pauses
    proxy.clear()
    world.wait_for("Ready", "True", "Running")


@pytest.mark.process
def test_a_status_that_cannot_be_written_keeps_no_child_from_being_made(proxied):
    proxy, world = proxied
    fault = Answer(status=403)
    rule = proxy.inject(rule_for("apply", "rolloutruns/status", fault, times=None))
    world.apply()
    eventually(partial(world.pod_uids, "learner"), "the learner's pod was not made")
    assert proxy.matched(rule) < 20
    proxy.clear()
    world.wait_for("Ready", "True", "Running")


def arrivals(proxy, rule):
    return [one.arrived for one in proxy.records() if rule.matches(one.call)]
