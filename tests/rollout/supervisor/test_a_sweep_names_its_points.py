"""From ``--over`` and ``--seeds`` to points: values, combinations, names that stay what they are."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollout.errors import SpecError
from rollout.runs.manifest import load_documents
from rollout.runs.validation import validate_documents
from rollout.supervisor.sweeps.points import (
    NAME_MAX,
    Axis,
    name_point,
    parse_axis,
    plan_points,
    seed_axis,
)

MANIFEST = """
apiVersion: rollout.dev/v1alpha1
kind: RolloutRun
metadata: {name: sums}
spec:
  seed: 5
  model: {uri: "rollout://tiny-adder"}
  train:
    algorithm: {grpo: {promptsPerStep: 4, groupSize: 4}}
    environment: {builtin: {name: arithmetic}}
    rewards: [{python: {path: mine.py, function: mine}}]
    maxSteps: 2
"""
RATE = "train.optimizer.adamw.learningRate"


@pytest.fixture
def document(tmp_path):
    (tmp_path / "mine.py").write_text("def mine(p, c, r): return [0.0] * len(c)\n")
    (tmp_path / "sums.yaml").write_text(MANIFEST)
    return load_documents(tmp_path / "sums.yaml")[0]


@pytest.mark.parametrize(
    ("item", "values"),
    [
        ("a.b=1,2", (1, 2)),
        ("a= x , y ", ("x", "y")),
        ("a=1e-4,0.5", (1e-4, 0.5)),
        ("a=[1, 2],[3]", ([1, 2], [3])),
        ('a="p,q",r', ("p,q", "r")),
        ("a={sgd: {momentum: 0}},{adamw: {}}", ({"sgd": {"momentum": 0}}, {"adamw": {}})),
        ("a=true,false", (True, False)),
        ("a=1,1,2", (1, 2)),
    ],
)
def test_values_are_yaml_and_commas_inside_brackets_belong_to_them(item, values):
    assert parse_axis(item).values == values


@pytest.mark.parametrize("item", ["a.b", "a.b=", "=1,2", "a=,"])
def test_an_axis_without_values_is_refused_with_an_example(item):
    with pytest.raises(SpecError, match=r"expected path=value,value, such as"):
        parse_axis(item)


def test_points_are_every_combination_the_last_axis_fastest(document):
    points = plan_points(document, [parse_axis(f"{RATE}=1e-4,3e-4"), seed_axis(document, 2)])

    assert [tuple(point.settings.values()) for point in points] == [
        (1e-4, 5),
        (1e-4, 6),
        (3e-4, 5),
        (3e-4, 6),
    ]
    assert [point.name for point in points] == [
        "sums-learningrate-1e-4-seed-5",
        "sums-learningrate-1e-4-seed-6",
        "sums-learningrate-3e-4-seed-5",
        "sums-learningrate-3e-4-seed-6",
    ]
    assert points[3].document.data["metadata"]["name"] == points[3].name
    assert points[3].document.data["spec"]["train"]["optimizer"]["adamw"]["learningRate"] == 3e-4


def test_a_point_may_lie_anywhere_its_paths_are_absolute(document, tmp_path):
    [first, *_] = plan_points(document, [seed_axis(document, 2)])

    assert first.document.data["spec"]["train"]["rewards"][0]["python"]["path"] == str(
        tmp_path / "mine.py"
    )
    assert document.data["spec"]["train"]["rewards"][0]["python"]["path"] == "mine.py"


def test_widening_a_sweep_keeps_the_names_of_its_points(document):
    narrow = plan_points(document, [parse_axis(f"{RATE}=1e-4,3e-4")])
    wide = plan_points(document, [parse_axis(f"{RATE}=3e-5,1e-4,3e-4")])

    assert {point.name for point in narrow} < {point.name for point in wide}


def test_a_point_that_is_not_valid_is_named_before_anything_starts(document):
    with pytest.raises(SpecError, match=r"(?s)point sums-groupsize-1: .*groupSize"):
        plan_points(document, [parse_axis("train.algorithm.grpo.groupSize=4,1")])


def test_a_field_given_twice_is_refused(document):
    with pytest.raises(SpecError, match="given twice"):
        plan_points(document, [parse_axis("seed=1,2"), parse_axis("seed=3")])


def test_a_grid_without_end_is_refused(document):
    axes = [Axis(path=f"a{n}", values=tuple(range(11)), texts=("x",) * 11) for n in range(3)]

    with pytest.raises(SpecError, match="11 x 11 x 11 = 1331 points; at most 1000"):
        plan_points(document, axes)


def test_equal_looking_values_and_leaves_get_digests(document):
    same = parse_axis("model.dtype=A.B,a-b")
    leaves = [parse_axis("a.rate=1,2"), parse_axis("b.rate=1,2")]

    names = {name_point("x", [(same, text)]) for text in same.texts}
    names |= {
        name_point("x", list(zip(leaves, texts, strict=True))) for texts in ("11", "12", "21")
    }

    assert len(names) == 5


@given(
    st.text("ab-0", min_size=1, max_size=80).filter(lambda s: s[0] != "-"),
    st.text(min_size=1, max_size=90).filter(lambda s: "," not in s),
)
def test_every_name_is_one_that_a_cluster_takes(stem, text):
    name = name_point(
        stem.strip("-") or "a", [(Axis(path="a.b", values=(1,), texts=(text,)), text)]
    )

    assert len(name) <= NAME_MAX
    assert name[0] != "-"
    assert name[-1] not in "-."
    assert set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789-.")


def test_names_are_taken_by_the_api(document):
    points = plan_points(document, [parse_axis(f"{RATE}=0.1,1e-4")])

    assert validate_documents([point.document for point in points]) == []
