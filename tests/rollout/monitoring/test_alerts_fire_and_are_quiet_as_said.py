"""Each alert of the chart has a firing and a quiet case, which promtool runs, and a runbook."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from prometheus_kit import tool

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
ALERTS = ROOT / "charts" / "rollout" / "files" / "alerts.yaml"
CASES = {
    "rollout-operator": HERE / "alerts_of_the_operator.yaml",
    "rollout-endpoints": HERE / "alerts_of_endpoints.yaml",
}
RUNBOOKS = (ROOT / "docs" / "how-to" / "act-on-alerts.md").read_text()


def groups():
    found = yaml.safe_load(ALERTS.read_text())["groups"]
    return {one["name"]: one["rules"] for one in found}


def test_every_alert_has_cases():
    assert set(groups()) == set(CASES)
    for name, rules in groups().items():
        cased = set(re.findall(r"Rollout[A-Z][A-Za-z]+", CASES[name].read_text()))
        assert {one["alert"] for one in rules} == cased


@pytest.mark.parametrize(
    "alert", [one for rules in groups().values() for one in rules], ids=lambda one: one["alert"]
)
def test_an_alert_has_a_runbook(alert):
    assert f"## {alert['alert']}\n" in RUNBOOKS
    assert "docs/how-to/act-on-alerts.md" in alert["annotations"]["description"]


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.parametrize("name", CASES)
def test_alerts_fire_and_are_quiet_as_their_cases_say(name, tmp_path):
    promtool = tool("promtool")
    shutil.copy(ALERTS, tmp_path / "alerts.yaml")
    shutil.copy(CASES[name], tmp_path / "cases.yaml")
    for command in (("check", "rules", "alerts.yaml"), ("test", "rules", "cases.yaml")):
        done = subprocess.run(
            [promtool, *command], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
