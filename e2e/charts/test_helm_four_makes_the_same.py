"""Helm 4 takes the charts as Helm 3 does, and makes the same objects of them, be it in another order."""

from typing import Any

import pytest
from renders import MODES

import charts
from cluster import pins

pytestmark = [pytest.mark.control_plane, pytest.mark.slow]

[HELM_4] = pins.HELM_4


def keyed(text: str) -> dict[tuple[str, str, str], dict[str, Any]]:
    found = charts.objects(text)
    by_place = {
        (one["kind"], one["metadata"].get("namespace", ""), one["metadata"]["name"]): one
        for one in found
    }
    assert len(by_place) == len(found)
    return by_place


@pytest.mark.parametrize("chart", [charts.CHART, charts.CRDS_CHART], ids=lambda path: path.name)
def test_it_finds_no_fault_with_the_charts(chart):
    done = charts.helm("lint", "--strict", str(chart), binary=HELM_4)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("mode", MODES)
def test_it_makes_the_same_objects(mode):
    made = [keyed(charts.render(values=MODES[mode], binary=one)) for one in ("helm", HELM_4)]
    assert made[0] == made[1]


def test_it_refuses_the_same_values():
    done = charts.helm(
        "template", "rollout", str(charts.CHART), "--set", "operator.replica=3", binary=HELM_4
    )
    assert done.returncode != 0
    assert "replica" in done.stderr
