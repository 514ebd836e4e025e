"""The reward ``judge`` over a server of the test's, and what it says of some answers to one question."""

from __future__ import annotations

from rollout.rewards.build import build_reward_source
from rollout.rewards.calls import RewardBatch
from rollout.rewards.pipeline import RewardPipeline
from rollout.types import Completion, Message
from rollout_api.v1alpha1.environment import Reward


def completion(text):
    return Completion(token_ids=(1,), logprobs=(0.0,), finish="stop", text=text)


def judge(server, timeout_seconds=60, beside=None, **parameters):
    given = {"url": server.url, "model": "m", **parameters}
    listed = [{"name": name, "value": str(value)} for name, value in given.items()]
    item = {"builtin": {"name": "judge", "parameters": listed}, "timeoutSeconds": timeout_seconds}
    item |= beside or {}
    return RewardPipeline([build_reward_source(Reward.model_validate(item))])


def verdicts(pipeline, texts, groups=None):
    prompts = [(Message(role="user", content="2+2?"),)] * len(texts)
    answers, rows = [completion(one) for one in texts], [{"answer": "4"}] * len(texts)
    return pipeline.judge(
        RewardBatch(prompts=prompts, completions=answers, rows=rows, groups=groups)
    )


def score(pipeline, texts):
    return [one.total for one in verdicts(pipeline, texts)]
