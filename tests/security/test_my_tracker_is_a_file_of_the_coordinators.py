"""The attacker's wish: a tracker whose address is a file or database that the coordinator may write, such as its ledger."""

import pytest
from author_runs import build_config, write_environment

from rollout.coordinator.build import ConfigResolver
from rollout.errors import SpecError
from rollout_api.checks import check_document
from rollout_api.checks.facts import Facts
from rollout_api.fields.live import LiveSettings
from rollout_api.problems import Severity
from rollout_api.v1alpha1.operations import Tracking
from rollout_api.worker import Authentication

PLACES = [
    "sqlite:////var/lib/rollout/ledger.db",
    "file:///var/cache/rollout",
    "/var/cache/rollout",
    "postgresql://db.platform/mlflow",
    "databricks://profile",
    "HTTP+unix://%2Fsocket",
]
ACCOUNTS = Authentication(issuer="https://issuer", jwks_file="/keys", accounts={})


def run_that_tracks(uri):
    return {
        "apiVersion": "rollout.dev/v1alpha1",
        "kind": "RolloutRun",
        "metadata": {"name": "run"},
        "spec": {
            "model": {"uri": "rollout://tiny-adder"},
            "train": {
                "algorithm": {"grpo": {"promptsPerStep": 2, "groupSize": 2}},
                "environment": {"builtin": {"name": "arithmetic"}},
                "rewards": [{"builtin": {"name": "exact-match"}}],
                "maxSteps": 1,
            },
            "tracking": [{"jsonl": {}}, {"mlflow": {"uri": uri}}],
        },
    }


def refusals(uri, platform):
    found = check_document(run_that_tracks(uri), Facts(platform=platform))
    return [one for one in found if one.severity is Severity.error]


@pytest.mark.parametrize("uri", PLACES)
def test_a_run_of_a_cluster_begins_with_it(uri):
    (found,) = refusals(uri, "cluster")
    assert (found.field, found.reason) == ("spec.tracking[1].mlflow.uri", "NotSupported")
    assert found.fix


@pytest.mark.parametrize("uri", PLACES)
def test_a_living_run_is_given_it(uri, tmp_path):
    config = build_config(write_environment(tmp_path, "return []"))
    resolver = ConfigResolver(
        config=config.model_copy(update={"authentication": ACCOUNTS}), rows=None
    )
    asked = Tracking.model_validate({"mlflow": {"uri": uri}})
    with pytest.raises(SpecError, match=r"tracking\[0\]\.mlflow\.uri"):
        resolver.trackers(LiveSettings(tracking=(asked,)))
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


def test_an_honest_server_is_one_everywhere_and_a_file_is_on_ones_own_machine():
    assert not refusals("https://mlflow.example:5000", "cluster")
    assert not refusals("http://mlflow:5000", "cluster")
    assert not refusals("sqlite:////home/me/mlflow.db", "local")
