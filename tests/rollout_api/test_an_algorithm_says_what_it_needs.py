"""What stands in an algorithm's traits is what its settings have a field for."""

from functools import reduce
from typing import get_args

import pytest

from rollout_api.v1alpha1.common import ModelSource
from rollout_api.v1alpha1.training.algorithms import TRAITS, Algorithm

SETTINGS = {name: get_args(one.annotation)[0] for name, one in Algorithm.model_fields.items()}
PLAIN = {name: {} for name in SETTINGS} | {"distill": {"teacher": {"uri": "rollout://tiny-adder"}}}


def fields_of(model):
    for option in (model, *get_args(model)):
        if hasattr(option, "model_fields"):
            return option.model_fields
    raise AssertionError(model)


@pytest.mark.parametrize("name", TRAITS)
def test_every_algorithm_counts_its_step_by_fields_of_its_own(name) -> None:
    algorithm = Algorithm.model_validate({name: PLAIN[name]})
    sizes = {"prompts_per_step", "epochs", "mini_batches"}
    expected = sizes if algorithm.is_online else {"batch_size", "max_length"}
    assert expected <= set(SETTINGS[name].model_fields)
    assert algorithm.items_per_step > 0
    assert algorithm.num_samples > 0
    assert algorithm.traits.samples_min(algorithm.value) in (None, *range(1, 100))


@pytest.mark.parametrize("name", TRAITS)
def test_a_model_of_an_algorithms_own_is_a_field_of_its_settings(name) -> None:
    for path in TRAITS[name].models.values():
        *above, last = path
        holder = reduce(lambda model, key: fields_of(model)[key].annotation, above, SETTINGS[name])
        annotation = fields_of(holder)[last].annotation
        assert ModelSource in (annotation, *get_args(annotation))


@pytest.mark.parametrize("name", TRAITS)
def test_a_coefficient_that_loads_a_reference_is_a_field_of_the_settings(name) -> None:
    asked = TRAITS[name].reference == "KlCoefficient"
    assert not asked or "kl_coefficient" in SETTINGS[name].model_fields


def test_rewards_are_read_by_what_samples_and_margins_by_what_reads_pairs() -> None:
    for traits in TRAITS.values():
        assert traits.is_online or not traits.rewards
        assert traits.row == "pair" or not traits.margins
