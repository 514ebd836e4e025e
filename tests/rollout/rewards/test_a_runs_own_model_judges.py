"""A judge whose weights are on this machine: by likelihood, the same for an answer whatever else is judged."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from reward_runners import samples

from rollout.engines.judging import ModelJudge
from rollout.errors import DataError, SpecError, UnscoredRows
from rollout.models.resolve import resolve_model
from rollout.models.roles import INITIAL, REFERENCE, further_models, judge_role
from rollout.rendering import build_renderer
from rollout.rewards.build import build_reward_source
from rollout_api.v1alpha1.environment import Reward
from rollout_api.v1alpha1.run import RolloutRunSpec


@pytest.fixture(scope="module", autouse=True)
def _threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    uri = "rollout://tiny-qwen2?hidden=32&layers=2&heads=2&context=1024"
    return resolve_model(uri, cache_dir=tmp_path_factory.mktemp("models")).path


@pytest.fixture(scope="module")
def judge(folder):
    return ModelJudge(str(folder))


def said(judge, *texts):
    batch = samples(*texts)
    return judge.score(batch.prompts, batch.completions, batch.rows)


def test_a_score_is_of_its_answer_alone_to_the_last_bit(judge, folder):
    together = said(judge, "4", "five", "4")
    assert together == [*said(judge, "4"), *said(ModelJudge(str(folder)), "five", "4")]
    assert all(0 <= one["score"] <= 1 and one["cost/tokens"] > 10 for one in together)
    assert together[0]["score"] != together[1]["score"]


def test_pairs_share_what_there_is_to_win(folder):
    found = said(ModelJudge(str(folder), per_group="true"), "4", "five", "six", "4")
    assert sum(one["score"] for one in found) == pytest.approx(2.0)
    assert found[0] == found[3]


def test_what_is_not_through_in_time_is_lost_and_no_reward(folder):
    with pytest.raises(UnscoredRows) as caught:
        said(ModelJudge(str(folder), deadline_seconds="-1"), "a", "b")
    assert caught.value.rows == (0, 1)


def test_an_answer_beyond_the_judges_context_is_named(judge):
    with pytest.raises(ValueError, match="its context holds 1024; lower"):
        said(judge, "x" * 20_000)


def test_a_model_that_has_no_letters_cannot_judge(folder, monkeypatch):
    renderer = build_renderer(folder)

    def encode(text):
        if text.isalpha():
            raise DataError(f"cannot encode {text!r}")
        return (1,)

    digits = SimpleNamespace(tokenizer=SimpleNamespace(encode=encode), render_prompt=renderer)
    monkeypatch.setattr("rollout.engines.judging.build_renderer", lambda _: digits)
    with pytest.raises(SpecError, match="cannot judge, it has no token for 'A'"):
        ModelJudge(str(folder))


def test_it_is_the_reference_or_the_model_before_training_unless_another_is_named(folder):
    own = Reward.model_validate({"judge": {}})
    named = Reward.model_validate({"judge": {"model": {"uri": "hf://o/j"}}, "name": "j"})
    other = folder.parent

    def path(reward, models):
        return build_reward_source(reward, models=models).parameters["path"]

    assert path(own, {INITIAL: folder}) == str(folder)
    assert path(own, {INITIAL: folder, REFERENCE: other}) == str(other)
    assert path(named, {INITIAL: folder, judge_role("j"): other}) == str(other)
    with pytest.raises(SpecError, match="its model is not there"):
        path(named, {INITIAL: folder})


def test_another_runs_model_is_waited_for_by_its_role():
    judge = {"judge": {"model": {"fromRun": {"name": "critic"}}}}
    spec = RolloutRunSpec.model_validate(
        {
            "model": {"uri": "rollout://tiny-adder"},
            "train": {"algorithm": {"grpo": {}}, "rewards": [judge], "maxSteps": 1},
        }
    )
    (found,) = further_models(spec)
    assert (found.role, found.field) == ("judge/judge", "spec.train.rewards[0].judge.model")
