"""Random histories of whole runs: workers and coordinators that come, go, fail and come too late.

Checked after every move, from the ledger alone: every admitted sample has at most one disposition and
those that have none are still in the window; steps consume in data order; no sample is older than the
staleness bound when it is consumed; nothing of a replaced worker is heard.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import hypothesis.strategies as st
import pytest
from coordinator_kit import PLAN, Bench, FakeActor, FakeLearner
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from hypothesis.stateful import run_state_machine_as_test as run_machine
from msgspec.structs import replace as replace_struct
from plans import changed

from rollout.errors import Fenced
from rollout.ledger.records import Limits
from rollout.protocol import messages as m
from rollout.protocol import routes

LIMITS = Limits(failures_max=2, losses_max=50)


class Histories(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.bench = Bench(Path(self.folder.name))
        self.former: list[FakeActor] = []
        self.former_learners: list[FakeLearner] = []
        self.held: list[tuple[FakeActor, m.Task]] = []
        self.batch: m.Batch | None = None
        self.forked = False

    @initialize(
        staleness=st.integers(0, 2), waves=st.none() | st.integers(1, 3), flat=st.integers(1, 3)
    )
    def start(self, staleness, waves, flat):
        bounds = {"staleness_max": staleness, "waves_max": waves, "steps_max": 50}
        self.plan = changed(PLAN, samples_min=1, attempts_max=LIMITS.failures_max, **bounds)
        self.reward = lambda task, sample: float(sample * (task.ordinal % flat == 0))
        self.client = self.bench.start(self.plan, LIMITS)
        self.learner = FakeLearner(self.client, self.bench.store)
        self.actors = [FakeActor(self.client, i, self.reward) for i in range(2)]

    @rule(which=st.integers(0, 1), count=st.integers(1, 4))
    def claim(self, which, count):
        actor = self.actors[which]
        held = tuple(t.task_id for a, t in self.held if a is actor)
        self.held += [(actor, t) for t in actor.claim(tasks_max=count, held=held).tasks]

    @precondition(lambda self: self.held)
    @rule(data=st.data(), how=st.sampled_from(["done"] * 3 + ["failed", "partly", "returned"]))
    def answer(self, data, how):
        actor, task = self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))
        if actor in self.former:
            with pytest.raises(Fenced):
                actor.submit(actor.play(task))
        elif how == "done":
            actor.submit(actor.play(task))
        elif how == "partly":
            whole = actor.play(task)
            failure = m.Failure(kind="infrastructure", message="a node went away")
            result = replace_struct(whole, trajectories=whole.trajectories[1:], failure=failure)
            actor.submit(result)
        else:
            actor.fail(task, "infrastructure" if how == "failed" else "returned")

    @rule(which=st.integers(0, 1))
    def actor_dies(self, which):
        self.former.append(self.actors[which])
        self.actors[which] = FakeActor(self.client, which, self.reward)

    @rule()
    def coordinator_dies(self):
        self.client = self.bench.start(self.plan, LIMITS)
        for worker in (*self.actors, *self.former, self.learner, *self.former_learners):
            worker.client = self.client

    @rule()
    def learner_dies(self):
        self.former_learners.append(self.learner)
        self.learner = FakeLearner(self.client, self.bench.store)
        self.batch = None

    @rule()
    def learner_asks(self):
        batch = self.learner.ask()
        if batch.waiting is None and batch.stop is None:
            if self.batch is not None:
                assert batch.ids == self.batch.ids, "the same step was handed out differently"
            self.batch = batch

    @precondition(lambda self: self.batch is not None)
    @rule(twice=st.booleans(), stale=st.booleans())
    def learner_commits(self, twice, stale):
        if stale and self.former_learners:
            with pytest.raises(Fenced):
                old = self.former_learners[-1]
                old.lineage = self.learner.lineage
                old.call(routes.COMMIT, old.build_commit(self.batch))
        for _ in range(2 if twice else 1):
            self.learner.commit(self.batch)
        self.batch = None

    @precondition(lambda self: self.learner.step > 0)
    @rule(data=st.data())
    def learner_forks(self, data):
        base = data.draw(st.integers(0, self.learner.step))
        forked = self.learner.call(
            routes.FORK,
            m.Fork(
                step=base,
                version=self.learner.version(base, "forked"),
                chain=f"forked-{base}",
                reason="digest differs",
            ),
        )
        self.learner.lineage, self.learner.step = forked.lineage, base
        self.batch, self.forked = None, True

    @invariant()
    def the_ledger_keeps_every_promise(self):
        if not hasattr(self, "client") or self.client.status().outcome is not None:
            return
        with self.bench.reader() as ledger:
            ended = ledger.dispositions()
            pending = ended.pop("pending")
            state = self.bench.coordinator.run.state
            window = sum(group.task.num_samples for group in state.groups.values())
            assert pending == window, "a sample is neither ended nor in the window"
            opened = {n for n, group in state.groups.items() if group.state == "open"}
            assert state.open_ordinals == opened, "an open task is not known as one"
            seen, last = set(), -1
            for step in range(1, self.learner.step + 1):
                for view in ledger.samples(step):
                    name = (view.trajectory.ordinal, view.trajectory.sample)
                    assert name not in seen, "consumed twice"
                    seen.add(name)
                    assert view.trajectory.ordinal >= last, "out of data order"
                    last = view.trajectory.ordinal
                    age = step - 1 - view.trajectory.spans[0].step
                    assert age <= self.plan.train.staleness_max
            assert len(seen) == ended.get("consumed", 0)

    def teardown(self):
        self.bench.close()
        self.folder.cleanup()


def test_any_history_of_a_run_keeps_its_promises():
    run_machine(Histories, settings=settings(max_examples=10, stateful_step_count=25))


@pytest.mark.slow
def test_any_long_history_of_a_run_keeps_its_promises():
    run_machine(Histories, settings=settings(max_examples=150, stateful_step_count=60))
