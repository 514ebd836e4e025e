"""A document as a mapping: read as one of a file is, refused by field, and never changed."""

import copy

import pytest

from rollout.errors import SpecError
from rollout.runs.manifest import document_of
from rollout.runs.validation import require_valid

MADE = {
    "apiVersion": "rollout.dev/v1alpha1",
    "kind": "RolloutRun",
    "metadata": {"name": "made"},
    "spec": {
        "model": {"uri": "rollout://tiny-adder"},
        "train": {
            "algorithm": {"grpo": {}},
            "environment": {"builtin": {"name": "arithmetic"}},
            "maxSteps": 1,
        },
    },
}


def test_a_mapping_is_a_document_and_stays_as_it_was():
    before = copy.deepcopy(MADE)
    document = document_of(MADE)
    document.data["spec"]["seed"] = 7

    assert before == MADE
    assert document.data["metadata"] == {"name": "made"}


def test_rewards_that_are_given_as_functions_need_no_others():
    with pytest.raises(SpecError, match=r"spec\.train\.rewards: grpo learns from reward"):
        require_valid([document_of(MADE)])

    assert require_valid([document_of(MADE)], replaces_rewards=True) == []


@pytest.mark.parametrize(
    ("manifest", "says"),
    [
        ({**MADE, "spec": {"seed": {1, 2}}}, "expected texts, numbers, lists and mappings"),
        ({**MADE, "spec": {**MADE["spec"], "sed": 1}}, "spec.sed"),
    ],
)
def test_what_is_wrong_is_named(manifest, says):
    with pytest.raises(SpecError, match="<manifest>") as refused:
        require_valid([document_of(manifest)])
    assert says in str(refused.value)
