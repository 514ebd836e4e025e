"""A sample's own prompt, and the end tokens that it could not take: the learner scores what was sampled."""

from __future__ import annotations

import asyncio
import shutil
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import Qwen2Config, Qwen2ForCausalLM

from rollout.algorithms.grpo import GrpoSettings
from rollout.engines.embedded.engine import EmbeddedEngine
from rollout.learner.config.policy import PolicySettings
from rollout.learner.config.sampled import EndBar
from rollout.learner.forward.packed_rows import prepare_model
from rollout.learner.objectives.plan import PlanRules, plan_step
from rollout.learner.objectives.policy import Place, PolicyWork
from rollout.models.resolve import resolve_model
from rollout.rendering.tokenizer import TOKENIZER_FILE
from rollout.types import (
    GenerateRequest,
    SamplingParams,
    Trajectory,
    TrajectoryGroup,
    WeightVersion,
)
from rollout.weights.digest import digest_tensors, save_weights
from rollout.weights.verify import plain_logprobs

STOPS = (7, 9, 11, 13)


def build_model():
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=32,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
    )
    model = Qwen2ForCausalLM(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0, 0.2)
    prepare_model(model)
    return model


def trajectory(sample, prompt, tokens, logprobs=None, mask=None):
    return Trajectory(
        ordinal=0,
        sample=sample,
        prompt_ids=prompt,
        token_ids=tokens,
        actor_logprobs=logprobs or (0.0,) * len(tokens),
        loss_mask=mask or (1,) * len(tokens),
        spans=(),
        rewards={},
        reward=float(sample),
        ending="stop",
    )


SETTINGS = PolicySettings(
    loss=GrpoSettings(),
    old_logprobs="Learner",
    temperature=1.0,
    width=8,
    advantage_scale="Group",
    advantage_epsilon=1e-6,
)


def learner_part(model, trajectories, chosen=SETTINGS, tokens_max=4096):
    group = TrajectoryGroup(ordinal=0, trajectories=tuple(trajectories))
    work = PolicyWork([group], chosen, Place(device=torch.device("cpu")), None)
    plan = plan_step(work.shapes(), PlanRules(tokens_max=tokens_max), seed=0, step=1)
    found = {}
    for micro in plan.updates[0].ranks[0]:
        part = work.micro_loss(model, micro, work.denominators(plan.updates[0]))
        samples = [sample for chunk in micro.chunks for sample in chunk.samples]
        logprobs = part.tokens.logprobs_C.split(part.tokens.lengths)
        entropy = part.tokens.entropy_C.split(part.tokens.lengths)
        found |= dict(zip(samples, zip(logprobs, entropy, strict=True), strict=True))
        if micro.learns:
            part.loss.backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())
    return [found[sample] for sample in range(len(trajectories))]


@pytest.mark.parametrize("tokens_max", [4096, 12, 0])
@pytest.mark.parametrize("order", [(0, 1, 2), (0, 0, 1), (0, 1, 0)])
def test_samples_of_one_group_may_each_have_their_own_prompt(order, tokens_max):
    model = build_model()
    prompts = ((5, 6, 7, 8), (9, 10, 11), (12,))
    answers = ((20, 21, 2), (20, 22, 23, 24, 2), (21, 2))

    found = learner_part(
        model,
        [trajectory(i, prompts[p], answers[i]) for i, p in enumerate(order)],
        tokens_max=tokens_max,
    )

    for i, p in enumerate(order):
        [wanted] = plain_logprobs(model, prompts[p], [answers[i]])
        assert found[i][0].tolist() == pytest.approx(wanted, abs=5e-6)


def test_end_tokens_are_barred_from_the_first_tokens_of_every_reply():
    model = build_model()
    mask = (1, 1, 1, 0, 0, 1, 1, 1)
    tokens = (20, 21, 22, 5, 6, 23, 24, 7)
    barred = replace(SETTINGS, end_bar=EndBar(num_tokens=2, token_ids=STOPS))

    with_bar = learner_part(
        model, [trajectory(i, (3, 4), tokens, mask=mask) for i in range(2)], barred
    )
    without = learner_part(model, [trajectory(i, (3, 4), tokens, mask=mask) for i in range(2)])

    differs = (with_bar[0][0] - without[0][0]).abs() > 1e-6
    assert differs.tolist() == [True, True, False, False, False, True, True, False]


SAMPLINGS = st.builds(
    SamplingParams,
    max_new_tokens=st.integers(1, 10),
    temperature=st.sampled_from([0.3, 0.7, 1.0, 1.7]),
    min_new_tokens=st.integers(0, 12),
    stop_token_ids=st.sampled_from([(), (7,), STOPS, (*STOPS, 99)]),
    stop=st.lists(
        st.text(alphabet="".join(map(chr, range(ord("!"), ord("A")))), min_size=1, max_size=2),
        max_size=8,
        unique=True,
    ).map(tuple),
    include_stop=st.booleans(),
)


@given(sampling=SAMPLINGS, seed=st.integers(0, 99))
@settings(max_examples=15)
def test_at_equal_weights_actor_and_learner_agree_however_is_sampled(engine, sampling, seed):
    model, actor = engine
    request = GenerateRequest(prompt_ids=(3, 4, 5), seeds=(seed, seed + 100), sampling=sampling)

    [group] = asyncio.run(actor.generate([request]))

    assert len(group[0].token_ids) > min(sampling.min_new_tokens, sampling.max_new_tokens - 1)
    least = sampling.min_new_tokens
    chosen = replace(
        SETTINGS,
        temperature=sampling.temperature,
        end_bar=EndBar(num_tokens=least, token_ids=sampling.stop_token_ids) if least else None,
    )
    trajectories = [
        trajectory(i, request.prompt_ids, one.token_ids, one.logprobs)
        for i, one in enumerate(group)
    ]
    for one, (logprobs, entropy) in zip(
        group, learner_part(model, trajectories, chosen), strict=True
    ):
        assert logprobs.tolist() == pytest.approx(one.logprobs, abs=1e-5)
        assert entropy.isfinite().all()


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    model, folder = build_model(), tmp_path_factory.mktemp("model")
    model.config.save_pretrained(folder)
    tokenizer = resolve_model("rollout://tiny-qwen2", cache_dir=tmp_path_factory.mktemp("cache"))
    shutil.copy(tokenizer.path / TOKENIZER_FILE, folder)
    save_weights(model.state_dict(), folder / "w.safetensors")
    digest = digest_tensors(model.state_dict())
    actor = EmbeddedEngine(folder, exact=True)
    version = WeightVersion(lineage=0, step=1, digest=digest, object=digest)

    async def bring_up():
        await actor.start()
        await actor.load(version, folder / "w.safetensors")

    asyncio.run(bring_up())
    return model, actor
