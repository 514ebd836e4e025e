"""Works on preferences: micro-batches change memory, never the gradient; logprobs are the plain ones."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch

from rollout.algorithms.aggregation import Denominators
from rollout.algorithms.preference.dpo import DpoSettings
from rollout.algorithms.preference.ipo import IpoSettings
from rollout.algorithms.preference.kto import KtoSettings
from rollout.algorithms.preference.orpo import OrpoSettings
from rollout.algorithms.preference.reward_model import RewardModelSettings
from rollout.algorithms.preference.simpo import SimpoSettings
from rollout.learner.build import build_reference, build_trainer
from rollout.learner.config.preference import LabelSettings, PairSettings, RewardSettings
from rollout.learner.model.parallel import Parallel
from rollout.learner.model.policy import load_model
from rollout.learner.objectives.contract import Totals
from rollout.learner.objectives.plan import PlanRules, plan_step
from rollout.learner.objectives.preference.data import LabelledTokens, PairTokens
from rollout.learner.objectives.preference.kto import KtoWork
from rollout.learner.objectives.preference.pairs import PairWork
from rollout.learner.objectives.preference.reward import RewardWork
from rollout.learner.train_step import accumulate_gradients

CPU = torch.device("cpu")
LOSSES = {
    "dpo": DpoSettings(beta=0.5, sft_coefficient=0.2),
    "robust": DpoSettings(beta=0.5, form="Robust", label_smoothing=0.2),
    "ipo": IpoSettings(beta=0.5),
    "orpo": OrpoSettings(),
    "simpo": SimpoSettings(),
}


def make_pairs(seed: int, count: int = 8) -> list[PairTokens]:
    draw = random.Random(seed)

    def ids(longest: int) -> tuple[int, ...]:
        return tuple(draw.randrange(250) for _ in range(draw.randint(1, longest)))

    return [
        PairTokens(prompt_ids=ids(6), chosen_ids=ids(9), rejected_ids=ids(9)) for _ in range(count)
    ]


@pytest.fixture
def gradient_of(model_path, settings):
    """The flat gradient and summed metrics of one update of a work, cut by the given rules."""

    def compute(make_work, algorithm, rules):
        trainer = build_trainer(model_path, replace(settings, algorithm=algorithm), Parallel())
        with torch.no_grad():  # away from the reference, so that log ratios are not 0
            for parameter in trainer.policy.masters.values():
                parameter.mul_(0.8)  # flatter: random tokens gain, so that z is above 0
        work = make_work(build_reference(model_path, trainer.settings, Parallel()))
        update = plan_step(work.shapes(), rules, seed=1, step=1).updates[0]
        trainer.policy.zero_gradients()
        work.prepare(trainer.policy.model, [update.ranks[0]])
        totals = Totals()
        accumulate_gradients(trainer, work, update, totals)
        trainer.policy.sum_gradients()
        flat = torch.cat([p.grad.flatten() for p in trainer.policy.masters.values()])
        sums, maxima = totals.local()
        return flat, sums | maxima, len(update.ranks[0])

    return compute


def relative(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a - b).norm() / b.norm())


@pytest.mark.parametrize("name", LOSSES)
def test_one_micro_batch_of_eight_pairs_equals_eight_of_one(gradient_of, name) -> None:
    algorithm = PairSettings(loss=LOSSES[name], max_length=32)
    pairs = make_pairs(3)

    def work(reference):
        return PairWork(pairs, algorithm, CPU, reference)

    whole, sums, one = gradient_of(work, algorithm, PlanRules(tokens_max=4096))
    parts, parts_sums, some = gradient_of(work, algorithm, PlanRules(tokens_max=48))
    single, _, eight = gradient_of(work, algorithm, PlanRules(tokens_max=1))
    assert (one, eight) == (1, 8)
    assert 1 < some < 8
    assert relative(parts, whole) < 1e-5
    assert relative(single, whole) < 1e-5
    assert parts_sums == pytest.approx(sums, rel=1e-4, abs=1e-5)
    assert sums["pairs"] == 8


def test_pairs_that_are_too_long_count_for_nothing_and_are_named(gradient_of) -> None:
    algorithm = PairSettings(loss=LOSSES["dpo"], max_length=20)
    pairs = make_pairs(3)
    long = PairTokens(prompt_ids=(1,) * 12, chosen_ids=(2, 3), rejected_ids=(4,) * 9)
    clean, _, _ = gradient_of(
        lambda reference: PairWork(pairs, algorithm, CPU, reference),
        algorithm,
        PlanRules(tokens_max=4096),
    )
    with_long = PairWork([long, *pairs], algorithm, CPU, None)
    same, _, _ = gradient_of(
        lambda reference: PairWork([long, *pairs], algorithm, CPU, reference),
        algorithm,
        PlanRules(tokens_max=4096),
    )
    assert torch.equal(clean, same)
    assert with_long.filtered() == {0: "length"}
    assert with_long.metrics(1)["num_too_long"] == 1
    assert with_long.metrics(1)["num_sequences"] == 8


def test_a_batch_of_long_pairs_only_learns_nothing_and_breaks_nothing(gradient_of) -> None:
    algorithm = PairSettings(loss=LOSSES["dpo"], max_length=2)
    pairs = make_pairs(3)
    kept = [replace(p, chosen_ids=(1,) * 9) for p in pairs]
    gradient, sums, passes = gradient_of(
        lambda reference: PairWork(kept, algorithm, CPU, reference),
        algorithm,
        PlanRules(tokens_max=64),
    )
    assert (passes, sums, float(gradient.abs().max())) == (0, {}, 0.0)


def test_a_policy_equal_to_its_reference_has_no_margin(model_path, settings) -> None:
    algorithm = PairSettings(loss=DpoSettings(), max_length=32)
    reference = build_reference(model_path, replace(settings, algorithm=algorithm), Parallel())
    work = PairWork(make_pairs(5), algorithm, CPU, reference)
    update = plan_step(work.shapes(), PlanRules(tokens_max=4096), seed=1, step=1).updates[0]
    model = load_model(model_path)
    work.prepare(model, [update.ranks[0]])
    found = work.micro_loss(model, update.ranks[0][0], work.denominators(update))
    assert float(found.loss.detach()) == pytest.approx(0.6931472, abs=1e-6)
    assert float(found.sums["reward_margin"]) == pytest.approx(0, abs=1e-5)


def test_answer_logprobs_are_those_of_the_plain_model(model_path) -> None:
    pair = make_pairs(9, 1)[0]
    algorithm = PairSettings(loss=SimpoSettings(), max_length=32)
    work = PairWork([pair], algorithm, CPU, None)
    update = plan_step(work.shapes(), PlanRules(tokens_max=64), seed=1, step=1).updates[0]
    model = load_model(model_path)
    whole = Denominators(num_tokens=1, num_sequences=1, width=1)
    sums = work.micro_loss(model, update.ranks[0][0], whole).sums

    def plain(answer: tuple[int, ...]) -> float:
        ids = torch.tensor([[*pair.prompt_ids, *answer]])
        logprobs = model(input_ids=ids).logits[0].log_softmax(-1)
        start = len(pair.prompt_ids) - 1
        return float(sum(logprobs[start + t, token] for t, token in enumerate(answer)).detach())

    assert float(sums["chosen_logprob"]) == pytest.approx(plain(pair.chosen_ids), rel=1e-5)
    assert float(sums["rejected_logprob"]) == pytest.approx(plain(pair.rejected_ids), rel=1e-5)


def make_rows(seed: int, count: int = 8) -> list[LabelledTokens]:
    draw = random.Random(seed)
    return [
        LabelledTokens(
            prompt_ids=pair.prompt_ids, answer_ids=pair.chosen_ids, desirable=draw.random() < 0.5
        )
        for pair in make_pairs(seed, count)
    ]


def test_the_kto_reference_point_and_gradient_do_not_depend_on_the_cut(gradient_of) -> None:
    algorithm = LabelSettings(loss=KtoSettings(beta=0.5, desirable_weight=1.2), max_length=32)
    rows = make_rows(4)

    def work(reference):
        return KtoWork(rows, algorithm, Parallel(), reference)

    whole, sums, one = gradient_of(work, algorithm, PlanRules(tokens_max=4096))
    parts, parts_sums, some = gradient_of(work, algorithm, PlanRules(tokens_max=24))
    single, _, eight = gradient_of(work, algorithm, PlanRules(tokens_max=1))
    assert (one, eight) == (1, 8)
    assert 1 < some < 8
    assert relative(parts, whole) < 1e-5
    assert relative(single, whole) < 1e-5
    assert parts_sums == pytest.approx(sums, rel=1e-4, abs=1e-5)
    assert sums["desirable"] + sums["undesirable"] == 8
    assert sums["kl_reference_point"] > 0.01


def test_rows_of_one_prompt_only_have_a_reference_point_of_zero(gradient_of) -> None:
    algorithm = LabelSettings(loss=KtoSettings(beta=0.5), max_length=32)
    rows = [replace(row, prompt_ids=(1, 2)) for row in make_rows(4)]
    points = []

    def work(reference):
        made = KtoWork(rows, algorithm, Parallel(), reference)
        points.append(made)
        return made

    gradient_of(work, algorithm, PlanRules(tokens_max=24))
    assert {float(point) for point in points[0]._points.values()} == {0.0}


def test_per_micro_batch_answers_go_round_inside_each_as_trl_does(gradient_of) -> None:
    step = LabelSettings(loss=KtoSettings(beta=0.5), max_length=32)
    micro = replace(step, per_micro_batch=True)
    rows = make_rows(4)

    def gradient(algorithm, tokens_max):
        def work(reference):
            return KtoWork(rows, algorithm, Parallel(), reference)

        return gradient_of(work, algorithm, PlanRules(tokens_max=tokens_max))[0]

    assert torch.equal(gradient(micro, 4096), gradient(step, 4096))
    assert relative(gradient(micro, 24), gradient(step, 24)) > 1e-4


def test_a_reward_models_gradient_does_not_depend_on_the_cut(gradient_of) -> None:
    algorithm = RewardSettings(
        loss=RewardModelSettings(centering_coefficient=0.05), max_length=32, seed=3
    )
    pairs = [replace(pair, margin=0.1 * i) for i, pair in enumerate(make_pairs(6))]

    def work(reference):
        assert reference is None
        return RewardWork(pairs, algorithm, CPU)

    whole, sums, one = gradient_of(work, algorithm, PlanRules(tokens_max=4096))
    parts, parts_sums, some = gradient_of(work, algorithm, PlanRules(tokens_max=48))
    single, _, eight = gradient_of(work, algorithm, PlanRules(tokens_max=1))
    assert (one, eight) == (1, 8)
    assert 1 < some < 8
    assert relative(parts, whole) < 1e-5
    assert relative(single, whole) < 1e-5
    assert parts_sums == pytest.approx(sums, rel=1e-4, abs=1e-5)
