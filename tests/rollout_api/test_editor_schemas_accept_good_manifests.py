"""The JSON Schema that editors use: what the models take, it takes; the common mistakes it marks."""

import json
from pathlib import Path

import jsonschema
import pytest
from ruamel.yaml import YAML

HERE = Path(__file__).parent
GENERATED = HERE.parents[1] / "crds" / "generated"
GOOD = sorted((HERE / "manifests" / "good").glob("*.yaml"))
SCHEMAS = sorted(GENERATED.glob("*.schema.json"))


@pytest.fixture(scope="module")
def validator():
    schema = json.loads((GENERATED / "rolloutrun.schema.json").read_text())
    return jsonschema.Draft202012Validator(schema)


@pytest.mark.parametrize("path", SCHEMAS, ids=lambda path: path.name)
def test_a_schema_is_a_schema(path):
    jsonschema.Draft202012Validator.check_schema(json.loads(path.read_text()))


@pytest.mark.parametrize("path", GOOD, ids=lambda path: path.stem)
def test_a_good_manifest_has_no_mark(path, validator):
    for document in YAML(typ="safe").load_all(path.read_text()):
        validator.validate(document)


@pytest.mark.parametrize(
    "train",
    [
        {"algorithm": {"grpo": {}, "sft": {}}},
        {"algorithm": {}},
        {"algorithm": {"grpo": {"groupsize": 8}}},
        {"algorithm": {"grpo": {"clipLow": "high"}}},
        {"algorithm": {"grpo": {"clipLow": 1.5}}},
        {"algorithm": {"grpo": {"aggregation": "Mean"}}},
        {"algorithm": {"sft": {}}, "maxSteps": 0},
        {},
    ],
)
def test_a_mistake_is_marked(train, validator):
    document = {
        "apiVersion": "rollout.dev/v1alpha1",
        "kind": "RolloutRun",
        "metadata": {"name": "a"},
        "spec": {"model": {"uri": "file:///m"}, "train": train},
    }
    assert not validator.is_valid(document)
