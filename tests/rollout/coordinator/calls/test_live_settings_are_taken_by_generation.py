"""What may change while a run goes on comes from the operator, by generation, and is never lost."""

from __future__ import annotations

import json
import urllib.error
import urllib.request

import pytest
from coordinator_kit import (
    PLAN,
    FakeActor,
    FakeLearner,
    HttpServer,
    Recorder,
    run_to_end,
    wait_for_outcome,
)
from plans import changed
from pod_kit import build_config

from rollout.coordinator.build import ConfigResolver
from rollout.coordinator.rows import build_rows
from rollout.coordinator.settings import ResolvedSettings
from rollout.errors import SpecError, StaleSettings
from rollout.protocol import messages as m
from rollout.protocol import routes
from rollout.protocol.auth import token_for
from rollout_api import parse_run, resolve
from rollout_api.fields.live import LiveSettings, live_part, with_live

SECRET = "secret"


def settings(generation, **live):
    return m.Settings(generation=generation, live=live)


def test_a_run_may_grow_and_the_growth_survives_a_restart(bench):
    client = bench.start()
    run_to_end(FakeActor(client), FakeLearner(client, bench.store))
    assert client.status().step == 3
    assert client.call(routes.SETTINGS, settings(2, maxSteps=5)).generation == 2
    client = bench.start()
    status = client.status()
    assert (status.steps_max, status.settings_generation) == (5, 2)
    run_to_end(FakeActor(client), FakeLearner(client, bench.store))
    assert client.status().step == 5


def test_an_older_generation_is_refused_and_changes_nothing(bench):
    client = bench.start()
    client.call(routes.SETTINGS, settings(7, maxSteps=9))
    with pytest.raises(StaleSettings, match="generation 6 came after 7"):
        client.call(routes.SETTINGS, settings(6, maxSteps=20))
    assert client.status().steps_max == 9
    client = bench.start()
    with pytest.raises(StaleSettings):
        client.call(routes.SETTINGS, settings(6))


def test_a_configuration_of_a_newer_generation_makes_older_settings_void(bench):
    """A run is suspended, edited and resumed: its next attempt begins under what it was edited to."""
    client = bench.start()
    client.call(routes.SETTINGS, settings(7, maxSteps=9))
    client = bench.start(changed(PLAN, generation=8, steps_max=4))
    status = client.status()
    assert (status.steps_max, status.settings_generation) == (4, 8)
    with pytest.raises(StaleSettings):
        client.call(routes.SETTINGS, settings(7, maxSteps=9))
    client.call(routes.SETTINGS, settings(8, progressSeconds=20))
    assert client.status().steps_max == 4
    client = bench.start(changed(PLAN, generation=7, steps_max=4))
    assert client.status().settings_generation == 8


def test_the_same_settings_may_be_sent_again_and_write_nothing(bench):
    client = bench.start()
    first = client.call(routes.SETTINGS, settings(3, maxSteps=8))
    position = client.status().position
    assert client.call(routes.SETTINGS, settings(3, maxSteps=8)) == first
    assert client.status().position == position


def test_one_generation_may_change_what_is_not_in_the_object(bench):
    """The interval follows how many runs there are, not this run's object."""
    client = bench.start()
    client.call(routes.SETTINGS, settings(3, progressSeconds=10))
    client.call(routes.SETTINGS, settings(3, progressSeconds=250))
    assert bench.coordinator.run.live.progress_seconds == 250
    bench.start()
    assert bench.coordinator.run.live.progress_seconds == 250


@pytest.mark.parametrize(
    ("live", "field"),
    [
        ({"maxSteps": 0}, "maxSteps"),
        ({"progressSeconds": 0.1}, "progressSeconds"),
        ({"limits": {"sampleAttempts": "many"}}, "limits.sampleAttempts"),
        ({"seed": 7}, "seed"),
    ],
)
def test_what_is_wrong_is_named_and_not_taken(bench, live, field):
    client = bench.start()
    with pytest.raises(SpecError, match=rf"live\.{field}"):
        client.call(routes.SETTINGS, settings(2, **live))
    assert client.status().settings_generation == 0


def test_an_operator_speaks_json(bench):
    server = HttpServer(bench, SECRET)

    def post(path, document):
        request = urllib.request.Request(
            server.url + path,
            data=json.dumps(document).encode(),
            headers={
                "Authorization": f"Bearer {token_for(SECRET, 'operator')}",
                "Content-Type": "application/json",
            },
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)

    assert post("/v1/operator/settings", {"generation": 4, "live": {"maxSteps": 6}}) == {
        "generation": 4,
        "deferred": [],
    }
    with pytest.raises(urllib.error.HTTPError) as refused:
        post("/v1/operator/settings", {"generation": 3, "live": {}})
    assert refused.value.code == 409
    assert json.load(refused.value)["error"] == "StaleSettings"
    with pytest.raises(urllib.error.HTTPError) as late:
        post("/v1/operator/stop", {"reason": "Suspended", "attempt": 7})
    assert late.value.code == 409
    assert json.load(late.value)["error"] == "StaleSettings"
    assert post("/v1/operator/stop", {"reason": "Suspended", "attempt": 1}) == {}
    server.close()


SPEC = resolve(
    parse_run(
        {
            "schema_version": 1,
            "name": "a",
            "model": {"uri": "rollout://tiny-adder"},
            "train": {"algorithm": {"grpo": {}}, "maxSteps": 10},
            "evaluations": [
                {"suite": {"builtin": {"name": "arithmetic"}}, "name": "sums", "everySteps": 5}
            ],
        }
    ).spec
).spec


