"""A field of the API is there because something reads it: changed alone, it changes what some part does."""

import pytest
from table import PAGE, render

from rollout_api.v1alpha1.runtime import ClusterRolloutRuntime, RolloutRuntime


@pytest.mark.process
def test_every_field_of_runs_and_runtimes_has_a_reader_or_is_refused(readings):
    assert [one.problem for one in readings if one.problem] == []


@pytest.mark.process
def test_the_reference_page_names_the_readers(readings):
    assert PAGE.read_text() == render(readings), "run python tests/fields/table.py"


def test_runtimes_of_both_kinds_have_the_same_fields():
    specs = [
        kind.model_fields["spec"].annotation for kind in (RolloutRuntime, ClusterRolloutRuntime)
    ]
    assert specs[0] is specs[1]
