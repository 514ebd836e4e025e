"""The combinations of a sweep are the same ones in the same order each time, and set what they say they set."""

import copy
import math

import pytest

from rollout_api.sweeps.points import TooFew, count_points, pick_points, plan_points
from rollout_api.sweeps.settable import NotSettable, find_settable, set_values
from rollout_api.v1alpha1.sweep import RUNS_MAX, SweepSpec

RATE = "train.optimizer.adamw.learningRate"
TEMPLATE = {
    "model": {"uri": "rollout://tiny-adder"},
    "train": {
        "algorithm": {"grpo": {"promptsPerStep": 32, "groupSize": 8}},
        "environment": {"builtin": {"name": "arithmetic"}},
        "rewards": [{"builtin": {"name": "exact-match"}}],
        "maxSteps": 400,
    },
}


def sweep(*parameters, **random):
    search = {"search": {"random": random}} if random else {}
    document = {"template": {"spec": TEMPLATE}, "parameters": list(parameters), **search}
    return SweepSpec.model_validate(document)


def test_a_grid_is_every_combination_the_last_fastest():
    spec = sweep(
        {"field": RATE, "values": ["1e-5", "1e-4"]}, {"field": "seed", "values": ["0", "1"]}
    )
    wanted = (("1e-5", "0"), ("1e-5", "1"), ("1e-4", "0"), ("1e-4", "1"))
    assert plan_points(spec) == wanted
    assert count_points(spec) == 4


def test_what_is_looked_at_before_has_every_value_once():
    spec = sweep(
        {"field": RATE, "values": ["1e-5", "1e-4"]},
        {"field": "seed", "values": [str(n) for n in range(32)]},
    )
    found = pick_points(spec)
    assert {one for one, _ in found} == {"1e-5", "1e-4"}
    assert {one for _, one in found} == {str(n) for n in range(32)}
    assert len(found) == 32


def test_a_grid_that_is_too_large_is_counted_and_not_built():
    spec = sweep(
        *(
            {"field": f"train.rewards[{n}].weight", "values": [str(v) for v in range(32)]}
            for n in range(8)
        )
    )
    assert count_points(spec) == 32**8
    assert len(plan_points(spec)) == RUNS_MAX


def test_the_same_seed_draws_the_same_and_another_seed_others():
    parameter = {"field": RATE, "range": {"low": "1e-6", "high": "1e-3", "scale": "Log"}}
    first = plan_points(sweep(parameter, samples=8, seed=1))
    assert first == plan_points(sweep(parameter, samples=8, seed=1))
    assert not set(first) & set(plan_points(sweep(parameter, samples=8, seed=2)))


def test_more_samples_keep_those_that_were_drawn_before():
    parameter = {"field": RATE, "range": {"low": "0", "high": "1"}}
    assert plan_points(sweep(parameter, samples=9))[:4] == plan_points(sweep(parameter, samples=4))


def test_draws_are_within_their_bounds_and_spread_over_orders_of_magnitude():
    parameter = {"field": RATE, "range": {"low": "1e-6", "high": "1e-3", "scale": "Log"}}
    found = [float(one) for (one,) in plan_points(sweep(parameter, samples=200))]
    assert all(1e-6 <= one <= 1e-3 for one in found)
    below = sum(math.log10(one) < -4.5 for one in found)
    assert 70 <= below <= 130


def test_whole_numbers_come_both_bounds_included():
    parameter = {"field": "train.maxStaleness", "range": {"low": "0", "high": "3"}}
    found = plan_points(sweep(parameter, samples=4))
    assert {one for (one,) in found} == {"0", "1", "2", "3"}


def test_all_of_a_small_set_are_drawn_and_no_more():
    parameter = {"field": "seed", "values": [str(n) for n in range(32)]}
    assert len(set(plan_points(sweep(parameter, samples=32)))) == 32
    with pytest.raises(TooFew):
        plan_points(sweep(parameter, samples=33))
    few = {"field": "train.maxStaleness", "range": {"low": "0", "high": "3"}}
    with pytest.raises(TooFew):
        plan_points(sweep(few, samples=5))


@pytest.mark.parametrize(
    ("path", "text", "value"),
    [
        (RATE, "1e-4", "1e-4"),
        ("seed", "-7", -7),
        ("train.maxSteps", "9", 9),
        ("train.oldLogprobs", "Actor", "Actor"),
        ("model.revision", "true", "true"),
        ("train.rewards[0].weight", "0.5", "0.5"),
        ("actors.preemptible", "true", True),
        ("preset", "dapo@v1", "dapo@v1"),
    ],
)
def test_a_value_is_of_the_form_of_its_field(path, text, value):
    field = find_settable(path)
    before = copy.deepcopy(TEMPLATE)
    here = set_values(TEMPLATE, {field: text})
    for step in field.steps:
        here = here[step]
    assert (here, type(here)) == (value, type(value))
    assert before == TEMPLATE


@pytest.mark.parametrize("text", ["one", "", "1.5", "1" * 40, "0x10", "١"])
def test_a_text_that_is_no_whole_number_is_refused(text):
    with pytest.raises(ValueError, match="whole number"):
        find_settable("seed").parse(text)


@pytest.mark.parametrize(
    "path",
    [
        "",
        ".",
        "train..maxSteps",
        "train.maxSteps.",
        "train.rewards",
        "train.rewards.weight",
        "train.rewards[0]",
        "train.rewards[99999].weight",
        "train.maxSteps[0]",
        "train[0].maxSteps",
        "env[0].valueFrom",
        "actors.labels.team",
        "metadata.name",
        "__class__",
        "model_fields",
        "max_steps",
        "train.maxSteps\n",
        "train.maxSteps; rm -rf /",
        "../../metadata",
    ],
)
def test_a_path_that_names_no_single_field_is_refused_with_what_to_write(path):
    with pytest.raises(NotSettable) as found:
        find_settable(path)
    assert found.value.fix
