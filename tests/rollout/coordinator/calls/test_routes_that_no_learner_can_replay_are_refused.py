"""An actor may tell any bytes as experts: what does not fit the model is refused by name, and the run goes on."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest
from coordinator_kit import HELDOUT, PLAN, FakeActor, FakeLearner, make_trajectory, run_to_end
from hypothesis import given
from hypothesis import strategies as st
from plans import changed

from rollout.codec import decode_body, encode_body, encode_trajectories, name_trajectory
from rollout.coordinator.calls import results as results_module
from rollout.models.experts.families import ExpertShape
from rollout.models.experts.routes import find_wrong_routes
from rollout.protocol import messages as m
from rollout.types import ExpertRoutes, Prefix, Trajectory, VersionSpan

SHAPE = ExpertShape(layers=2, experts=4, top_k=2)
ROUTED = changed(PLAN, experts=SHAPE)
FORM = SHAPE.empty()
GOOD = replace(FORM, chosen=bytes((0, 1, 3, 2)) * 4)
"""Of a prompt of three tokens and a reply of two."""

WRONG = {
    "out of range": (replace(GOOD, chosen=GOOD.chosen[:-1] + b"\x04"), "expert 4: expected 0 to 3"),
    "of 255": (replace(GOOD, chosen=b"\xff\xfe" * 8), "name expert 255"),
    "twice": (replace(GOOD, chosen=GOOD.chosen[:-2] + b"\1\1"), "one expert twice"),
    "cut in a position": (replace(GOOD, chosen=GOOD.chosen[:-1]), "15 bytes: expected 16"),
    "a position too few": (replace(GOOD, chosen=GOOD.chosen[:-4]), "all 4 positions before"),
    "a position too many": (replace(GOOD, chosen=GOOD.chosen + b"\0\1\0\1"), "20 bytes"),
    "none": (replace(GOOD, chosen=b""), "0 bytes: expected 16"),
    "huge": (replace(GOOD, chosen=bytes(8 << 20)), "8388608 bytes: expected 16"),
    "of too many layers": (replace(GOOD, num_layers=4), "4 layers x 2 experts"),
    "of no layer": (replace(GOOD, num_layers=0), "0 layers x 2 experts"),
    "of less than no layer": (replace(GOOD, num_layers=-2, top_k=-2), "-2 layers"),
    "of too many experts": (replace(GOOD, top_k=2**63 - 1), "expected 2 x 2"),
    "wide": (replace(GOOD, wide=True, chosen=GOOD.chosen * 2), "2 bytes each: expected"),
}


def with_routes(task: m.Task, routes: ExpertRoutes | None) -> m.TaskResult:
    made = [make_trajectory(task, n, float(n % 2)) for n in range(task.num_samples)]
    told = made if routes is None else [replace(one, routes=routes) for one in made]
    return m.TaskResult(task_id=task.task_id, epoch=task.epoch, trajectories=tuple(told))


@pytest.fixture
def claimed(bench):
    def claim(plan):
        client = bench.start(plan)
        learner, actor = FakeLearner(client, bench.store), FakeActor(client)
        return actor, learner, actor.claim().tasks

    return claim


@pytest.mark.parametrize("kind", WRONG)
def test_what_does_not_fit_the_model_is_refused_and_a_good_result_is_taken_after_it(kind, claimed):
    actor, _, (task, other) = claimed(ROUTED)
    routes, reason = WRONG[kind]

    refused = actor.submit(with_routes(task, routes), with_routes(other, GOOD))

    assert refused.accepted == (False, True)
    assert refused.reasons[0].startswith("sample 0: ")
    assert reason in refused.reasons[0]
    assert actor.submit(with_routes(task, GOOD)).accepted == (True,)


def test_a_sample_that_tells_none_is_refused(claimed):
    actor, _, (task, _) = claimed(ROUTED)

    done = actor.submit(with_routes(task, None))

    assert not done.accepted[0]
    assert "its experts were not told" in done.reasons[0]


def test_a_model_that_has_none_is_told_of_none(claimed):
    actor, _, (task, _) = claimed(PLAN)

    done = actor.submit(with_routes(task, GOOD))

    assert not done.accepted[0]
    assert "expected none" in done.reasons[0]


def test_an_evaluation_tells_none(claimed):
    actor, _, tasks = claimed(replace(ROUTED, evaluations=(HELDOUT,)))
    task = next(one for one in tasks if one.kind == "eval")

    assert not actor.submit(with_routes(task, GOOD)).accepted[0]
    assert actor.submit(with_routes(task, None)).accepted[0]


@pytest.mark.parametrize("off_loop", [0, 1 << 30])
def test_routes_come_to_the_learner_as_they_were_told(off_loop, claimed, monkeypatch):
    monkeypatch.setattr(results_module, "OFF_LOOP_ROUTE_BYTES", off_loop)
    actor, learner, tasks = claimed(ROUTED)
    assert all(actor.submit(*[with_routes(task, GOOD) for task in tasks]).accepted)

    batch = learner.ask(wait=5.0)

    assert {one.routes for group in batch.groups for one in group.trajectories} == {GOOD}


def test_a_run_goes_to_its_end_and_its_ledger_keeps_them(bench):
    client = bench.start(ROUTED)
    learner, actor = FakeLearner(client, bench.store), FakeActor(client)
    actor.play = lambda task: with_routes(task, GOOD)

    run_to_end(actor, learner)

    with bench.reader() as ledger:
        assert {view.trajectory.routes for view in ledger.samples(1)} == {GOOD}


def prefix(task: m.Task, routes: ExpertRoutes, *token_ids: int) -> Prefix:
    version = task.version
    span = VersionSpan(start=0, end=len(token_ids), lineage=version.lineage, step=version.step)
    return Prefix(
        sample=0,
        segment=1,
        prompt_ids=(1, 2, 3),
        token_ids=token_ids,
        logprobs=(-0.1,) * len(token_ids),
        loss_mask=(1,) * len(token_ids),
        spans=(span,),
        routes=routes,
    )


def hand_back(actor: FakeActor, task: m.Task, *prefixes: Prefix) -> m.Submitted:
    failure = m.Failure(kind="returned", message="leaving")
    return actor.submit(
        m.TaskResult(task_id=task.task_id, epoch=task.epoch, failure=failure, prefixes=prefixes)
    )


FAST = changed(ROUTED, exact=False, staleness_max=1, steps_max=6)
BEGUN = replace(FORM, chosen=GOOD.chosen[:12])
"""Of a prompt of three tokens and one that was sampled."""


def test_beginnings_are_looked_at_too(claimed):
    actor, _, (task, *_) = claimed(FAST)

    bad = hand_back(actor, task, prefix(task, replace(BEGUN, chosen=b"\7" * 12), 5))

    assert not bad.accepted[0]
    assert "expert 7" in bad.reasons[0]
    assert hand_back(actor, task, prefix(task, BEGUN, 5)).accepted == (True,)


def test_a_sample_keeps_the_experts_that_it_began_with(claimed):
    actor, _, (task, *_) = claimed(FAST)
    assert hand_back(actor, task, prefix(task, BEGUN, 5)).accepted == (True,)
    again = next(one for one in actor.claim(held=()).tasks if one.task_id == task.task_id)
    assert again.prefixes[0].routes == BEGUN
    other = replace(GOOD, chosen=b"\2\0" + GOOD.chosen[2:])

    refused = actor.submit(gone_on(again, other))

    assert not refused.accepted[0]
    assert "other experts than its beginning" in refused.reasons[0]
    assert actor.submit(gone_on(again, GOOD)).accepted == (True,)


def gone_on(task: m.Task, routes: ExpertRoutes) -> m.TaskResult:
    """Samples of a task, the first of them behind its beginning."""
    result = with_routes(task, routes)
    first, *others = result.trajectories
    begun = task.prefixes[0].spans[0]
    rest = replace(begun, start=begun.end, end=begun.end + 1)
    return msgspec.structs.replace(
        result, trajectories=(replace(first, spans=(begun, rest)), *others)
    )


def plain(routes=None) -> Trajectory:
    made = Trajectory(
        ordinal=0,
        sample=1,
        prompt_ids=(5, 6, 7),
        token_ids=(8, 9),
        actor_logprobs=(-1.0, -1.0),
        loss_mask=(1, 1),
        spans=(),
        rewards={},
        reward=1.0,
        ending="stop",
    )
    return made if routes is None else replace(made, routes=routes)


@given(
    chosen=st.binary(max_size=40),
    layers=st.integers(-3, 2**63 - 1) | st.just(2),
    top_k=st.integers(-3, 2**63 - 1) | st.just(2),
    wide=st.booleans(),
)
def test_no_bytes_break_the_look_at_them(chosen, layers, top_k, wide):
    routes = ExpertRoutes(num_layers=layers, top_k=top_k, wide=wide, chosen=chosen)

    wrong = find_wrong_routes([plain(routes)], SHAPE)

    pairs = [chosen[i : i + 2] for i in range(0, len(chosen), 2)]
    fits = (layers, top_k, wide, len(chosen)) == (2, 2, False, 16)
    assert (wrong == "") == (fits and all(a != b and max(a, b) < 4 for a, b in pairs))


def test_a_model_of_more_experts_has_ids_of_two_bytes():
    many = ExpertShape(layers=1, experts=300, top_k=2)

    def told(*ids: int) -> ExpertRoutes:
        chosen = b"".join(one.to_bytes(2, "little") for one in ids * 4)
        return replace(many.empty(), chosen=chosen)

    assert find_wrong_routes([plain(told(299, 1))], many) == ""
    assert "expert 300" in find_wrong_routes([plain(told(300, 1))], many)
    assert "twice" in find_wrong_routes([plain(told(257, 257))], many)


def test_a_sample_without_routes_has_the_bytes_and_the_name_that_it_had():
    assert name_trajectory(plain()) == NAME
    assert b"routes" not in encode_trajectories([plain()])
    assert "routes" not in msgspec.msgpack.decode(encode_trajectories([plain()]))[0]


def test_a_sample_is_named_with_its_routes_and_read_again_with_them():
    other = replace(GOOD, chosen=GOOD.chosen[::-1])
    made = [plain(), plain(GOOD), plain(other), plain(replace(GOOD, wide=True))]

    assert len(set(map(name_trajectory, made))) == len(made)
    assert list(decode_body(encode_body(made))) == made


NAME = "blake3:cda102e107809e638f280606708928231b02987e19b213f0fbc281b0f551700b"
"""As a release without routes named it."""
