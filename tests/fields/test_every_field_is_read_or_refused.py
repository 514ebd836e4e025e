"""A field of the API is there because something reads it: changed alone, it changes what some part does."""

import pytest
from leaves import fields_of
from table import PAGE, render


@pytest.mark.process
def test_every_field_of_runs_and_runtimes_has_a_reader_or_is_refused(readings):
    assert [one.problem for one in readings if one.problem] == []


@pytest.mark.process
def test_the_reference_page_names_the_readers(readings):
    assert PAGE.read_text() == render(readings), "run python tests/fields/table.py"


def test_runtimes_of_the_cluster_have_the_fields_of_a_namespaces_and_say_whom_they_serve():
    own, wide = (
        {(one.path, str(one.node)) for one in fields_of(kind) if one.path.startswith("spec.")}
        for kind in ("RolloutRuntime", "ClusterRolloutRuntime")
    )
    assert own < wide
    assert {path.split(".")[1] for path, _ in wide - own} == {"allowedNamespaces"}


@pytest.mark.process
def test_a_field_that_is_refused_says_so_where_kubectl_explains_it(readings):
    refused = [one.field for one in readings if one.consumer == "refused"]
    silent = [one.path for one in refused if not any("refuse" in said for said in one.told)]
    assert silent == [], f"say in the description of each that it is refused, and when: {silent}"
