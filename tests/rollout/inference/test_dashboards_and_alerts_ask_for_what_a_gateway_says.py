"""Dashboards and alerts of endpoints and engines: each selector names series and labels of a gateway's own page."""

import json
import re
from pathlib import Path

import pytest
import yaml

from rollout.inference.gateway.metrics import GatewayMetrics

ROOT = Path(__file__).parents[3]
FILES = ROOT / "charts" / "rollout" / "files"
OF_TARGETS = {"namespace", "pod"}
"""Labels that Prometheus adds to whatever it scrapes from a pod."""
SELECTOR = re.compile(r"(rollout_[a-z_]+)(?:\{([^}]*)\})?")


def series():
    """Names and labels of every series of a page on which everything has been counted once."""
    found = {}
    for family in GatewayMetrics()._registry._collector_to_names:
        for metric in family.collect():
            labels = set(family._labelnames)
            ends = {
                "counter": ("_total",),
                "histogram": ("_bucket", "_sum", "_count"),
                "gauge": ("",),
            }
            for end in ends[metric.type]:
                found[metric.name + end] = labels | ({"le"} if end == "_bucket" else set())
    return found


def alerts():
    groups = {
        one["name"]: one["rules"]
        for one in yaml.safe_load((FILES / "alerts.yaml").read_text())["groups"]
    }
    return groups["rollout-endpoints"]


def panels():
    boards = (FILES / "dashboards" / f"{name}.json" for name in ("endpoints", "engines"))
    return [panel for board in boards for panel in json.loads(board.read_text())["panels"]]


def check(expression):
    known = series()
    asked = SELECTOR.findall(expression)
    assert asked, expression
    grouped = {
        label.strip()
        for part in re.findall(r"(?:by|on) \(([^)]*)\)", expression)
        for label in part.split(",")
    }
    for name, matchers in asked:
        labels = known[name] | OF_TARGETS
        assert set(re.findall(r"(\w+)\s*(?:=|!)", matchers)) <= labels, (name, matchers)
    everything = set().union(*(known[name] for name, _ in asked)) | OF_TARGETS
    assert grouped <= everything, expression


@pytest.mark.parametrize("panel", panels(), ids=lambda one: one["title"])
def test_a_panel_asks_for_series_and_labels_that_there_are_and_has_unit_and_words(panel):
    for target in panel["targets"]:
        check(target["expr"])
        assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= set(
            re.findall(r"\w+", target["expr"])
        )
    assert panel["fieldConfig"]["defaults"]["unit"]
    assert panel["description"]


def test_every_series_of_a_gateway_is_shown():
    shown = "".join(target["expr"] for panel in panels() for target in panel["targets"])
    families = {re.sub(r"_(bucket|sum|count|total)$", "", name) for name in series()}
    assert {name for name in families if name not in shown} == set()


@pytest.mark.parametrize("alert", alerts(), ids=lambda one: one["alert"])
def test_an_alert_asks_for_series_that_there_are(alert):
    check(alert["expr"])
    assert alert["for"]
    assert alert["labels"]["severity"] in {"warning", "critical"}
