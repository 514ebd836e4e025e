"""What Prometheus reads: names that dashboards and alerts rely on, few series, none of a run that is gone."""

import re
from collections import Counter
from pathlib import Path

import pytest
import yaml

from rollout_api.conditions import Reason
from rollout_operator.metrics import build_metrics, watch_gauges

NAMES = {
    "rollout_reconcile_total",
    "rollout_reconcile_duration_seconds",
    "rollout_queue_depth",
    "rollout_queue_latency_seconds",
    "rollout_api_requests_total",
    "rollout_watch_age_seconds",
    "rollout_leader",
    "rollout_runs",
    "rollout_snapshot_duration_seconds",
    "rollout_snapshot_bytes",
}
LABELS = {"result", "verb", "code", "resource", "reason", "le"}
"""Every label has a short list of values: none is the name of a run or of a namespace."""


def build(reasons):
    metrics = build_metrics()
    metrics.reconciles.labels(result="success").inc()
    metrics.count_request("apply", 200)
    watch_gauges(
        metrics,
        queue_depth=lambda: 3,
        leading=lambda: True,
        ages=lambda: {"pods": 1.5},
        reasons=lambda: Counter(reasons),
    )
    return metrics


def series(metrics):
    lines = metrics.render().decode().splitlines()
    return {line.rsplit(" ", 1)[0]: line.rsplit(" ", 1)[1] for line in lines if line[0] != "#"}


def test_every_name_is_there():
    found = series(build(["Running"]))
    shown = {name.partition("{")[0] for name in found}
    for name in NAMES:
        assert any(one == name or one.startswith(f"{name}_") for one in shown), name
    assert found['rollout_watch_age_seconds{resource="pods"}'] == "1.5"
    assert found["rollout_leader"] == "1.0"


def test_labels_are_few_and_never_name_a_run():
    names = {
        part.partition("=")[0]
        for one in series(build(["Running"]))
        if "{" in one
        for part in one.partition("{")[2].rstrip("}").split(",")
    }
    assert names <= LABELS


def test_a_run_that_is_gone_leaves_no_series():
    reasons = ["Running", "Running", "NoStorageClass"]
    metrics = build(reasons)
    assert series(metrics)['rollout_runs{reason="Running"}'] == "2.0"
    reasons[:] = ["Running"]
    found = series(metrics)
    assert found['rollout_runs{reason="Running"}'] == "1.0"
    assert 'rollout_runs{reason="NoStorageClass"}' not in found


ALERTS = Path(__file__).parents[2] / "charts" / "rollout" / "files" / "alerts.yaml"


def alerts():
    groups = {one["name"]: one["rules"] for one in yaml.safe_load(ALERTS.read_text())["groups"]}
    return groups["rollout-operator"]


@pytest.mark.parametrize("alert", alerts(), ids=lambda one: one["alert"])
def test_an_alert_asks_for_series_that_there_are_and_says_what_to_do(alert):
    asked = set(re.findall(r"rollout_[a-z_]+", alert["expr"]))
    assert asked and {name.removesuffix("_bucket") for name in asked} <= NAMES
    reasons = re.findall(r'reason=~"([^"]+)"', alert["expr"])
    assert {word for found in reasons for word in found.split("|")} <= {one.value for one in Reason}
    assert len(alert["annotations"]["description"].split()) > 8
    assert alert["labels"]["severity"] in {"warning", "critical"}
    assert alert["for"]
