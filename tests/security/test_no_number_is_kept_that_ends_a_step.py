"""The attacker's wish: one sample whose numbers are accepted and end the step, and the run, that consumes it."""

import math
import sys
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

sys.path.append(str(Path(__file__).parents[1] / "rollout" / "coordinator"))

from coordinator_kit import Bench, FakeActor, FakeLearner

from rollout.types import Prefix

CHANGES = [
    ({"actor_logprobs": (math.nan, -0.1)}, r"actor_logprobs\[0\] is nan, not a finite"),
    ({"actor_logprobs": (-0.1, -math.inf)}, r"actor_logprobs\[1\] is -inf"),
    ({"actor_logprobs": (-0.1, 1e300)}, r"actor_logprobs\[1\] is 1e\+300"),
    ({"reward": 1e39}, "reward is not a finite number"),
    ({"rewards": {"a": math.inf}}, "reward is not a finite number"),
    ({"rewards": {str(n): 0.0 for n in range(1000)}}, "more than 256 rewards"),
    ({"timings": {"sample": math.nan}}, "a timing or a cost is not a finite number"),
    ({"token_ids": (-1, 2)}, "no token id"),
    ({"token_ids": (1, 2**40)}, "no token id"),
    ({"prompt_ids": (2**31,)}, "prompt_ids"),
    ({"loss_mask": (1, 7)}, "loss_mask holds other numbers"),
]


@pytest.fixture
def played(tmp_path):
    """A coordinator, an actor of it, and the results of two tasks."""
    bench = Bench(tmp_path)
    client = bench.start()
    FakeLearner(client, bench.store)
    actor = FakeActor(client)
    yield actor, [actor.play(task) for task in actor.claim(tasks_max=2).tasks]
    bench.close()


def broken(result, change):
    first, *others = result.trajectories
    made = (replace(first, **change), *others)
    return msgspec.structs.replace(result, trajectories=made)


@pytest.mark.parametrize(("change", "says"), CHANGES)
def test_an_actor_brings_numbers_that_no_learner_can_use(played, change, says):
    import re

    actor, (bad, good) = played
    answer = actor.submit(broken(bad, change), good)
    assert answer.accepted == (False, True), "the other result of the call stands on its own"
    assert re.search(f"sample 0: .*{says}", answer.reasons[0])
    assert actor.submit(bad).accepted == (True,), "an honest attempt of the task is still welcome"


@pytest.mark.parametrize(("change", "says"), [*CHANGES[:3], ({"ordinal": 2**63}, "ordinal")])
def test_a_result_of_nobodys_task_is_looked_at_like_any_other(played, change, says):
    actor, (result, _) = played
    stale = msgspec.structs.replace(broken(result, change), epoch=result.epoch + 7)
    answer = actor.submit(stale)
    assert answer.accepted == (False,)


def test_a_beginning_has_finite_numbers_too(played):
    from rollout.protocol import messages as m

    actor, (result, _) = played
    made = result.trajectories[0]
    prefix = Prefix(
        sample=0,
        segment=0,
        prompt_ids=made.prompt_ids,
        token_ids=made.token_ids,
        logprobs=(math.nan, -0.1),
        loss_mask=made.loss_mask,
        spans=made.spans,
    )
    failure = m.Failure(kind="returned", message="leaving")
    returned = m.TaskResult(
        task_id=result.task_id, epoch=result.epoch, failure=failure, prefixes=(prefix,)
    )
    answer = actor.submit(returned)
    assert answer.accepted == (False,)
    assert "beginning of sample 0: logprobs[0] is nan" in answer.reasons[0]
