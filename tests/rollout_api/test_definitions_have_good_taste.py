"""What a reviewer of Kubernetes APIs would look for, looked for in every generated definition."""

import json
import re
from functools import cache
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from rollout_api.v1alpha1.objects.kinds import KINDS

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "crds" / "generated").glob("*.yaml"))
SIZE_MAX = 262_144
LIVE = {"suspend", "limits", "snapshots", "evaluations", "tracking"}
DURATION = re.compile(r"(timeout|duration|period|interval|deadline|ttl)s?$", re.IGNORECASE)
CAMEL = re.compile(r"^[a-z][a-zA-Z0-9]*$")
WORD = re.compile(r"^[A-Z0-9][A-Za-z0-9]*$")
CONTROLLER = re.compile(r"^[a-z0-9-]+(\.[a-z0-9-]+)+/[a-z]+$")
"""Of controllers, as in ``managedBy`` of a Job: a domain of who makes it, and its name."""


@cache
def load(path):
    return YAML(typ="safe").load(path.read_text())


def version(path):
    return load(path)["spec"]["versions"][0]


def fields(schema, path=""):
    """Every field below a schema: its path, its name and its schema."""
    for name, inner in schema.get("properties", {}).items():
        yield f"{path}.{name}", name, inner
        yield from fields(inner, f"{path}.{name}")
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            yield from fields(schema[key], f"{path}[]")


def all_fields():
    for path in FILES:
        root = version(path)["schema"]["openAPIV3Schema"]
        for name in ("spec", "status"):
            yield from fields(root["properties"][name], f"{path.stem}.{name}")


def rules(schema, path=""):
    for rule in schema.get("x-kubernetes-validations", []):
        yield path, rule, schema
    for name, inner in schema.get("properties", {}).items():
        yield from rules(inner, f"{path}.{name}")
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            yield from rules(schema[key], f"{path}[{schema.get('x-kubernetes-list-type', 'map')}]")


def all_rules():
    for path in FILES:
        yield from rules(version(path)["schema"]["openAPIV3Schema"], path.stem)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_definition_fits_into_a_client_side_apply(path):
    assert len(path.read_bytes()) < SIZE_MAX
    assert len(json.dumps(load(path))) < SIZE_MAX


def test_there_is_one_definition_per_kind():
    assert {path.stem for path in FILES} == {kind.plural for kind in KINDS}


def test_names_follow_the_design():
    found = {
        names["kind"]: (names["shortNames"], names["categories"], spec["scope"])
        for spec in (load(path)["spec"] for path in FILES)
        for names in [spec["names"]]
    }
    assert found == {
        "RolloutRun": (["rrun"], ["rollout"], "Namespaced"),
        "RolloutSnapshot": (["rsnap"], ["rollout"], "Namespaced"),
        "RolloutEndpoint": (["rend"], ["rollout"], "Namespaced"),
        "RolloutSweep": (["rsweep"], ["rollout"], "Namespaced"),
        "RolloutRuntime": (["rrt"], ["rollout"], "Namespaced"),
        "ClusterRolloutRuntime": (["crrt"], ["rollout"], "Cluster"),
    }


def test_there_is_no_phase():
    assert [path for path, name, _ in all_fields() if name in ("phase", "state")] == []


def test_field_names_are_camel_case():
    assert [path for path, name, _ in all_fields() if not CAMEL.match(name)] == []


def test_durations_carry_their_unit():
    assert [path for path, name, _ in all_fields() if DURATION.search(name)] == []
    for path, name, schema in all_fields():
        if name.endswith("Seconds"):
            assert schema["type"] == "integer", path


def test_enumerations_are_words():
    for path, name, schema in all_fields():
        form = CONTROLLER if name == "managedBy" else WORD
        for word in schema.get("enum", []):
            assert form.match(word), (path, word)


def test_every_field_is_documented():
    assert [path for path, _, schema in all_fields() if not schema.get("description")] == []


def test_documentation_is_a_sentence_and_names_no_python():
    for path, _, schema in all_fields():
        text = schema["description"]
        assert text.endswith("."), (path, text)
        assert not re.search(r"`[a-z]+_[a-z_]+`", text), (path, text)


def test_status_has_no_defaults():
    assert [path for path, _, item in all_fields() if ".status" in path and "default" in item] == []


def test_unions_have_no_default_and_no_discriminator():
    for path, rule, schema in all_rules():
        members = re.findall(r"has\(self\.(\w+)\)", rule["rule"])
        if "exists_one" in rule["rule"]:
            assert "type" not in members, path
            assert not any("default" in schema["properties"][name] for name in members), path
            assert rule["message"] == f"exactly one of {', '.join(members)} must be set"


def assert_exists(schema, place, what):
    """Every field of a dotted place, as far as the schema is one of objects with known fields."""
    for name in place.split(".")[1:]:
        if name == "metadata" or "properties" not in schema:
            return
        assert name in schema["properties"], what
        schema = schema["properties"][name]


