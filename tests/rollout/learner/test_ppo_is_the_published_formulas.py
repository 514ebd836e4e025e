"""A whole step of PPO against verl 0.9.1's formulas, written out on padded tensors of plain forwards.

Of verl: ``compute_gae_advantage_return`` with ``masked_whiten``, the KL penalty in token-level rewards,
the vanilla policy loss and ``compute_value_loss``; token mean. Axes: B completions, T tokens.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from rollout.algorithms.ppo import ValueSettings
from rollout.learner.build import build_reference, build_trainer
from rollout.learner.model.parallel import Parallel
from rollout.learner.objectives.completions import places_of
from rollout.learner.objectives.contract import Totals
from rollout.learner.objectives.plan import PlanRules, plan_step
from rollout.learner.objectives.ppo import Helpers, PpoWork
from rollout.learner.train_step import accumulate_gradients

BETA, GAMMA, LAMBDA, CLIP, VALUE_CLIP = 0.05, 0.97, 0.9, 0.2, 0.1


def masked_whiten(values, mask):
    mean = (values * mask).sum() / mask.sum()
    centred = ((values - mean) ** 2 * mask).sum() / mask.sum()
    variance = centred * mask.sum() / (mask.sum() - 1)
    return (values - mean) * torch.rsqrt(variance + 1e-8)


def compute_gae(rewards_BT, values_BT, mask_BT):
    following, last, found = 0, 0, []
    for t in reversed(range(rewards_BT.shape[1])):
        delta = rewards_BT[:, t] + GAMMA * following - values_BT[:, t]
        new = delta + GAMMA * LAMBDA * last
        following = values_BT[:, t] * mask_BT[:, t] + (1 - mask_BT[:, t]) * following
        last = new * mask_BT[:, t] + (1 - mask_BT[:, t]) * last
        found.append(last)
    advantages_BT = torch.stack(found[::-1], dim=1)
    return masked_whiten(advantages_BT, mask_BT), advantages_BT + values_BT


class Padded:
    """Completions side by side, and what a policy, a reference and a critic say of their tokens."""

    def __init__(self, trajectories) -> None:
        self.trajectories = trajectories
        self.width = max(len(t.token_ids) for t in trajectories)
        self.mask_BT = self._fill([t.loss_mask for t in trajectories])
        self.rewards_BT = torch.zeros_like(self.mask_BT)
        for row, t in enumerate(trajectories):
            last = max(i for i, m in enumerate(t.loss_mask) if m)
            self.rewards_BT[row, last] = t.reward

    def _fill(self, rows):
        return torch.tensor([[*map(float, r), *[0.0] * (self.width - len(r))] for r in rows])

    def _rows(self, one):
        rows = [one(t) for t in self.trajectories]
        return torch.stack([torch.nn.functional.pad(r, (0, self.width - len(r))) for r in rows])

    def logprobs(self, model):
        def one(t):
            ids = torch.tensor([[*t.prompt_ids, *t.token_ids]])
            logp = torch.log_softmax(model(input_ids=ids, use_cache=False).logits[0].float(), -1)
            places = torch.arange(len(t.token_ids)) + len(t.prompt_ids) - 1
            return logp[places, torch.tensor(t.token_ids)]

        return self._rows(one)

    def values(self, critic):
        def one(t):
            ids = torch.tensor([[*t.prompt_ids, *t.token_ids]])
            hidden = critic.decoder(input_ids=ids, use_cache=False).last_hidden_state[0]
            first = len(t.prompt_ids) - 1
            return critic.head(hidden[first : first + len(t.token_ids)])[:, 0]

        return self._rows(one)

    def mean(self, values_BT):
        return (values_BT * self.mask_BT).sum() / self.mask_BT.sum()


def policy_loss(new_BT, old_BT, advantages_BT):
    ratio = (new_BT - old_BT).clamp(-20, 20).exp()
    return torch.maximum(-advantages_BT * ratio, -advantages_BT * ratio.clamp(1 - CLIP, 1 + CLIP))


def value_loss(new_BT, old_BT, returns_BT):
    clipped = torch.clamp(new_BT, old_BT - VALUE_CLIP, old_BT + VALUE_CLIP)
    return 0.5 * torch.maximum((new_BT - returns_BT) ** 2, (clipped - returns_BT) ** 2)


def with_a_tool(group):
    """The second token of every longer completion is a tool's."""

    def one(t):
        tool = len(t.token_ids) > 2
        return replace(
            t, loss_mask=tuple(int(not (tool and i == 1)) for i in range(len(t.token_ids)))
        )

    return replace(group, trajectories=tuple(map(one, group.trajectories)))


