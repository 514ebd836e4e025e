"""PPO's critic in the memory plan, its learning rate, and what is only warned of."""

import pytest

from rollout_api.checks import check_document
from rollout_api.checks.accelerators.memory import estimate_learner
from rollout_api.checks.facts import ModelFacts
from rollout_api.presets import resolve
from rollout_api.problems import Severity
from rollout_api.v1alpha1.run import RolloutRunSpec

MODEL = ModelFacts(
    num_parameters=1_000_000,
    hidden_size=64,
    num_layers=2,
    num_kv_heads=2,
    head_dim=32,
    vocab_size=1000,
    context_length=512,
)


def spec(algorithm, model="hf://a/b", dtype="BFloat16"):
    train = {
        "algorithm": algorithm,
        "environment": {"builtin": {"name": "arithmetic"}},
        "rewards": [{"builtin": {"name": "exact-match"}}],
        "maxSteps": 10,
    }
    return RolloutRunSpec.model_validate({"model": {"uri": model, "dtype": dtype}, "train": train})


def parts(algorithm, **other):
    return dict(estimate_learner(spec(algorithm, **other), MODEL).parts)


def test_the_plan_counts_the_critic_and_the_reference():
    # BFloat16: weights 2, masters 4, gradients 4, both moments of AdamW 8 bytes a parameter.
    found = parts({"ppo": {}})
    assert (found["critic"], found["reference"]) == (18_000_000, 2_000_000)
    # Float32: weights are the masters; SGD keeps its momentum where it has one.
    for momentum, size in (("0.9", 12_000_000), ("0", 8_000_000)):
        critic = {"optimizer": {"sgd": {"momentum": momentum}}}
        found = parts({"ppo": {"klCoefficient": 0, "critic": critic}}, dtype="Float32")
        assert (found["critic"], found["reference"]) == (size, 0)
    assert parts({"grpo": {}})["critic"] == 0


@pytest.mark.parametrize(("uri", "rate"), [("hf://a/b", 1e-5), ("rollout://tiny-adder", 1e-3)])
def test_a_critics_learning_rate_depends_on_the_model(uri, rate):
    ppo = resolve(spec({"ppo": {}}, model=uri)).spec.train.algorithm.ppo
    assert ppo.critic.optimizer.adamw.learning_rate == rate


@pytest.mark.parametrize(
    ("ppo", "field"),
    [
        ({"klPlacement": "Loss"}, "spec.train.algorithm.ppo.klEstimator"),
        ({"clipLow": "0.3", "clipHigh": "0.2"}, "spec.train.algorithm.ppo.clipLow"),
    ],
)
def test_what_is_rarely_meant_is_told(ppo, field):
    document = {
        "apiVersion": "rollout.dev/v1alpha1",
        "kind": "RolloutRun",
        "metadata": {"name": "r"},
        "spec": spec({"ppo": ppo}).model_dump(mode="json", exclude_none=True, exclude_unset=True),
    }
    found = {p.field: p.severity for p in check_document(document)}
    assert found == {field: Severity.warning}
