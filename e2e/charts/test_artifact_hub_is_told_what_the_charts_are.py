"""The annotations of Chart.yaml say what is in the charts, and their example is taken. No cluster needed."""

from pathlib import Path

import pytest
import yaml

import charts
from rollout_api.problems import Severity
from rollout_operator.webhook.review import find_problems

pytestmark = pytest.mark.control_plane


def annotations(chart: Path) -> dict[str, str]:
    found = yaml.safe_load((chart / "Chart.yaml").read_text())["annotations"]
    return {name.removeprefix("artifacthub.io/"): value for name, value in found.items()}


@pytest.mark.parametrize("chart", [charts.CHART, charts.CRDS_CHART], ids=lambda path: path.name)
def test_a_chart_has_a_category_and_a_licence(chart: Path):
    found = annotations(chart)
    assert found["category"] == "ai-machine-learning"
    assert found["license"] == "MIT"
    assert (found.get("operator") == "true") == (chart == charts.CHART)


def test_each_definition_is_listed():
    listed = yaml.safe_load(annotations(charts.CRDS_CHART)["crds"])
    made = charts.objects(charts.render(charts.CRDS_CHART))
    assert {(one["name"], one["kind"], one["version"]) for one in listed} == {
        (one["metadata"]["name"], one["spec"]["names"]["kind"], version["name"])
        for one in made
        for version in one["spec"]["versions"]
    }


def test_the_example_is_taken():
    [example] = yaml.safe_load(annotations(charts.CRDS_CHART)["crdsExamples"])
    problems = find_problems(example)
    assert [str(one) for one in problems if one.severity is Severity.error] == []
