"""A manifest written for an earlier schema is told where its fields went."""

import json
from pathlib import Path

import pytest

from rollout_api.checks import check_document
from rollout_api.fields.moved import find_unsaid, with_moved
from rollout_api.worker import WorkerOrder

SPEC = {
    "model": {"uri": "rollout://tiny-adder"},
    "train": {
        "algorithm": {"grpo": {"promptsPerStep": 2, "groupSize": 2}},
        "environment": {"builtin": {"name": "arithmetic"}},
        "rewards": [{"builtin": {"name": "exact-match"}}],
        "maxSteps": 1,
    },
}
SECRET = {"name": "A", "secretKeyRef": {"name": "s", "key": "k"}}
ENVIRONMENT = {"python": {"module": "mine", "class": "Mine"}}
OLD = {
    "spec.secretEnv": ({"secretEnv": [SECRET]}, "valueFrom: {secretKeyRef:"),
    "spec.learner.secretEnv": ({"learner": {"secretEnv": [SECRET]}}, "valueFrom: {secretKeyRef:"),
    "spec.actors.accelerator.class": (
        {"actors": {"accelerator": {"class": "h100"}}},
        "it has moved: write className",
    ),
    "spec.train.environment.python.class": (
        {"train": {**SPEC["train"], "environment": ENVIRONMENT}},
        "it has moved: write className",
    ),
}


@pytest.mark.parametrize("field", OLD)
def test_its_refusal_says_what_to_write(field):
    edit, remedy = OLD[field]
    document = {"apiVersion": "rollout.dev/v1alpha1", "kind": "RolloutRun"}
    problems = check_document(document | {"metadata": {"name": "x"}, "spec": {**SPEC, **edit}})
    (found,) = [one for one in problems if one.field == field]
    assert found.reason == "UnknownField"
    assert remedy in found.fix


def pruned(document):
    """What the API server makes of a stored document: fields that its schema does not know are gone."""
    if isinstance(document, dict):
        gone = {"secretEnv", "class"}
        return {name: pruned(value) for name, value in document.items() if name not in gone}
    return document


@pytest.mark.parametrize("field", OLD)
def test_what_a_pruned_spec_has_lost_is_named(field):
    edit, _ = OLD[field]
    before = {**SPEC, **edit}
    (found,) = find_unsaid(before, pruned(before), ("spec",))
    assert found.startswith(f"{field} has moved: write ")


def test_what_is_said_at_the_new_place_is_not_missed():
    before = {"secretEnv": [SECRET], "actors": {"accelerator": {"class": "h100"}}}
    env = [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]
    now = {"env": env, "actors": {"accelerator": {"className": "h100"}}}
    assert not list(find_unsaid(before, now, ("spec",)))
    assert len(list(find_unsaid(before, {**now, "env": []}, ("spec",)))) == 1


def test_what_was_taken_out_whole_is_not_missed():
    before = {"actors": {"accelerator": {"class": "h100"}}, "secretEnv": []}
    assert not list(find_unsaid(before, {"actors": {}}, ("spec",)))


def test_names_of_the_authors_own_are_no_fields():
    spec = {"actors": {"labels": {"secretEnv": "x"}, "nodeSelector": {"secretEnv": "x"}}}
    assert not list(find_unsaid(spec, spec, ("spec",)))


def test_what_we_wrote_before_is_read_with_every_field_at_its_new_place():
    before = {
        "env": [{"name": "B", "value": "1"}],
        "secretEnv": [SECRET],
        "actors": {"accelerator": {"class": "h100"}, "labels": {"secretEnv": "x"}},
    }
    assert with_moved(before) == {
        "env": [
            {"name": "B", "value": "1"},
            {"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
        ],
        "actors": {"accelerator": {"className": "h100"}, "labels": {"secretEnv": "x"}},
    }


def test_an_order_of_a_living_attempt_of_before_is_read():
    file = Path(__file__).parents[1] / "security" / "record_format_1.json"
    order = json.loads(json.loads(file.read_text())["data"]["order.json"])
    order["spec"]["actors"]["accelerator"] = {"class": "h100"}
    order["spec"]["learner"]["secretEnv"] = [SECRET]
    spec = WorkerOrder.model_validate_json(json.dumps(order)).spec
    assert spec.actors.accelerator is not None and spec.actors.accelerator.class_name == "h100"
    assert [one.name for one in spec.learner.env if one.secret] == ["A"]


GATED = {
    **SPEC,
    "evaluations": [
        {
            "suite": {"builtin": {"name": "arithmetic"}},
            "gate": {"metric": "accuracy", "lowerBound": "0.5", "action": "Fail"},
        }
    ],
}


def test_a_value_with_another_name_is_told_it():
    document = {"apiVersion": "rollout.dev/v1alpha1", "kind": "RolloutRun"}

    problems = check_document(document | {"metadata": {"name": "x"}, "spec": GATED})

    (found,) = [one for one in problems if one.field == "spec.evaluations[0].gate.action"]
    assert (found.reason, found.fix) == ("InvalidValue", "it has another name now: write StopRun")


def test_what_an_earlier_version_wrote_down_is_read_with_todays_names():
    read = with_moved(GATED)

    assert read["evaluations"][0]["gate"]["action"] == "StopRun"
    assert with_moved({"env": [{"name": "action", "value": "Fail"}]})["env"][0]["value"] == "Fail"
