"""The warm start of the agent: what it shows, what it never shows, and the model it begins with."""

from collections import Counter

import numpy as np
import pytest
from safetensors.numpy import load_file

from rollout.environments.arithmetic import ArithmeticSource
from rollout.environments.sample_data.asked_sums import PROBLEMS, asked_sums, programmed_sums
from rollout.errors import SpecError
from rollout.models.builtin.agent import (
    COMMITTED,
    DEMONSTRATIONS,
    Agent,
    build_agent,
    canonical_agent,
    write_untrained,
)
from rollout.models.files import digest_model
from rollout.rendering import build_renderer
from rollout.tools.calculator import calculator

FEW = 2000


@pytest.fixture(scope="module")
def renderer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("agent")
    write_untrained(folder, Agent(steps=0))
    return build_renderer(folder)


@pytest.mark.parametrize("split", ["report", "selection"])
def test_no_held_out_problem_is_shown(split):
    source = ArithmeticSource(PROBLEMS, split)
    held_out = {row["prompt"] for row in source.rows(range(len(source)))}

    assert not held_out & {messages[0].text for messages, _ in asked_sums(DEMONSTRATIONS)}


def test_the_pupil_guesses_asks_with_care_and_slips():
    manners: Counter[str] = Counter()
    for (question, *said), _ in asked_sums(FEW):
        asked = question.text.removesuffix("=")
        calls = said[0].calls
        typed = bool(calls) and calls[0].arguments == {"expression": asked}
        right = said[-1].text == calculator(asked)
        manners["guess" if not calls else "care" if typed and right else "slip"] += 1

    assert 0.35 < manners["guess"] / FEW < 0.45
    assert 0.4 < manners["care"] / FEW < 0.5


@pytest.mark.parametrize("pupil", [asked_sums, programmed_sums])
def test_every_demonstration_is_written_without_a_loss_and_read_again(pupil, renderer):
    for messages, tools in pupil(200):
        ids, mask = renderer.render_training(messages, tools)
        prompt = renderer.render_prompt(messages[:1], tools)
        said = renderer.decode([t for t, learned in zip(ids, mask, strict=True) if learned])

        assert ids[: len(prompt)] == prompt
        assert not any(mask[: len(prompt)])
        assert renderer.survives_text(ids[len(prompt) :])
        assert said.endswith(messages[-1].text)
        if messages[1].calls:
            parts = renderer.parse_reply(said, (), tools, 0)
            assert parts[0].arguments == messages[1].calls[0].arguments


def test_a_call_is_a_dozen_tokens_and_its_expression(renderer):
    messages, tools = next(one for one in asked_sums(FEW) if one[0][1].calls)
    _, mask = renderer.render_training(messages[:2], tools)

    assert sum(mask) - len(messages[0].text.removesuffix("=")) <= 12


def test_the_untrained_agent_is_the_same_every_time(tmp_path):
    first, second, other = (tmp_path / name for name in ("first", "second", "other"))
    for folder, seed in ((first, 0), (second, 0), (other, 1)):
        folder.mkdir()
        write_untrained(folder, Agent(seed=seed, steps=0))

    assert digest_model(first) == digest_model(second) != digest_model(other)


@pytest.mark.parametrize("tool", ["calculator", "python_exec", "search"])
def test_the_default_warm_start_is_committed_and_fits_its_model(tool, tmp_path):
    build_agent(tmp_path, {"tool": tool})
    committed = load_file(COMMITTED / f"{tool}.safetensors")
    built = load_file(tmp_path / "model.safetensors")

    assert {name: tensor.shape for name, tensor in built.items()} == {
        name: tensor.shape for name, tensor in committed.items()
    }
    assert all(tensor.dtype == "float32" and np.isfinite(tensor).all() for tensor in built.values())
    assert f"{sum(tensor.size for tensor in built.values()):,}" in (Agent.shape.__doc__ or "")


def test_another_warm_start_is_trained_on_the_spot(tmp_path):
    build_agent(tmp_path, {"steps": "1", "seed": "3"})

    assert (tmp_path / "model.safetensors").exists()


@pytest.mark.parametrize("parameters", [{"steps": "-1"}, {"steps": "many"}, {"tool": "saw"}])
def test_a_bad_parameter_is_named(parameters):
    with pytest.raises(SpecError, match="tiny-agent"):
        canonical_agent(parameters)