def document(spec=SPEC, **changes):
    plain = json.loads(live_part(spec).model_dump_json(exclude_none=True))
    return LiveSettings.model_validate(plain | changes)


def test_a_spec_under_its_own_settings_is_itself():
    assert with_live(SPEC, document()) == (SPEC, ())
    assert with_live(SPEC, LiveSettings()) == (SPEC, ())


def test_steps_only_grow():
    grown, _ = with_live(SPEC, document(maxSteps=12))
    assert grown.train.max_steps == 12
    same, _ = with_live(SPEC, document(maxSteps=4))
    assert same.train.max_steps == 10


def test_when_an_evaluation_runs_may_change():
    wanted = json.loads(SPEC.evaluations[0].model_dump_json(exclude_none=True))
    gate = {"metric": "accuracy", "lowerBound": "0.5", "action": "StopRun"}
    changed, deferred = with_live(
        SPEC, document(evaluations=[wanted | {"everySteps": 2, "gate": gate}])
    )
    assert deferred == ()
    assert changed.evaluations[0].every_steps == 2
    assert changed.evaluations[0].gate.action == "StopRun"


def test_an_evaluation_that_is_taken_out_is_not_run_again():
    changed, deferred = with_live(SPEC, document(evaluations=[]))
    (left,) = changed.evaluations
    assert (left.every_steps, left.at_start, left.at_end, left.selects) == (
        None,
        False,
        False,
        False,
    )
    assert deferred == ()


@pytest.mark.parametrize("change", [{"name": "others"}, {"samplesPerPrompt": 4}])
def test_what_workers_do_not_know_waits_for_the_next_attempt(change):
    wanted = json.loads(SPEC.evaluations[0].model_dump_json(exclude_none=True))
    changed, deferred = with_live(SPEC, document(evaluations=[wanted | change]))
    assert "evaluations[0]" in deferred[0]
    assert "next" in deferred[0]
    assert changed.evaluations[0].samples_per_prompt == 1


def test_snapshots_and_limits_reach_the_plan(tmp_path):
    config = build_config(tmp_path)
    resolver = ConfigResolver(config=config, rows=build_rows(config))
    begun = resolver.plan(LiveSettings())
    assert isinstance(begun, ResolvedSettings)
    plain = json.loads(live_part(config.spec).model_dump_json(exclude_none=True))
    plain["snapshots"] |= {"everySteps": 2, "keepLast": 9, "onPreemption": "SnapshotIfTime"}
    plain["limits"] |= {"sampleSeconds": 77, "sampleAttempts": 2, "mismatchKlStop": "0.5"}
    plan = resolver.plan(LiveSettings.model_validate(plain)).plan
    assert (
        plan.snapshots.anchor_every_steps,
        plan.snapshots.anchors_kept,
        plan.snapshots.saves_on_notice,
    ) == (2, 9, True)
    assert (plan.limits.sample_wait_seconds, plan.limits.attempts_max, plan.limits.drift.stop) == (
        77.0,
        2,
        0.5,
    )


def test_the_learner_hears_how_often_to_save(bench):
    client = bench.start(changed(PLAN, anchor_every_steps=4))
    learner, actor = FakeLearner(client, bench.store), FakeActor(client)
    actor.work()
    assert learner.ask().anchor_every_steps == 4


class AttemptsResolver:
    """Opens a tracker whenever it is asked to."""

    def __init__(self, plan):
        self.begun, self.opened = plan, []

    def plan(self, live):
        del live
        return ResolvedSettings(plan=self.begun)

    def trackers(self, live):
        del live
        self.opened.append(Recorder())
        return (self.opened[-1],)


class TryResolver(AttemptsResolver):
    """Knows how often a sample is tried."""

    def plan(self, live):
        tries = (
            self.begun.limits.attempts_max if live.limits is None else live.limits.sample_attempts
        )
        return ResolvedSettings(plan=changed(self.begun, attempts_max=tries))


@pytest.mark.parametrize("restarted", [False, True])
def test_how_often_a_sample_is_tried_changes_in_the_ledger_too(bench, restarted):
    client = bench.start(PLAN, resolver=TryResolver(PLAN))
    client.call(routes.SETTINGS, settings(2, limits={"sampleAttempts": 1}))
    if restarted:
        client = bench.start(PLAN, resolver=TryResolver(PLAN))
    FakeLearner(client, bench.store)
    actor = FakeActor(client)
    task = actor.claim(tasks_max=1).tasks[0]
    actor.fail(task)
    assert bench.coordinator.run.state.groups[task.ordinal].state == "excluded"


def test_trackers_change_without_a_restart_and_lose_no_step(bench):
    resolver = AttemptsResolver(PLAN)
    client = bench.start(PLAN, resolver=resolver)
    actor, learner = FakeActor(client), FakeLearner(client, bench.store)
    actor.work()
    learner.commit(learner.ask())
    client.call(routes.SETTINGS, settings(2, tracking=[{"tensorboard": {}}]))
    client.call(routes.SETTINGS, settings(3, tracking=[{"tensorboard": {}}]))
    run_to_end(actor, learner)
    learner.finish()
    wait_for_outcome(client)
    assert len(resolver.opened) == 2
    seen = [step for tracker in resolver.opened for step, _ in tracker.seen]
    assert seen == [0, 1, 2, 3]


def test_trackers_are_those_that_the_settings_name(tmp_path):
    config = build_config(tmp_path)
    resolver = ConfigResolver(config=config, rows=build_rows(config))
    (only,) = resolver.trackers(LiveSettings())
    two = resolver.trackers(LiveSettings.model_validate({"tracking": [{"tensorboard": {}}]}))
    assert len(two) == 2
    for tracker in (only, *two):
        tracker.close()
