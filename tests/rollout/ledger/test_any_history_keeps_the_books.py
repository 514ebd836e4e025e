"""Random histories of claims, results, commits, forks, ways back and crashes, checked after every move.

A crash abandons the ledger object without closing it cleanly and opens the file again.
"""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from hypothesis.stateful import run_state_machine_as_test as run_machine
from ledger_kit import (
    NUM_SAMPLES,
    TERM,
    Clock,
    admission,
    claim_request,
    ended,
    failed,
    step_commit,
    trajectory,
    version,
)
from msgspec import structs

from rollout.errors import Fenced, LedgerError, NoLongerKept
from rollout.ledger.records import AnchorManifest, Limits
from rollout.ledger.sql.tallies import count_dispositions

GROUPS_PER_STEP = 2
WORKERS = ("actor-0", "actor-1")


class Histories(RuleBasedStateMachine):
    open_ledger = None
    read_ledger = None

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.loop = asyncio.new_event_loop()
        self.clock = Clock()
        self.ledger = self._open()
        self.leases = {}  # (task_id, epoch) -> (worker, incarnation, lease)
        self.accepted = {}  # task_id -> trajectory ids
        self.incarnations = {}
        self.beginnings = {}  # task_id -> what the last attempt that was returned left
        self.returned = set()
        self.lineage, self.committed, self.admitted, self.position = 0, 0, 0, 0
        self.anchors, self.removed = {}, 0
        self.parents = {}  # lineage -> the lineage and the step that it goes on from
        self.heads = {(0, 0): (version(0), "chain-0-0")}
        self.saved = {}  # what a snapshot may hold, whether the run still has it or not
        self.sampled = {}  # task_id -> the version that its samples are of

    def _open(self):
        return type(self).open_ledger(Path(self.folder.name), self.clock, Limits())

    def do(self, work):
        return self.loop.run_until_complete(work)

    @initialize()
    def start(self):
        self.learner = self.do(self.ledger.register("learner", "learner")).incarnation
        for worker in WORKERS:
            self.incarnations[worker] = self.do(self.ledger.register(worker, "actor")).incarnation
        self.do(self.ledger.publish_initial(self.learner, version(0), "chain-0-0"))

    @rule(count=st.integers(1, 4))
    def admit(self, count):
        self.do(self.ledger.admit(admission(self.admitted, self.admitted + count)))
        self.admitted += count

    @rule(worker=st.sampled_from(WORKERS), count=st.integers(1, 3))
    def claim(self, worker, count):
        mine = self.incarnations[worker]
        held = tuple(t for (t, _), (w, i, _) in self.leases.items() if (w, i) == (worker, mine))
        at = {"lineage": self.lineage, "step": self.committed}
        ask = claim_request(worker, mine, tasks_max=count, held=held, **at)
        for lease in self.do(self.ledger.claim(ask)).leases:
            assert lease.task.task_id not in self.accepted
            key = (lease.task.task_id, lease.epoch)
            assert key not in self.leases, "an epoch is given to one attempt only"
            assert lease.epoch > max(
                (epoch for task, epoch in self.leases if task == lease.task.task_id), default=0
            )
            self.leases[key] = (worker, mine, lease)

    @precondition(lambda self: self.leases)
    @rule(data=st.data(), kind=st.sampled_from(["done", "done", "infrastructure", "returned"]))
    def submit(self, data, kind):
        """Any attempt ever made reports, however old it is."""
        worker, incarnation, lease = data.draw(st.sampled_from(list(self.leases.values())))
        end = self.finish(lease) if kind == "done" else failed(lease, kind)
        if kind == "returned":
            end = structs.replace(end, prefixes=f"beginning {lease.epoch}".encode())
        newest = max(e for task, e in self.leases if task == lease.task.task_id)
        if incarnation != self.incarnations[worker]:
            try:
                self.do(self.ledger.submit(worker, incarnation, [end]))
            except Fenced:
                return
            raise AssertionError("a former incarnation was heard")
        verdict = self.do(self.ledger.submit(worker, incarnation, [end]))[0]
        if verdict.accepted and kind == "done":
            ids = [sample.trajectory_id for sample in end.samples]
            assert self.accepted.setdefault(lease.task.task_id, ids) == ids
            self.sampled[lease.task.task_id] = (lease.version_lineage, lease.version_step)
            self.beginnings.pop(lease.task.task_id, None)
        elif verdict.accepted and (end.task_id, end.epoch) not in self.returned:
            self.returned.add((end.task_id, end.epoch))
            if end.prefixes:
                self.beginnings[end.task_id] = end.prefixes
        if lease.epoch < newest and kind == "done":
            assert not verdict.accepted, "a stale epoch was accepted"

    @staticmethod
    def finish(lease):
        at = {"lineage": lease.version_lineage, "step": lease.version_step}
        made = [trajectory(lease.task.ordinal, one, **at) for one in range(lease.task.num_samples)]
        return ended(lease, made)

    @rule(seconds=st.sampled_from([1.0, TERM / 2, TERM * 2]))
    def time_passes(self, seconds):
        self.clock.now += seconds

    @rule(worker=st.sampled_from(WORKERS))
    def worker_restarts(self, worker):
        self.incarnations[worker] = self.do(self.ledger.register(worker, "actor")).incarnation

    @rule()
    def commit(self):
        start = self.committed * GROUPS_PER_STEP
        wanted = range(start, start + GROUPS_PER_STEP)
        if not all(f"t/{ordinal}" in self.accepted for ordinal in wanted):
            return
        step = self.committed + 1
        commit = step_commit(step, wanted, self.learner, lineage=self.lineage)
        self.do(self.ledger.commit(commit))
        self.do(self.ledger.commit(commit))
        self.committed = step
        self.heads[(self.lineage, step)] = (commit.version, commit.chain)

    @precondition(lambda self: self.committed > 0)
    @rule()
    def save_anchor(self):
        key = (self.lineage, self.committed)
        self.anchors[key] = True
        weights, link = self.heads[key]
        manifest = self.saved[key] = AnchorManifest(
            name=f"{self.lineage}-{self.committed}",
            lineage=self.lineage,
            step=self.committed,
            chain=link,
            version=weights,
            objects={},
        )
        self.do(self.ledger.save_anchor(self.learner, manifest))

    @precondition(lambda self: len(self.live_anchors()) > 1)
    @rule()
    def delete_the_oldest_anchor(self):
        key = min(self.live_anchors(), key=lambda one: (one[1], one[0]))
        self.anchors.pop(key)
        self.do(self.ledger.delete_anchors([key]))

    @rule(step=st.integers(0, 6), num_max=st.integers(1, 4))
    def remove(self, step, num_max):
        first = min((anchor[1] for anchor in self.live_anchors()), default=-1)
        if step > min(first, self.committed):
            with pytest.raises(LedgerError, match="cannot be removed"):
                self.do(self.ledger.remove_bodies(step, num_max))
            return
        done = self.do(self.ledger.remove_bodies(step, num_max))
        left = max(0, step * GROUPS_PER_STEP - self.removed)
        assert (done.num_bodies, done.more) == (min(left, num_max), left >= num_max)
        self.removed += done.num_bodies

    def live_anchors(self):
        """Anchors of steps that are not left behind."""
        bounds = self.bounds()
        return [one for one in self.anchors if one[1] <= bounds.get(one[0], -1)]

    def bounds(self):
        """The last step that counts, of each lineage of the live chain."""
        found, lineage, bound = {}, self.lineage, 10**9
        while lineage is not None:
            found[lineage] = bound
            lineage, base = self.parents.get(lineage, (None, 0))
            bound = min(bound, base)
        return found

    @precondition(lambda self: self.committed > 0)
    @rule(data=st.data())
    def fork(self, data):
        base = data.draw(st.integers(0, self.committed))
        if base * GROUPS_PER_STEP < self.removed:
            with pytest.raises(NoLongerKept):
                self.do(
                    self.ledger.fork(self.learner, base, version(base, 99), "chain", "it differs")
                )
            return
        made = self.do(
            self.ledger.fork(self.learner, base, version(base, 99), "chain", "digest differs")
        )
        assert made == self.lineage + 1
        self.parents[made] = (self.lineage, base)
        self.heads[(made, base)] = (version(base, 99), "chain")
        self.lineage, self.committed = made, base

    @precondition(lambda self: self.saved)
    @rule(data=st.data())
    def go_back(self, data):
        """To any anchor that there ever was, of steps that count no more, too."""
        key = data.draw(st.sampled_from(sorted(self.saved)))
        made = self.do(self.ledger.go_back(self.saved[key], "from a snapshot"))
        assert made == self.lineage + 1
        self.parents[made], self.heads[(made, key[1])] = key, self.heads[key]
        self.lineage, self.committed, self.anchors[key] = made, key[1], True
        first, bounds = self.committed * GROUPS_PER_STEP, self.bounds()
        for ordinal in range(first, self.admitted):
            task = f"t/{ordinal}"
            lineage, step = self.sampled.get(task, (0, -1))
            past = ordinal >= self.removed and step <= bounds.get(lineage, -1)
            if not (task in self.accepted and past):
                self.accepted.pop(task, None)
                self.beginnings.pop(task, None)
        self.removed = min(self.removed, first)
        self.all_come_back()

    def all_come_back(self):
        """Whoever was there before is heard no more."""
        with pytest.raises(Fenced):
            self.do(self.ledger.worker_ended("learner", self.learner, "failed"))
        self.learner = self.do(self.ledger.register("learner", "learner")).incarnation
        for worker in WORKERS:
            self.worker_restarts(worker)

    @rule()
    def crash(self):
        """Nothing is flushed by us: what was acknowledged must be there anyway."""
        self.position = self.ledger.position
        self.do(self.ledger.close())
        self.ledger = self._open()
        assert self.ledger.position == self.position

    @invariant()
    def the_books_are_right(self):
        state = self.do(self.ledger.load())
        assert state.lineage == self.lineage
        assert (state.head.step if state.head else 0) == self.committed
        assert state.next_admitted == self.admitted
        assert state.dispositions.get("consumed", 0) == (
            self.committed * GROUPS_PER_STEP * NUM_SAMPLES
        )
        consumed = [i for r in self.do(self.ledger.records_after(0)) for i in r.consumed]
        assert len(consumed) == len(set(consumed)), "consumed twice"
        wanted = [
            i
            for ordinal in range(self.committed * GROUPS_PER_STEP)
            for i in self.accepted[f"t/{ordinal}"]
        ]
        assert consumed == wanted
        pending = self.admitted - self.committed * GROUPS_PER_STEP
        assert len(state.groups) == pending, "every admitted task is consumed or still there"
        for group in state.groups:
            done = group.task.task_id in self.accepted
            assert (group.state == "done") == done
            assert [s.trajectory_id for s in group.samples] == (
                self.accepted.get(group.task.task_id, [])
            )

    @invariant()
    def every_step_is_whole_or_refused_by_name(self):
        for step in range(1, self.committed + 1):
            if (step - 1) * GROUPS_PER_STEP < self.removed:
                with pytest.raises(NoLongerKept):
                    self.do(self.ledger.batch_of(step))
            else:
                assert len(self.do(self.ledger.batch_of(step)).bodies) == GROUPS_PER_STEP
        for group in self.do(self.ledger.load()).groups:
            assert (group.body is not None) == (group.task.task_id in self.accepted)

    @invariant()
    def beginnings_are_kept(self):
        ids = [f"t/{ordinal}" for ordinal in range(self.admitted)]
        assert self.do(self.ledger.prefixes_of(ids)) == self.beginnings

    def teardown(self):
        self.do(self.ledger.close())
        self._check_counts()
        self.loop.close()
        self.folder.cleanup()

    def _check_counts(self):
        """People are told what a count of everything gives."""
        with type(self).read_ledger(Path(self.folder.name)) as reader:
            told = reader.dispositions()
            counted = count_dispositions(reader._tx)
            assert told.pop("pending") == self.admitted * NUM_SAMPLES - sum(counted.values())
            assert told == counted
            assert [view.num_consumed for view in reader.steps()] == (
                [GROUPS_PER_STEP * NUM_SAMPLES] * self.committed
            )


def check(open_ledger, read_ledger, **how):
    openers = {"open_ledger": staticmethod(open_ledger), "read_ledger": staticmethod(read_ledger)}
    machine = type("H", (Histories,), openers)
    run_machine(machine, settings=settings(**how))


def test_any_history_keeps_the_books(open_ledger, read_ledger):
    check(open_ledger, read_ledger, max_examples=12, stateful_step_count=30)


@pytest.mark.slow
def test_any_long_history_keeps_the_books(open_ledger, read_ledger, store):
    # A tenth of a second to open, where a file takes a hundredth.
    examples = {"sqlite": 200, "postgres": 25}[store]
    check(open_ledger, read_ledger, max_examples=examples, stateful_step_count=60)
