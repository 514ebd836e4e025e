"""Distillation's defaults, its teacher in the memory plan and in the order of runs, and what is only warned of."""

from rollout.models.roles import TEACHER, further_models
from rollout_api.checks import check_document, check_together
from rollout_api.checks.accelerators.memory import estimate_learner
from rollout_api.checks.facts import ModelFacts
from rollout_api.fields.model_sources import needed_runs
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


def document(name="pupil", **distill):
    settings = {"teacher": {"fromRun": {"name": "wise"}}} | distill
    return {
        "apiVersion": "rollout.dev/v1alpha1",
        "kind": "RolloutRun",
        "metadata": {"name": name},
        "spec": {
            "model": {"uri": "rollout://tiny-adder", "dtype": "BFloat16"},
            "train": {
                "algorithm": {"distill": settings},
                "environment": {"builtin": {"name": "arithmetic"}},
                "maxSteps": 10,
            },
        },
    }


def spec(**distill):
    return RolloutRunSpec.model_validate(document(**distill)["spec"])


def test_no_reward_is_needed_and_defaults_are_those_of_the_source():
    assert not check_document(document())
    train = resolve(spec()).spec.train
    distill = train.algorithm.distill
    assert (distill.kl_coefficient, distill.kl_discount, distill.samples_per_prompt) == (1, 0, 4)
    assert (distill.reward_coefficient, train.rewards) == (0, ())
    assert train.optimizer.adamw.learning_rate == 3e-4
    assert train.importance_sampling.none is not None
    assert train.algorithm.is_online
    assert not train.algorithm.uses_reference


def test_the_plan_counts_the_teacher():
    assert dict(estimate_learner(spec(), MODEL).parts)["teacher"] == 2_000_000


def test_the_teachers_run_comes_first():
    assert needed_runs(document()) == ("wise",)
    (found,) = further_models(spec())
    assert (found.role, found.field) == (TEACHER, "spec.train.algorithm.distill.teacher")


def test_a_run_that_teaches_itself_is_a_cycle():
    itself = document(teacher={"fromRun": {"name": "pupil"}})
    assert [problem.reason for _, problem in check_together([itself])] == ["Cycle"]


def test_a_clip_the_wrong_way_round_is_told():
    found = check_document(document(clipLow="0.3", clipHigh="0.2"))
    assert [(p.field, p.severity) for p in found] == [
        ("spec.train.algorithm.distill.clipLow", Severity.warning)
    ]
