"""Whatever model is written in the API's types, its lowering is structural, bounded and stable."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import Field, create_model
from ruamel.yaml import YAML

from rollout_api.base import ApiModel, Label, Name, OneOf, Real, filled, many
from rollout_api.generate.crd import build_crd, to_yaml
from rollout_api.generate.editor import build_schema, to_json
from rollout_api.generate.structural import lower
from rollout_api.generate.tree import build_tree
from rollout_api.v1alpha1.objects.kinds import KINDS
from rollout_api.v1alpha1.pods.pods import LabelKey, Quantity

SCALARS = st.sampled_from(
    [
        (Name, {}),
        (Label | None, {"default": None}),
        (Quantity, {"default": "1Gi"}),
        (bool, {"default": False}),
        (int, {"ge": 0, "le": 10}),
        (int | None, {"default": None, "ge": -(2**63), "le": 2**63 - 1}),
        (Real, {"default": 0.5, "ge": 0, "le": 1}),
        (Real | None, {"default": None, "gt": 0}),
        (dict[LabelKey, Name], {"default_factory": dict, "max_length": 3}),
    ]
)


def model_from(fields, base=ApiModel):
    made = {}
    for index, (annotation, options) in enumerate(fields):
        extra = options if not isinstance(options, dict) else Field(**options)
        made[f"field_{index}"] = (annotation, extra)
    return create_model("Drawn", __base__=base, **made)


def nested(inner):
    return st.lists(inner, min_size=1, max_size=4).flatmap(
        lambda fields: st.sampled_from(
            [
                (model_from(fields), {}),
                (model_from(fields) | None, {"default": None}),
                (tuple[model_from(fields), ...], many(5)),
                (model_from([(kind, options) for kind, options in fields]), filled(...)),
            ]
        )
    )


MODELS = st.lists(st.recursive(SCALARS, nested, max_leaves=8), min_size=1, max_size=5).map(
    model_from
)


def schemas(schema):
    """Every schema below, with the key it stands under."""
    yield schema
    for inner in schema.get("properties", {}).values():
        yield from schemas(inner)
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            yield from schemas(schema[key])


def assert_structural(schema):
    for each in schemas(schema):
        assert "$ref" not in each
        assert "nullable" not in each
        assert each.get("type") != "number"
        if each.get("x-kubernetes-int-or-string"):
            assert each["anyOf"] == [{"type": "integer"}, {"type": "string"}]
            assert "type" not in each
        else:
            assert "anyOf" not in each
            assert each["type"] in ("object", "array", "string", "integer", "boolean")
        if each.get("type") == "array":
            assert each["maxItems"] > 0
            assert each["x-kubernetes-list-type"] in ("atomic", "map", "set")
        if each.get("type") == "string":
            assert "enum" in each or each.get("format") == "date-time" or each["maxLength"] > 0
        if "additionalProperties" in each:
            assert each["maxProperties"] > 0
            assert "properties" not in each


@settings(max_examples=30)
@given(MODELS)
def test_any_model_lowers_to_a_structural_schema(model):
    assert_structural(lower(build_tree(model)))


@settings(max_examples=30)
@given(MODELS)
def test_lowering_twice_gives_the_same_text(model):
    first, second = (to_yaml(lower(build_tree(model))) for _ in range(2))

    assert first == second


@settings(max_examples=30)
@given(MODELS)
def test_the_text_reads_back_as_the_schema(model):
    schema = lower(build_tree(model))

    assert YAML(typ="safe").load(to_yaml(schema)) == schema


@settings(max_examples=30)
@given(MODELS)
def test_a_lowered_schema_names_the_fields_of_the_model(model):
    names = {field.alias for field in model.model_fields.values()}

    assert set(lower(build_tree(model))["properties"]) == names


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_our_kinds_lower_to_structural_schemas(kind):
    root = build_crd(kind)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]

    assert root["properties"]["metadata"] == {"type": "object"}
    for name in ("spec", "status"):
        assert_structural(root["properties"][name])


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_an_editor_schema_is_the_same_every_time(kind):
    first, second = (
        to_json(build_schema(build_tree(kind.model), title=kind.name)) for _ in range(2)
    )

    assert first == second


def test_a_union_becomes_one_rule_that_names_its_members():
    class Choice(OneOf):
        """A choice."""

        first_way: Name | None = None
        second_way: int | None = None

    assert lower(build_tree(Choice))["x-kubernetes-validations"] == [
        {
            "rule": "[has(self.firstWay), has(self.secondWay)].exists_one(x, x)",
            "message": "exactly one of firstWay, secondWay must be set",
        }
    ]


def test_a_default_that_a_preset_may_override_is_left_to_the_preset():
    class Knobs(ApiModel):
        """Knobs."""

        ours: int = Field(default=1, ge=0, le=5)
        presets: int = filled(2, ge=0, le=5)

    properties = lower(build_tree(Knobs))["properties"]

    assert properties["ours"]["default"] == 1
    assert "default" not in properties["presets"]


def test_the_range_of_a_real_becomes_a_rule():
    class Knobs(ApiModel):
        """Knobs."""

        share: Real = Field(ge=0, lt=1)

    (rule,) = lower(build_tree(Knobs))["properties"]["share"]["x-kubernetes-validations"]

    assert rule == {
        "rule": "double(self) >= 0.0 && double(self) < 1.0",
        "message": "must be at least 0 and below 1",
    }


@pytest.mark.parametrize("annotation", [str, tuple[Name, ...], dict[LabelKey, Name]])
def test_something_without_a_bound_cannot_be_lowered(annotation):
    model = create_model("Unbounded", __base__=ApiModel, field=(annotation, ...))

    with pytest.raises(ValueError, match="needs a maximum"):
        lower(build_tree(model))


def test_a_float_has_no_place_in_the_api():
    model = create_model("Floating", __base__=ApiModel, field=(float, ...))

    with pytest.raises(TypeError, match="no place for <class 'float'>"):
        build_tree(model)
