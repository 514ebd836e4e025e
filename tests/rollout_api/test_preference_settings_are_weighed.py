"""What is legal and rarely meant is warned about; what a loss compares with is said in numbers."""

import pytest

from rollout.runs.plan.arithmetic import batch_arithmetic
from rollout_api.checks import check_spec
from rollout_api.problems import Severity
from rollout_api.v1alpha1.run import RolloutRunSpec
from rollout_api.v1alpha1.training.algorithms import Algorithm


def spec_of(algorithm, **train):
    data = {"jsonl": {"uri": "pairs.jsonl"}}
    return RolloutRunSpec.model_validate(
        {
            "model": {"uri": "hf://a/b"},
            "train": {"algorithm": algorithm, "data": data, "maxSteps": 3, **train},
        }
    )


def warnings_of(algorithm):
    problems = check_spec(spec_of(algorithm))
    assert not [item for item in problems if item.severity is Severity.error]
    return [(item.field.removeprefix("spec.train.algorithm."), item.reason) for item in problems]


@pytest.mark.parametrize(
    ("algorithm", "expected"),
    [
        ({"ipo": {"beta": "0.1"}}, [("ipo.beta", "MarginOutOfReach")]),  # 5 nats a token
        ({"ipo": {"beta": "0.5"}}, []),  # 1 nat a token
        ({"ipo": {"aggregation": "SequenceSum", "answerLengths": "Alike"}}, []),
        ({"dpo": {"loss": "Conservative"}}, [("dpo.labelSmoothing", "MissingField")]),
        ({"dpo": {"loss": "Conservative", "labelSmoothing": "0.1"}}, []),
        ({"kto": {"klBatch": "MicroBatch"}}, [("kto.klBatch", "DependsOnMicroBatches")]),
        ({"kto": {}}, []),
        ({"orpo": {}}, []),
        ({"simpo": {}}, []),
        ({"rm": {}}, []),
    ],
)
def test_what_is_rarely_meant_is_warned_about(algorithm, expected):
    assert warnings_of(algorithm) == expected


@pytest.mark.parametrize(
    ("algorithm", "expected"),
    [
        ({"ipo": {"beta": "0.1"}}, "5 nats per token"),
        ({"ipo": {"beta": "0.25", "aggregation": "SequenceSum"}}, "2 nats per answer"),
        ({"dpo": {}}, None),
    ],
)
def test_a_plan_says_what_margin_ipo_pulls_to(algorithm, expected):
    assert batch_arithmetic(spec_of(algorithm), 80)["targetMargin"] == expected


@pytest.mark.parametrize(
    ("algorithm", "expected"),
    [
        ({"dpo": {}}, True),
        ({"ipo": {}}, True),
        ({"kto": {}}, True),
        ({"orpo": {}}, False),
        ({"simpo": {}}, False),
        ({"rm": {}}, False),
        ({"sft": {}}, False),
        ({"grpo": {}}, False),
        ({"grpo": {"klCoefficient": "0.1"}}, True),
    ],
)
def test_a_reference_is_loaded_only_where_something_compares_with_it(algorithm, expected):
    assert Algorithm.model_validate(algorithm).uses_reference is expected