@pytest.fixture
def case(model_path, settings, ppo_settings, groups_of):
    """A trainer whose policy has left its reference, the work of some groups, and both moved once more."""
    algorithm = replace(
        ppo_settings,
        returns=replace(ppo_settings.returns, gamma=GAMMA, gae_lambda=LAMBDA),
        value=ValueSettings(clip=VALUE_CLIP),
    )
    trainer = build_trainer(model_path, replace(settings, algorithm=algorithm), Parallel())
    reference = build_reference(model_path, trainer.settings, Parallel())
    groups = tuple(map(with_a_tool, groups_of(4)))
    draw = torch.Generator().manual_seed(2)

    def move(size: float) -> None:
        with torch.no_grad():
            for held in (trainer.policy, trainer.critic.held):
                for master in held.masters.values():
                    master.add_(size * torch.randn(master.shape, generator=draw))

    return trainer, reference, groups, algorithm, move


def test_losses_and_gradients_are_verls(case) -> None:
    trainer, reference, groups, algorithm, move = case
    model, critic = trainer.policy.model, trainer.critic.model
    helpers = Helpers(critic=critic, reference=reference, parallel=Parallel())
    work = PpoWork(groups, replace(algorithm, epochs=1), helpers, BETA)
    plan = plan_step(work.shapes(), PlanRules(tokens_max=4096), seed=1, step=1)
    update = plan.updates[0]
    padded = Padded([t for g in groups for t in g.trajectories])
    move(0.02)
    with torch.no_grad():
        old_BT, values_BT = padded.logprobs(model), padded.values(critic)
        penalty_BT = BETA * (old_BT - padded.logprobs(reference)) * padded.mask_BT
    advantages_BT, returns_BT = compute_gae(
        padded.rewards_BT - penalty_BT, values_BT, padded.mask_BT
    )
    work.prepare(model, [update.ranks[0]])
    move(0.02)

    totals = Totals()
    trainer.policy.zero_gradients()
    accumulate_gradients(trainer, work, update, totals)
    ours = [
        torch.cat([p.grad.flatten().clone() for p in held.masters.values()])
        for held in (trainer.policy, trainer.critic.held)
    ]
    for held in (trainer.policy, trainer.critic.held):
        held.zero_gradients()
    found_policy = padded.mean(policy_loss(padded.logprobs(model), old_BT, advantages_BT))
    found_value = padded.mean(value_loss(padded.values(critic), values_BT, returns_BT))
    (found_policy + found_value).backward()
    theirs = [
        torch.cat([p.grad.flatten() for p in held.masters.values()])
        for held in (trainer.policy, trainer.critic.held)
    ]

    sums = totals.local()[0]
    assert sums["policy_loss"] == pytest.approx(found_policy.item(), rel=1e-5)
    assert sums["value_loss"] == pytest.approx(found_value.item(), rel=1e-5)
    assert sums["value_clipped"] > 0
    assert sums["clipped_low"] + sums["clipped_high"] > 0
    for mine, reference_gradient in zip(ours, theirs, strict=True):
        assert float((mine - reference_gradient).norm() / reference_gradient.norm()) < 2e-5


def test_every_sample_is_scored_once_whatever_the_epochs(case) -> None:
    trainer, reference, groups, algorithm, _ = case
    calls: list[int] = []
    critic = trainer.critic.model
    critic.register_forward_hook(lambda *_: calls.append(1))
    helpers = Helpers(critic=critic, reference=reference, parallel=Parallel())
    work = PpoWork(groups, replace(algorithm, epochs=3), helpers, BETA)
    rules = PlanRules(tokens_max=4096, epochs=3, mini_batches=2)
    plan = plan_step(work.shapes(), rules, seed=1, step=1)
    work.prepare(trainer.policy.model, [update.ranks[0] for update in plan.updates])
    first_epoch = [micro for update in plan.updates[:2] for micro in update.ranks[0]]
    assert len(calls) == len(first_epoch)
    scored = sorted(sample for micro in first_epoch for sample in places_of(micro))
    assert scored == sorted(work.estimates.before)
    assert len(scored) == 16
