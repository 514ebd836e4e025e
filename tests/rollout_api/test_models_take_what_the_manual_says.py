"""A manifest becomes a run: what is accepted, what is refused, and that nothing is lost on the way."""

import copy
import json
from pathlib import Path

import pytest
from pydantic import ValidationError
from ruamel.yaml import YAML

from rollout_api import parse_object, parse_run
from rollout_api.base import OneOf
from rollout_api.generate.tree import Object, build_tree, walk
from rollout_api.v1alpha1.objects.kinds import KINDS

GOOD = sorted((Path(__file__).parent / "manifests" / "good").glob("*.yaml"))
SMALLEST = {
    "apiVersion": "rollout.dev/v1alpha1",
    "kind": "RolloutRun",
    "metadata": {"name": "arithmetic"},
    "spec": {
        "model": {"uri": "rollout://tiny-adder"},
        "train": {
            "algorithm": {"grpo": {"promptsPerStep": 32, "groupSize": 8}},
            "environment": {"builtin": {"name": "arithmetic"}},
            "rewards": [{"builtin": {"name": "exact-match"}}],
            "maxSteps": 400,
        },
    },
}


def changed(path, value):
    document = copy.deepcopy(SMALLEST)
    *parents, last = path.split(".")
    place = document
    for parent in parents:
        place = place.setdefault(parent, {})
    place[last] = value
    return document


def error_of(document):
    with pytest.raises(ValidationError) as caught:
        parse_run(document)
    return [(".".join(map(str, item["loc"])), item["type"]) for item in caught.value.errors()]


@pytest.mark.parametrize("path", GOOD, ids=lambda path: path.stem)
def test_a_manifest_survives_the_round_trip(path):
    for document in YAML(typ="safe").load_all(path.read_text()):
        run = parse_run(document)

        assert parse_run(json.loads(run.model_dump_json())) == run
        assert parse_run(run.model_dump(mode="json", exclude_unset=True)) == run


def test_what_the_manifest_says_is_told_from_what_it_leaves_out():
    written = parse_run(SMALLEST).model_dump(mode="json", exclude_unset=True)

    assert written == SMALLEST


def test_a_local_file_needs_no_kubernetes_around_it():
    local = {"schema_version": 1, "name": "arithmetic", **SMALLEST["spec"]}

    assert parse_run(local) == parse_run(SMALLEST)


def test_a_local_file_of_a_later_version_is_refused():
    with pytest.raises(ValueError, match="schema_version must be 1, got 2"):
        parse_run({"schema_version": 2})


@pytest.mark.parametrize(
    ("path", "value", "field", "kind"),
    [
        ("spec.train.maxstep", 4, "spec.train.maxstep", "extra_forbidden"),
        ("spec.train.algorithm", {}, "spec.train.algorithm", "exactly_one"),
        (
            "spec.train.algorithm",
            {"grpo": {}, "sft": {}},
            "spec.train.algorithm",
            "exactly_one",
        ),
        ("spec.evaluate", {}, "spec", "exactly_one"),
        ("spec.model", {"revision": "main"}, "spec.model", "exactly_one"),
        ("spec.train.maxSteps", 0, "spec.train.maxSteps", "greater_than_equal"),
        ("spec.train.maxSteps", "400", "spec.train.maxSteps", None),
        ("spec.numerics", {"mode": "exact"}, "spec.numerics.mode", "literal_error"),
        ("spec.seed", 2**63, "spec.seed", "less_than_equal"),
        ("spec.env", [{"name": "A"}, {"name": "A"}], "spec.env", "duplicate"),
        ("spec.preset", "qwen", "spec.preset", "string_pattern_mismatch"),
        ("metadata.name", "a" * 41, "metadata.name", "string_too_long"),
        ("metadata.name", "1st", "metadata.name", "string_pattern_mismatch"),
        ("kind", "Rollout", "kind", "literal_error"),
        ("spec.actors.autoscale", {"min": 3, "max": 2}, "spec.actors.autoscale", "value_error"),
        (
            "spec.actors.resources",
            {"requests": {"cpu": "4 cores"}},
            "spec.actors.resources.requests.cpu",
            "string_pattern_mismatch",
        ),
    ],
)
def test_a_wrong_field_is_named(path, value, field, kind):
    document = changed(path, value)

    if kind is None:
        assert parse_run(document).spec.train.max_steps == 400
    else:
        assert (field, kind) in error_of(document)


def test_a_union_says_which_members_it_has():
    with pytest.raises(ValidationError, match="exactly one of adamw, sgd must be set, got none"):
        parse_run(changed("spec.train.optimizer", {}))


def test_quantities_may_be_plain_integers():
    run = parse_run(changed("spec.actors.resources", {"requests": {"cpu": 4}}))

    assert run.spec.actors.resources.requests == {"cpu": "4"}


def test_fields_of_the_api_server_are_ignored_in_metadata():
    run = parse_run(changed("metadata.managedFields", [{"manager": "kubectl"}]))

    assert run.metadata.name == "arithmetic"


def test_a_run_cannot_be_changed_in_place():
    run = parse_run(SMALLEST)

    with pytest.raises(ValidationError, match="frozen"):
        run.spec.train.max_steps = 5


def test_every_kind_parses_by_its_name():
    spec = {
        "RolloutRun": SMALLEST["spec"],
        "RolloutSnapshot": {"source": {"run": {"name": "a"}}},
        "RolloutEndpoint": {"model": {"fromRun": {"name": "a", "snapshot": "Best"}}},
        "RolloutSweep": {
            "parameters": [{"field": "seed", "values": ["1"]}],
            "template": {"spec": SMALLEST["spec"]},
        },
        "RolloutRuntime": {"acceleratorClasses": [{"name": "h100", "memory": "80Gi"}]},
        "ClusterRolloutRuntime": {},
    }
    for kind in KINDS:
        document = {
            "apiVersion": "rollout.dev/v1alpha1",
            "kind": kind.name,
            "metadata": {"name": "a"},
            "spec": spec[kind.name],
        }
        assert type(parse_object(document)) is kind.model


def test_an_unknown_kind_is_refused_with_the_ones_there_are():
    with pytest.raises(ValueError, match=r"kind must be one of RolloutRun, .*, got 'Rollout'"):
        parse_object({"apiVersion": "rollout.dev/v1alpha1", "kind": "Rollout"})


def models_of(kind):
    return [node for node in walk(build_tree(kind.model)) if isinstance(node, Object)]


def test_no_two_models_share_a_name():
    found = {}
    for kind in KINDS:
        for node in models_of(kind):
            fields = tuple(member.name for member in node.members)
            assert found.setdefault(node.name, fields) == fields


def test_every_union_member_is_optional_without_default():
    for model in OneOf.__subclasses__():
        for name in model.union_members():
            assert model.model_fields[name].get_default() is None, (model, name)
