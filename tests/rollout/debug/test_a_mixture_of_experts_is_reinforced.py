"""A whole run of a tiny mixture of experts, really sampled: as near its engine as a dense model, and the same again."""

from __future__ import annotations

from pathlib import Path

import pytest
from debug_kit import GRPO, build_config
from msgspec import UNSET
from sampling_kit import record_sampled

from rollout.codec import name_trajectory
from rollout.debug.replay import replay_recorded
from rollout.ledger.sqlite.reader import LedgerReader
from rollout.models.resolve import resolve_model
from rollout_api.worker import RoutedExperts

pytestmark = pytest.mark.process

EVEN = """
def even(prompts, completions, rows):
    return [sum(token % 2 == 0 for token in c.token_ids) / len(c.token_ids) for c in completions]
"""
SIZES = "hidden=32&layers=2&heads=2&intermediate=32&context=64"
STEPS = 4
ROUNDING = 1e-7
"""Nats; the mean of differences of which a dense model's may be 0."""


def run(folder: Path, model: str, **found) -> Path:
    path = folder / "even.py"
    path.write_text(EVEN)
    train = {
        **GRPO,
        "rewards": [{"python": {"path": str(path), "function": "even"}}],
        "sampling": {"maxNewTokens": 16},
        "optimizer": {"adamw": {"learningRate": "3e-2"}},
        "maxSteps": STEPS,
    }
    place = resolve_model(f"rollout://{model}?{SIZES}").path
    config = build_config(folder / "tiny-1", Path(place), train)
    resolved = config.resolved.model_copy(update=found)
    record_sampled(config.model_copy(update={"resolved": resolved}))
    return folder / "tiny-1"


def steps_of(folder: Path) -> list:
    with LedgerReader(folder / "ledger.db") as ledger:
        return list(ledger.steps())


def samples_of(folder: Path) -> list:
    with LedgerReader(folder / "ledger.db") as ledger:
        return [view.trajectory for step in range(1, STEPS + 1) for view in ledger.samples(step)]


@pytest.fixture(scope="module")
def mixture(tmp_path_factory):
    experts = RoutedExperts(layers=2, experts=4, top_k=2)
    return [
        run(tmp_path_factory.mktemp("mixture"), "tiny-qwen3-moe", experts=experts) for _ in range(2)
    ]


def test_its_mismatch_is_no_larger_than_its_dense_twins(mixture, tmp_path):
    dense = run(tmp_path, "tiny-qwen2")

    of_experts, of_dense = (
        [abs(step.metrics["mismatch_kl"]) for step in steps_of(one)] for one in (mixture[0], dense)
    )

    assert len(of_experts) == STEPS
    assert max(of_experts) <= max(*of_dense, ROUNDING)
    assert {one.routes for one in samples_of(dense)} == {UNSET}


def test_every_sample_tells_the_experts_of_all_its_positions_but_the_last(mixture):
    for one in samples_of(mixture[0]):
        assert one.routes.num_positions == len(one.prompt_ids) + len(one.token_ids) - 1


def test_two_runs_have_one_chain_and_one_name_for_each_sample(mixture):
    assert [step.chain for step in steps_of(mixture[0])] == [
        step.chain for step in steps_of(mixture[1])
    ]
    first, second = (list(map(name_trajectory, samples_of(one))) for one in mixture)
    assert first == second


def test_what_a_ledger_keeps_is_enough_to_meet_every_digest_again(mixture):
    lines = list(replay_recorded(mixture[0]))

    assert [line["step"] for line in lines] == list(range(STEPS + 1))
    assert all(line["equal"] for line in lines)