def test_rules_name_fields_that_exist():
    for path, rule, schema in all_rules():
        for name in re.findall(r"(?:self|oldSelf)\.(\w+)", rule["rule"]):
            assert name in schema["properties"], (path, rule)
        for place in [
            rule.get("fieldPath", ""),
            *re.findall(r"[sS]elf((?:\.\w+)+)(?![\w(])", rule["rule"]),
        ]:
            assert_exists(schema, place, (path, rule))


def test_optional_fields_are_asked_for_before_they_are_read():
    for path, rule, schema in all_rules():
        for name in re.findall(r"self\.(\w+)", rule["rule"]):
            if name not in schema.get("required", []) and name != "metadata":
                assert f"has(self.{name})" in rule["rule"], (path, rule)


def test_rules_about_changes_stand_where_old_and_new_can_be_paired():
    for path, rule, _ in all_rules():
        if "oldSelf" in rule["rule"]:
            assert "[" not in path, (path, rule)


def test_what_is_immutable_has_a_rule():
    texts = {
        (path, rule.get("fieldPath")) for path, rule, _ in all_rules() if "oldSelf" in rule["rule"]
    }
    for field in (".seed", ".numerics", ".storage", ".managedBy"):
        assert ("rolloutruns.spec", field) in texts
    for field in (".algorithm", ".oldLogprobs", ".maxSteps"):
        assert ("rolloutruns.spec.train", field) in texts


def test_every_setting_is_live_or_immutable_or_settled_while_the_run_has_pods():
    root = version(ROOT / "crds/generated/rolloutruns.yaml")["schema"]["openAPIV3Schema"]
    spec = root["properties"]["spec"]["properties"]
    settled = {
        r["fieldPath"]: r["rule"] for r in root["x-kubernetes-validations"] if "fieldPath" in r
    }

    for name in spec:
        has_rule = f".spec.{name}" in settled
        assert has_rule != (name in LIVE | {"seed", "numerics", "storage", "managedBy"}), name
    for parent, live in (("train", {"maxSteps"}), ("actors", {"replicas", "autoscale"})):
        for name in spec[parent]["properties"]:
            named = f"has(self.spec.{parent}.{name})" in settled[f".spec.{parent}"]
            assert named != (name in live | {"algorithm", "oldLogprobs"}), name


def test_messages_are_one_line():
    for path, rule, _ in all_rules():
        assert 0 < len(rule["message"]) < 200, path
        assert "\n" not in rule["message"] + rule["rule"], path


def test_lists_of_rules_over_reals_stay_within_the_cost_limit():
    """A rule below nested lists runs once an entry: the product of their maxima bounds its cost."""

    def count(schema, times):
        here = len(schema.get("x-kubernetes-validations", [])) * times
        below = sum(count(inner, times) for inner in schema.get("properties", {}).values())
        if isinstance(items := schema.get("items"), dict):
            below += count(items, times * schema["maxItems"])
        if isinstance(values := schema.get("additionalProperties"), dict):
            below += count(values, times * schema["maxProperties"])
        return here + below

    for path in FILES:
        assert count(version(path)["schema"]["openAPIV3Schema"], 1) < 100_000, path


def test_names_of_children_are_kept_short_at_the_root():
    root = version(ROOT / "crds/generated/rolloutruns.yaml")["schema"]["openAPIV3Schema"]

    assert [rule["rule"] for rule in root["x-kubernetes-validations"]][:2] == [
        "size(self.metadata.name) <= 40",
        "self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",
    ]


def test_kubectl_shows_and_scales_a_run():
    run = version(ROOT / "crds/generated/rolloutruns.yaml")
    columns = [(c["name"], c.get("priority", 0)) for c in run["additionalPrinterColumns"]]

    assert [name for name, wide in columns if not wide] == [
        "Ready",
        "Reason",
        "Step",
        "Reward",
        "Actors",
        "Learners",
        "Age",
    ]
    wide = ["Actors-Wanted", "Learners-Wanted", "Tok/s", "Version", "Snapshot", "Queue"]
    assert [name for name, is_wide in columns if is_wide] == wide
    assert run["subresources"] == {
        "status": {},
        "scale": {
            "specReplicasPath": ".spec.actors.replicas",
            "statusReplicasPath": ".status.actors.replicas",
            "labelSelectorPath": ".status.selector",
        },
    }


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_paths_of_columns_and_scale_exist(path):
    root = version(path)["schema"]["openAPIV3Schema"]
    paths = [column["jsonPath"] for column in version(path)["additionalPrinterColumns"]]
    paths += version(path)["subresources"].get("scale", {}).values()
    for place in paths:
        schema = root
        for name in place.split("[")[0].strip(".").split("."):
            if name == "metadata":
                break
            schema = schema["properties"][name]


def test_scaling_works_before_anybody_wrote_actors():
    spec = version(ROOT / "crds/generated/rolloutruns.yaml")["schema"]["openAPIV3Schema"]
    actors = spec["properties"]["spec"]["properties"]["actors"]

    assert actors["default"] == {}
    assert actors["properties"]["replicas"]["default"] == 1
