"""forward_backward and optim_step against the learner's step on the same numbers: to 1e-6, for each loss."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from rollout.algorithms.grpo import GrpoSettings
from rollout.algorithms.surrogates.cispo import Cispo
from rollout.algorithms.surrogates.clip import Clipped
from rollout.learner.build import build_trainer
from rollout.learner.config.learner import LearnerSettings
from rollout.learner.config.optimizer import OptimizerSettings, ScheduleSettings
from rollout.learner.config.policy import PolicySettings
from rollout.learner.forward.packed_rows import SequenceTokens
from rollout.learner.model.adapter import LoraSettings
from rollout.learner.model.parallel import Parallel
from rollout.learner.objectives.plan import PlanRules, plan_step
from rollout.learner.objectives.policy import Place, PolicyWork
from rollout.learner.objectives.sft import SftWork
from rollout.learner.train_step import run_step
from rollout.service.calls import CallDatum, CallTensor, ForwardBackward, OptimStep
from rollout.service.training.trained import ALPHA, AdapterAsk, TrainedModel
from rollout.types import Trajectory, TrajectoryGroup, VersionSpan

CPU = torch.device("cpu")
RATE, CLIP_NORM, STEPS, SEED = 1e-3, 0.05, 3, 7
POLICY = PolicySettings(
    loss=GrpoSettings(),
    advantage_scale="Group",
    advantage_epsilon=1e-6,
    old_logprobs="Actor",
    temperature=1.0,
    width=8,
)
SETTINGS = LearnerSettings(
    algorithm=POLICY,
    # Not too small an epsilon: a gradient that is nothing but rounding must not become a whole step.
    optimizer=OptimizerSettings(
        kind="adamw", learning_rate=RATE, beta2=0.95, epsilon=1e-5, weight_decay=0.1
    ),
    schedule=ScheduleSettings(),
    max_grad_norm=CLIP_NORM,
    micro_batch_tokens=4096,
    activation_checkpointing=False,
    dtype="Float32",
    exact=True,
    hash_every_steps=1,
    anchor_every_steps=1,
    seed=SEED,
    spec_digest="",
    lora=LoraSettings(rank=4, alpha=ALPHA, targets=("Attention", "Mlp")),
)
OPTIM = OptimStep(
    learning_rate=RATE, beta2=0.95, eps=1e-5, weight_decay=0.1, grad_clip_norm=CLIP_NORM
)
SURROGATES = {
    "importance_sampling": Clipped(low=1e9, high=1e9),
    "ppo": Clipped(low=0.2, high=0.2),
    "cispo": Cispo(ratio_min=0.8, ratio_max=1.2),
}


def make_groups(step: int) -> list[TrajectoryGroup]:
    draw = np.random.default_rng(step)

    def trajectory(ordinal: int, sample: int, prompt: tuple[int, ...]) -> Trajectory:
        length = int(draw.integers(1, 8))
        return Trajectory(
            ordinal=ordinal,
            sample=sample,
            prompt_ids=prompt,
            token_ids=tuple(draw.integers(0, 250, length).tolist()),
            actor_logprobs=tuple((-5.5 + draw.random(length) * 0.6).tolist()),
            loss_mask=(1,) * length,
            spans=(VersionSpan(start=0, end=length, lineage=0, step=0),),
            rewards={"r": float(draw.random())},
            reward=float(draw.random()),
            ending="stop",
        )

    groups = []
    for ordinal in range(3):
        prompt = tuple(draw.integers(0, 250, int(draw.integers(1, 6))).tolist())
        members = tuple(trajectory(ordinal, sample, prompt) for sample in range(4))
        groups.append(TrajectoryGroup(ordinal=ordinal, trajectories=members))
    return groups


def as_datum(tokens, before: int, **inputs) -> CallDatum:
    """A sequence of which the first ``before`` tokens are given; ``inputs`` are of the others."""
    num = len(tokens) - 1
    zeros = [0.0] * (before - 1)
    tensors = {
        name: CallTensor("float32", (num,), np.array([*zeros, *values], "<f4").tobytes())
        for name, values in inputs.items()
    }
    targets = CallTensor("int64", (num,), np.array(tokens[1:], "<i8").tobytes())
    return CallDatum(
        tokens=np.array(tokens[:-1], "<i4").tobytes(),
        inputs=dict(sorted({"target_tokens": targets, **tensors}.items())),
    )


def as_call(
    loss: str, work: PolicyWork, groups: list[TrajectoryGroup], total: int | None = None
) -> ForwardBackward:
    """The same step as the protocol says it: the mean over all tokens, or by ``total``, is in the advantages."""
    total = total or sum(len(t.token_ids) for group in groups for t in group.trajectories)
    data = [
        as_datum(
            (*t.prompt_ids, *t.token_ids),
            len(t.prompt_ids),
            advantages=[advantage / total] * len(t.token_ids),
            logprobs=t.actor_logprobs,
        )
        for group, advantages in zip(groups, work.advantages, strict=True)
        for t, advantage in zip(group.trajectories, advantages, strict=True)
    ]
    return ForwardBackward(loss, {}, backward=True, data=tuple(data))


ADAPTER = AdapterAsk(rank=4, seed=SEED, targets=("Attention", "Mlp"))
KINDS = pytest.mark.parametrize(
    "ask", [pytest.param(ADAPTER, id="adapter"), pytest.param(None, id="all weights")]
)


def model_of(base, ask=ADAPTER) -> TrainedModel:
    return TrainedModel(base, ask)


def settings_of(ask, algorithm=POLICY) -> LearnerSettings:
    return replace(SETTINGS, algorithm=algorithm, lora=SETTINGS.lora if ask else None)


def largest_difference(trainer, model: TrainedModel) -> float:
    mine, theirs = model.weights(), trainer.policy.weights()
    assert mine.keys() == theirs.keys()
    return max(float((mine[name] - theirs[name]).abs().max()) for name in theirs)


def largest_move(trainer, base) -> float:
    return max(
        float((w - base.weights[n]).abs().max()) for n, w in trainer.policy.weights().items()
    )


@KINDS
@pytest.mark.parametrize("loss", list(SURROGATES))
def test_sampled_completions_move_the_model_as_the_learners_objective_does(tiny_base, loss, ask):
    policy = replace(POLICY, loss=GrpoSettings(surrogate=SURROGATES[loss]))
    trainer = build_trainer(tiny_base.folder, settings_of(ask, policy), Parallel())
    model = model_of(tiny_base, ask)
    for step in range(1, STEPS + 1):
        groups = make_groups(step)
        work = PolicyWork(groups, policy, Place(device=CPU), None)
        call = as_call(loss, work, groups)
        plan = plan_step(work.shapes(), PlanRules(tokens_max=4096), seed=1, step=step)
        theirs = run_step(trainer, work, plan, step)
        mine = model.forward_backward(call).metrics | model.optim_step(OPTIM).metrics
        assert mine["loss:sum"] == pytest.approx(theirs["policy_loss"], abs=1e-6)
        assert mine["gradient_norm:max"] == pytest.approx(theirs["gradient_norm"], rel=1e-5)
    assert largest_move(trainer, tiny_base) > 1e-4
    assert largest_difference(trainer, model) < 1e-6


@KINDS
def test_rows_move_the_model_as_sft_does(tiny_base, ask):
    trainer = build_trainer(tiny_base.folder, settings_of(ask), Parallel())
    model = model_of(tiny_base, ask)
    for step in range(1, STEPS + 1):
        draw = np.random.default_rng(step)
        rows = [tuple(draw.integers(0, 250, int(draw.integers(3, 12))).tolist()) for _ in range(6)]
        work = SftWork(
            [SequenceTokens(token_ids=r, scored=(0, *[1] * (len(r) - 1))) for r in rows], CPU
        )
        total = sum(len(row) - 1 for row in rows)
        data = [as_datum(row, 1, weights=[1 / total] * (len(row) - 1)) for row in rows]
        plan = plan_step(work.shapes(), PlanRules(tokens_max=4096), seed=1, step=step)
        theirs = run_step(trainer, work, plan, step)
        call = ForwardBackward("cross_entropy", {}, backward=True, data=tuple(data))
        mine = model.forward_backward(call).metrics | model.optim_step(OPTIM).metrics
        assert mine["loss:sum"] == pytest.approx(theirs["sft_loss"], abs=1e-6)
    assert largest_move(trainer, tiny_base) > 1e-4
    assert largest_difference(trainer, model) < 1e-6


def test_calls_add_up_to_the_gradient_of_one(tiny_base):
    draw = np.random.default_rng(1)
    rows = [tuple(draw.integers(0, 250, 9).tolist()) for _ in range(6)]
    data = tuple(as_datum(row, 1, weights=[0.1] * 8) for row in rows)
    whole, parts = model_of(tiny_base), model_of(tiny_base)
    whole.forward_backward(ForwardBackward("cross_entropy", {}, backward=True, data=data))
    for part in (data[:2], data[2:]):
        parts.forward_backward(ForwardBackward("cross_entropy", {}, backward=True, data=part))
        parts.forward_backward(ForwardBackward("cross_entropy", {}, backward=False, data=part))
    whole.optim_step(OPTIM)
    assert parts.optim_step(OPTIM).metrics["num_gathered:sum"] == 2
    mine, theirs = parts.weights(), whole.weights()
    assert max(float((mine[n] - theirs[n]).abs().max()) for n in theirs) < 1e-6


def test_gspo_moves_the_model_as_the_learners_objective_does(tiny_base):
    """The learner's aggregation SequenceSum divides by the number of sequences, the protocol's sum by nothing."""
    loss = GrpoSettings(
        surrogate=Clipped(low=3e-4, high=4e-4), ratio="Sequence", aggregation="SequenceSum"
    )
    policy = replace(POLICY, loss=loss)
    trainer = build_trainer(tiny_base.folder, settings_of(ADAPTER, policy), Parallel())
    model = model_of(tiny_base)
    for step in range(1, STEPS + 1):
        groups = make_groups(step)
        work = PolicyWork(groups, policy, Place(device=CPU), None)
        total = sum(len(group.trajectories) for group in groups)
        call = as_call("gspo", work, groups, total)
        plan = plan_step(work.shapes(), PlanRules(tokens_max=4096), seed=1, step=step)
        theirs = run_step(trainer, work, plan, step)
        mine = model.forward_backward(call).metrics | model.optim_step(OPTIM).metrics
        assert mine["loss:sum"] == pytest.approx(theirs["policy_loss"], abs=1e-6)
        assert mine["gradient_norm:max"] == pytest.approx(theirs["gradient_norm"], rel=1e-5)
    assert largest_move(trainer, tiny_base) > 1e-4
    assert largest_difference(trainer, model) < 1e-6


def test_dro_is_its_formula_in_plain_torch(tiny_base):
    draw = np.random.default_rng(3)
    rows = [tuple(draw.integers(0, 250, 9).tolist()) for _ in range(3)]
    inputs = [
        {"logprobs": -5.5 + draw.random(8), "advantages": draw.standard_normal(8)} for _ in rows
    ]
    data = tuple(as_datum(row, 1, **one) for row, one in zip(rows, inputs, strict=True))
    model, plain = model_of(tiny_base), model_of(tiny_base)
    said = model.forward_backward(
        ForwardBackward("dro", {"beta": 0.3}, backward=True, data=data)
    ).metrics
    network, total = plain._policy.model, torch.zeros(())
    for row, one in zip(rows, inputs, strict=True):
        logits = network(torch.tensor([row[:-1]]), use_cache=False).logits[0]
        logprobs = logits.log_softmax(-1)[torch.arange(8), torch.tensor(row[1:])]
        old, advantages = (torch.tensor(one[n]).float() for n in ("logprobs", "advantages"))
        total = total - (logprobs * advantages - 0.5 * 0.3 * (logprobs - old) ** 2).sum()
    total.backward()
    assert said["loss:sum"] == pytest.approx(float(total.detach()), abs=1e-5, rel=1e-6)
    for name, parameter in plain._policy.masters.items():
        assert torch.allclose(model._gradient[name], parameter.grad, atol=1e-6, rtol=1e-5), name
