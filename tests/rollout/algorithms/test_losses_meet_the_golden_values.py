"""Values that verl 0.9.1, TRL 1.16 and OpenRLHF 0.11 gave on the same inputs (``golden/policy.json``).

A case's loss goes through ``grpo_loss`` as the learner's does. ``stretch`` multiplies the log ratios,
``sign`` the advantages.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from rollout.algorithms.advantages.groups import group_advantages
from rollout.algorithms.advantages.whitening import whiten
from rollout.algorithms.aggregation import Denominators, aggregate, token_weights
from rollout.algorithms.grpo import GrpoSettings, PolicyTokens, grpo_loss
from rollout.algorithms.kl import kl_estimate
from rollout.algorithms.surrogates import cispo
from rollout.algorithms.surrogates.cispo import Cispo
from rollout.algorithms.surrogates.clip import Clipped
from rollout.algorithms.surrogates.gmpo import Gmpo
from rollout.algorithms.surrogates.importance import Correction
from rollout.algorithms.surrogates.sapo import Sapo
from rollout.algorithms.surrogates.vespo import Vespo

GOLDEN = json.loads((Path(__file__).parent / "golden" / "policy.json").read_text())
INPUTS: dict[str, Any] = GOLDEN["inputs"]
SURROGATES = {
    "clipped": Clipped,
    "cispo": Cispo,
    "cispo.relative": cispo.relative,
    "sapo": Sapo,
    "vespo": Vespo,
    "gmpo": Gmpo,
}


def column(name: str) -> torch.Tensor:
    return torch.tensor(INPUTS[name], dtype=torch.float64)


LENGTHS = torch.tensor(INPUTS["lengths"])
SEQUENCE = torch.arange(len(LENGTHS)).repeat_interleave(LENGTHS)
MASK = torch.ones(len(SEQUENCE), dtype=torch.float64)
WHOLE = Denominators(
    num_tokens=len(SEQUENCE), num_sequences=len(LENGTHS), width=int(INPUTS["width"])
)


def settings_of(case: dict[str, Any]) -> GrpoSettings:
    told = {
        key: case[key]
        for key in ("ratio", "aggregation", "kl_coefficient", "kl_estimator")
        if key in case
    }
    for name, numbers in case.get("surrogate", {}).items():
        told["surrogate"] = SURROGATES[name](**numbers)
    if "correction" in case:
        told["correction"] = Correction(**case["correction"])
    return GrpoSettings(**told)


def named(cases: list[dict[str, Any]]):
    return pytest.mark.parametrize("case", cases, ids=[case["name"] for case in cases])


@named(GOLDEN["losses"])
def test_each_loss_meets_the_golden_value(case) -> None:
    old = column("old_logprobs")
    settings = settings_of(case)
    tokens = PolicyTokens(
        logprobs_C=old + case.get("stretch", 1) * (column("logprobs") - old),
        old_logprobs_C=old,
        actor_logprobs_C=column("actor_logprobs"),
        advantages_C=case.get("sign", 1) * column("advantages"),
        sequence_C=SEQUENCE,
        mask_C=MASK,
        reference_logprobs_C=column("reference_logprobs") if settings.kl_coefficient else None,
    )
    found = float(grpo_loss(tokens, settings, WHOLE).loss)
    assert found == pytest.approx(case["expected"], abs=1e-6)


@pytest.mark.parametrize("case", GOLDEN["kl"]["cases"], ids=lambda case: case["estimator"])
def test_each_kl_estimator_meets_the_golden_value(case) -> None:
    weights = token_weights("TokenMean", MASK, SEQUENCE, WHOLE)
    estimate = kl_estimate(column("logprobs"), column("reference_logprobs"), case["estimator"])
    assert float(aggregate(estimate, weights)) == pytest.approx(case["expected"], abs=1e-6)


@named(GOLDEN["advantages"])
def test_each_kind_of_advantage_meets_the_golden_values(case) -> None:
    rewards = column("rewards")[None]
    found = group_advantages(
        rewards, torch.ones_like(rewards), case["scale"], baseline=case["baseline"]
    ).advantages_PG[0]
    if case["scale"] == "Whiten":
        starts = LENGTHS.cumsum(0) - LENGTHS
        found = whiten(found[SEQUENCE], MASK)[starts]
    assert found.tolist() == pytest.approx(case["expected"], abs=1e-6)


def _old(i: int, t: int) -> float:
    return -1 - 0.1 * ((7 * i + 3 * t) % 5)


@pytest.mark.parametrize(
    ("name", "formula"),
    [
        ("old_logprobs", _old),
        ("logprobs", lambda i, t: _old(i, t) + 0.1 * (((5 * i + 11 * t) % 9) - 4)),
        ("reference_logprobs", lambda i, t: _old(i, t) - 0.05 * ((3 * i + 2 * t) % 4)),
        ("actor_logprobs", lambda i, t: _old(i, t) + 0.02 * (((2 * i + 5 * t) % 7) - 3)),
        ("advantages", lambda i, t: [1, -0.5, 2, -1.5][i]),
    ],
)
def test_the_inputs_are_those_of_the_source(name, formula) -> None:
    # sequence i, token t, from 0
    places = [(i, t) for i, length in enumerate(INPUTS["lengths"]) for t in range(length)]
    assert INPUTS[name] == pytest.approx([formula(i, t) for i, t in places], abs=1e-12)
