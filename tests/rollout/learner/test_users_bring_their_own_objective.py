"""A function and a pydantic model under the entry-point group ``rollout.algorithms``."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from rollout.algorithms.aggregation import Denominators
from rollout.algorithms.grpo import GrpoSettings, PolicyTokens, grpo_loss
from rollout.errors import RunFailed, SpecError
from rollout.learner.config.policy import PolicySettings
from rollout.plugins.user_algorithms import installed_algorithms, load_algorithm

CODE = """
import torch
from pydantic import BaseModel, Field
from rollout.algorithms.surrogate import SurrogateLoss

class Settings(BaseModel):
    scale: float = Field(default=1.0, gt=0)

def scaled(tokens, settings: Settings):
    return -settings.scale * tokens.advantages_C * tokens.log_ratios_C.exp()

def summed(tokens, settings: Settings):
    return scaled(tokens, settings).sum()

def counted(tokens, settings: Settings) -> SurrogateLoss:
    never = torch.zeros_like(tokens.mask_C, dtype=torch.bool)
    return SurrogateLoss(losses_C=scaled(tokens, settings), ratios_C=tokens.log_ratios_C.detach().exp(),
                         clipped_low_C=never, clipped_high_C=~never)

def unsettled(tokens, settings):
    return tokens.logprobs_C
"""


@pytest.fixture(autouse=True)
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package as an installer would leave it."""
    (tmp_path / "their_objectives.py").write_text(CODE)
    info = tmp_path / "their_objectives-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: their-objectives\nVersion: 1.0\n")
    names = ["scaled", "summed", "counted", "unsettled", "missing"]
    lines = [f"{name} = their_objectives:{name}" for name in names]
    (info / "entry_points.txt").write_text("\n".join(["[rollout.algorithms]", *lines, ""]))
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    sys.modules.pop("their_objectives", None)


def tokens() -> PolicyTokens:
    logprobs = torch.tensor([-1.0, -2.0, -0.5], dtype=torch.float64, requires_grad=True)
    return PolicyTokens(
        logprobs_C=logprobs,
        old_logprobs_C=logprobs.detach(),
        actor_logprobs_C=logprobs.detach(),
        advantages_C=torch.tensor([1.0, 1.0, -2.0], dtype=torch.float64),
        mask_C=torch.ones(3, dtype=torch.float64),
        sequence_C=torch.tensor([0, 0, 1]),
    )


def loss_of(name: str, **parameters: str):
    given = tokens()
    settings = GrpoSettings(surrogate=load_algorithm(name, parameters))
    found = grpo_loss(given, settings, Denominators(num_tokens=3, num_sequences=2, width=4))
    found.loss.backward()
    return found, given.logprobs_C.grad


def test_a_function_is_found_by_name_and_composes_with_the_rest() -> None:
    # -scale A grad(r) at r = 1, mean over three tokens: -0.5 / 3, -0.5 / 3, 1 / 3
    found, gradient = loss_of("scaled", scale="0.5")
    assert gradient.tolist() == pytest.approx([-0.5 / 3, -0.5 / 3, 1 / 3])
    assert float(found.sums["clipped_high"]) == 0
    assert "scaled" in installed_algorithms()


def test_it_may_say_itself_what_was_clipped() -> None:
    found, _ = loss_of("counted")
    assert float(found.sums["clipped_high"]) == 3


def test_its_settings_are_equal_when_their_numbers_are() -> None:
    assert load_algorithm("scaled", {}) == load_algorithm("scaled", {"scale": "1"})
    assert load_algorithm("scaled", {}) != load_algorithm("scaled", {"scale": "2"})


@pytest.mark.parametrize(
    ("name", "parameters", "said"),
    [
        ("nobody", {}, "no algorithm 'nobody' is installed .* installed: counted, missing, scaled"),
        ("missing", {}, "their_objectives:missing cannot be imported"),
        ("unsettled", {}, "must be a function .* a pydantic model"),
        ("scaled", {"size": "1"}, "has no 'size'; it takes scale"),
        ("scaled", {"scale": "-1"}, "scale: Input should be greater than 0"),
        ("scaled", {"scale": "wide"}, "scale: Input should be a valid number"),
    ],
)
def test_what_does_not_fit_is_told_by_name(name, parameters, said) -> None:
    with pytest.raises(SpecError, match=said):
        load_algorithm(name, parameters)


def test_a_loss_that_is_already_summed_is_refused() -> None:
    with pytest.raises(RunFailed, match=r"'summed'.*one loss per token, \(3,\), got \(\)"):
        loss_of("summed")


def test_silent_groups_are_computed_since_nothing_is_known_of_it() -> None:
    settings = PolicySettings(
        loss=GrpoSettings(surrogate=load_algorithm("scaled", {})),
        advantage_scale="Group",
        advantage_epsilon=1e-6,
        old_logprobs="Learner",
        temperature=1.0,
        width=8,
    )
    assert not settings.skips_silent
