"""A learner that shares its device with engines that sleep: it computes while it is its turn, and waits while it is not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rollout.engines.device_turns import DeviceTurn
from rollout.errors import InfrastructureError
from rollout.learner.context import in_turn
from rollout.learner.loop import Watch, run_learner
from rollout.learner.model import exchange
from rollout.learner.model.parallel import Parallel


@pytest.fixture
def turn(tmp_path):
    return DeviceTurn(tmp_path / "turn", alone=True, seconds_max=0.0)


@pytest.fixture
def engines_turn(tmp_path):
    return DeviceTurn(tmp_path / "turn", alone=False, seconds_max=0.0)


def test_it_is_the_engines_turn_while_a_batch_is_waited_for_and_the_learners_until_the_commit(
    world, coordinator, turn, engines_turn
) -> None:
    calm, calls = coordinator(steps_max=3), coordinator(steps_max=3)
    replace(world, folder=world.folder / "calm").run(calm)
    batch, commit, seen = calls.batch, calls.commit, []

    def waits(ask):
        engines_turn.take()
        seen.append("sampled")
        engines_turn.give()
        return batch(ask)

    def commits(ask):
        assert turn.is_held
        with pytest.raises(TimeoutError):
            engines_turn.take()
        seen.append("committed")
        return commit(ask)

    calls.batch, calls.commit = waits, commits
    parts = replace(world.parts(calls), turn=turn)
    run_learner(parts, parts.session.start(1, "here"), Watch())

    assert seen == [*(("sampled", "committed") * 3), "sampled"]
    assert calls.records == calm.records
    assert not turn.is_held


def test_a_device_that_engines_keep_is_said(turn, engines_turn) -> None:
    engines_turn.take()
    with (
        pytest.raises(InfrastructureError, match="no turn on its device"),
        in_turn(turn, Parallel()),
    ):
        raise AssertionError("nobody computes")


def test_a_learner_that_fails_keeps_its_turn_until_its_process_ends(turn, engines_turn) -> None:
    with pytest.raises(ZeroDivisionError), in_turn(turn, Parallel()):
        raise ZeroDivisionError
    with pytest.raises(TimeoutError):
        engines_turn.take()


def test_ranks_tell_each_other_that_they_have_freed_what_they_had() -> None:
    assert exchange.decode(exchange.encode(None), type(None)) is None
