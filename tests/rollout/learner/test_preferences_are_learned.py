"""Every algorithm on preferences learns a small one, measured on pairs it never saw; turned round, it does not.

The preference: after any prompt of three tokens, an answer from the lower half of the vocabulary is
better than one from the upper half. Held-out pairs have other prompts. Run with ``-s`` for the figures.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from rollout.algorithms.preference.dpo import DpoSettings
from rollout.algorithms.preference.ipo import IpoSettings
from rollout.algorithms.preference.kto import KtoSettings
from rollout.algorithms.preference.orpo import OrpoSettings
from rollout.algorithms.preference.simpo import SimpoSettings
from rollout.learner.build import build_reference, build_trainer
from rollout.learner.config.optimizer import OptimizerSettings
from rollout.learner.config.preference import LabelSettings, PairSettings, RewardSettings
from rollout.learner.model.parallel import Parallel
from rollout.learner.objectives.contract import Totals
from rollout.learner.objectives.metrics import describe_losses
from rollout.learner.objectives.plan import PlanRules, plan_step
from rollout.learner.objectives.preference.data import LabelledTokens, PairTokens
from rollout.learner.objectives.preference.kto import KtoWork
from rollout.learner.objectives.preference.pairs import PairWork
from rollout.learner.objectives.preference.reward import RewardWork
from rollout.learner.train_step import run_step

CPU = torch.device("cpu")
STEPS, BATCH = 25, 16
END = 250
RULES = PlanRules(tokens_max=4096)
DPO = PairSettings(loss=DpoSettings(beta=0.5), max_length=32)


def pair_losses(loss) -> PairSettings:
    return PairSettings(loss=loss, max_length=32)


ALGORITHMS = {
    "dpo": DPO,
    "conservative": pair_losses(DpoSettings(beta=0.5, form="Conservative", label_smoothing=0.1)),
    "robust": pair_losses(DpoSettings(beta=0.5, form="Robust", label_smoothing=0.1)),
    "hinge": pair_losses(DpoSettings(beta=0.5, form="Hinge")),
    "ipo": pair_losses(IpoSettings(beta=0.5)),
    "ipo-sum": pair_losses(IpoSettings(beta=0.5, aggregation="SequenceSum")),
    "orpo": pair_losses(OrpoSettings(beta=1.0)),
    "simpo": pair_losses(SimpoSettings()),
    "kto": LabelSettings(loss=KtoSettings(beta=0.5), max_length=32),
    "rm": RewardSettings(max_length=32, seed=1),
}
FAST = ("dpo", "kto", "rm")
EVERY = [
    name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in ALGORITHMS
]


def make_pairs(seed: int, count: int) -> list[PairTokens]:
    draw = random.Random(seed)

    def answer(low: int) -> tuple[int, ...]:
        return (*(draw.randrange(low, low + 100) for _ in range(draw.randint(1, 3))), END)

    return [
        PairTokens(
            prompt_ids=tuple(draw.randrange(200) for _ in range(3)),
            chosen_ids=answer(0),
            rejected_ids=answer(100),
        )
        for _ in range(count)
    ]


def swap(pair: PairTokens) -> PairTokens:
    return replace(pair, chosen_ids=pair.rejected_ids, rejected_ids=pair.chosen_ids)


def labelled(pairs: list[PairTokens]) -> list[LabelledTokens]:
    """One answer of each pair, good and bad in turn."""
    return [
        LabelledTokens(
            prompt_ids=pair.prompt_ids,
            answer_ids=pair.rejected_ids if i % 2 else pair.chosen_ids,
            desirable=not i % 2,
        )
        for i, pair in enumerate(pairs)
    ]


class Flipped:
    """A work whose loss is climbed, not descended."""

    def __init__(self, work) -> None:
        self._work = work

    def __getattr__(self, name):
        return getattr(self._work, name)

    def micro_loss(self, model, micro, whole):
        part = self._work.micro_loss(model, micro, whole)
        return replace(part, loss=-part.loss)


@pytest.fixture
def learn(model_path, settings):
    """Held-out preference accuracy before and after a few steps of an algorithm on ``alter``ed pairs."""

    def run(name: str, alter: Callable = lambda pair: pair, wrap: Callable = lambda work: work):
        algorithm = ALGORITHMS[name]
        optimizer = OptimizerSettings(kind="adamw", learning_rate=2e-3)
        chosen = replace(settings, algorithm=algorithm, optimizer=optimizer)
        trainer = build_trainer(model_path, chosen, Parallel())
        reference = build_reference(model_path, chosen, Parallel())

        def make(pairs: list[PairTokens]):
            if isinstance(algorithm, RewardSettings):
                return RewardWork(pairs, algorithm, CPU)
            if isinstance(algorithm, LabelSettings):
                return KtoWork(labelled(pairs), algorithm, Parallel(), reference)
            return PairWork(pairs, algorithm, CPU, reference)

        held_out = make_pairs(999, 100)
        judge = make if name != "kto" else lambda pairs: PairWork(pairs, DPO, CPU, reference)
        count = 2 * BATCH if name == "kto" else BATCH  # as many answers: a row of KTO has one
        before = accuracy(trainer.policy.model, judge(held_out))
        for step in range(1, STEPS + 1):
            work = wrap(make([alter(pair) for pair in make_pairs(step, count)]))
            run_step(trainer, work, plan_step(work.shapes(), RULES, seed=1, step=step), step)
        after = accuracy(trainer.policy.model, judge(held_out))
        print(f"{name}: {before:.2f} -> {after:.2f}")
        return before, after

    return run


def accuracy(model, work) -> float:
    update = plan_step(work.shapes(), RULES, seed=1, step=1).updates[0]
    totals = Totals()
    work.prepare(model, [update.ranks[0]])
    with torch.no_grad():
        for micro in update.ranks[0]:
            totals.add(work.micro_loss(model, micro, work.denominators(update)))
    return describe_losses(*totals.local(), 1)["preference_accuracy"]


@pytest.mark.parametrize("name", EVERY)
def test_held_out_preference_accuracy_rises(learn, name) -> None:
    before, after = learn(name)
    assert before < 0.75
    assert after > 0.95


@pytest.mark.parametrize("name", EVERY)
def test_with_answers_swapped_it_learns_the_opposite(learn, name) -> None:
    _, after = learn(name, alter=swap)
    assert after < 0.25


@pytest.mark.parametrize("name", EVERY)
def test_with_the_sign_flipped_it_does_not_learn(learn, name) -> None:
    _, after = learn(name, wrap=Flipped)
    assert after < 0.5
