"""A reward model named under ``rewards``: found by its role, loaded in a process of its own, checked."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from rollout.errors import RewardError, SpecError
from rollout.learner.model.reward_source import ModelReward
from rollout.learner.model.scorer import load_scorer
from rollout.models.resolve import resolve_model
from rollout.models.roles import FurtherModel, further_models, reward_role
from rollout.models.scoring import write_score_config
from rollout.rendering import build_renderer
from rollout.rendering.tokenizer import load_tokenizer
from rollout.rewards.build import build_rewards
from rollout.runs.pipeline import materialise_model
from rollout.types import Completion, Message
from rollout_api.checks.together import check_together
from rollout_api.fields.model_sources import needed_runs
from rollout_api.v1alpha1.common import ModelSource
from rollout_api.v1alpha1.environment import Reward
from rollout_api.v1alpha1.run import RolloutRunSpec

REWARD = Reward.model_validate({"model": {"fromRun": {"name": "judge"}}, "name": "judge"})


@pytest.fixture(scope="module")
def causal(tmp_path_factory) -> Path:
    uri = "rollout://tiny-qwen2?hidden=32&layers=2&heads=2&context=64"
    return resolve_model(uri, cache_dir=tmp_path_factory.mktemp("models")).path


@pytest.fixture(scope="module")
def judge(causal, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("judge") / "model"
    shutil.copytree(causal, folder)
    tensors = {n: p.detach().clone() for n, p in load_scorer(causal, 5).named_parameters()}
    save_file(tensors, folder / "model.safetensors")
    write_score_config(folder, load_tokenizer(folder).pad_id)
    return folder


def asked(text: str) -> tuple[Message, ...]:
    return (Message(role="user", content=text),)


def said(text: str) -> Completion:
    return Completion(token_ids=(1,), logprobs=(0.0,), finish="stop", text=text)


def test_scores_are_those_of_transformers_and_of_no_neighbour(judge) -> None:
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    threads = torch.get_num_threads()
    reward = ModelReward(str(judge))
    torch.set_num_threads(threads)
    prompts = [asked("1+1="), asked("1+1="), asked("2+2=")]
    answers = ["2", "3", "4!"]
    scores = reward.score(prompts, [said(text) for text in answers], [{}] * 3)

    model = AutoModelForSequenceClassification.from_pretrained(judge)
    tokenizer = AutoTokenizer.from_pretrained(judge)
    for score, prompt, answer in zip(scores, prompts, answers, strict=True):
        ids = reward._renderer.render_training(
            (*prompt, Message(role="assistant", content=answer))
        )[0]
        theirs = model(input_ids=torch.tensor([ids])).logits[0, 0].detach()
        assert score == pytest.approx(float(theirs), rel=1e-5, abs=1e-6)
        assert answer in tokenizer.decode(ids)
    alone = reward.score(prompts[2:], [said(answers[2])], [{}])
    assert alone == [scores[2]]


@pytest.mark.parametrize("template", ["plain", "{{ messages[0].content }}::"])
def test_a_reward_model_renders_as_the_run_that_trained_it(judge, tmp_path, template) -> None:
    threads = torch.get_num_threads()
    carried = materialise_model(
        config_path=judge,
        weights=judge / "model.safetensors",
        target=tmp_path / "carried",
        chat_template=template,
    )
    asks = [asked("1+1=")], [said("2")], [{}]
    if template == "plain":
        wanted = ModelReward(str(judge), template).score(*asks)
        assert ModelReward(str(carried)).score(*asks) == wanted
        assert wanted != ModelReward(str(judge)).score(*asks)
    asking = [Message(role="user", content="1+1=")]
    by_hand = build_renderer(judge, template).render_prompt(asking)
    assert build_renderer(carried).render_prompt(asking) == by_hand
    torch.set_num_threads(threads)


def test_an_answer_beyond_the_context_is_told(judge) -> None:
    with pytest.raises(ValueError, match=r"context holds 64; lower sampling\.maxNewTokens"):
        ModelReward(str(judge)).score([asked("x")], [said("a" * 80)], [{}])


@pytest.mark.process
def test_a_pipeline_scores_with_a_model_in_a_child(judge) -> None:
    pipeline = build_rewards([REWARD], models={reward_role("judge"): judge})
    try:
        [(total, parts)] = pipeline.score([asked("1+1=")], [said("2")], [{"prompt": "1+1="}])
    finally:
        pipeline.close()
    assert parts == {"judge": total}
    assert total == pytest.approx(
        ModelReward(str(judge)).score([asked("1+1=")], [said("2")], [{}])[0]
    )


@pytest.mark.process
def test_a_model_without_a_head_is_named_before_anything_is_scored(causal) -> None:
    pipeline = build_rewards([REWARD], models={reward_role("judge"): causal})
    try:
        with pytest.raises((SpecError, RewardError), match=r"no reward model.*score\.weight"):
            pipeline.start()
    finally:
        pipeline.close()


def test_a_model_that_is_not_there_is_named() -> None:
    with pytest.raises(SpecError, match="reward judge: its model is not there"):
        build_rewards([REWARD])


TRAIN = {
    "algorithm": {"grpo": {"klCoefficient": "0.1"}},
    "reference": {"uri": "hf://a/reference"},
    "rewards": [
        {"builtin": {"name": "exact-match"}},
        {"model": {"fromRun": {"name": "judge"}}, "name": "judge"},
    ],
    "maxSteps": 3,
}


def test_every_further_model_has_a_role_and_a_field() -> None:
    spec = RolloutRunSpec.model_validate({"model": {"uri": "hf://a/b"}, "train": TRAIN})
    assert further_models(spec) == (
        FurtherModel(
            role="reference",
            field="spec.train.reference",
            source=ModelSource(uri="hf://a/reference"),
        ),
        FurtherModel(
            role="reward/judge",
            field="spec.train.rewards[1].model",
            source=ModelSource.model_validate({"fromRun": {"name": "judge"}}),
        ),
    )


def document(name: str, model: str | None, judge: str | None = None) -> dict:
    source = {"fromRun": {"name": model}} if model else {"uri": "hf://a/b"}
    rewards = [{"model": {"fromRun": {"name": judge}}}] if judge else []
    return {
        "kind": "RolloutRun",
        "metadata": {"name": name},
        "spec": {"model": source, "train": {"rewards": rewards}},
    }


def test_a_run_needs_the_runs_of_its_rewards_too() -> None:
    assert needed_runs(document("rl", "sft", "judge")) == ("sft", "judge")
    assert needed_runs(document("rl", "sft", "sft")) == ("sft",)


def test_a_circle_through_a_reward_is_told() -> None:
    judge, policy = document("judge", "rl"), document("rl", None, "judge")
    found = check_together([document("sft", None), judge, policy])
    assert [problem.reason for _, problem in found] == ["Cycle"]
    assert (
        check_together(
            [document("sft", None), document("judge", "sft"), document("rl", "sft", "judge")]
        )
        == []
    )
