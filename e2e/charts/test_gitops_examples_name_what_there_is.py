"""The examples for Argo CD and Flux: their charts are there, take their values, and make what is left out of a diff.

Neither tool runs here, Flux does in e2e/gitops (slow); the fields of its objects are those of its own definitions.
"""

from pathlib import Path
from typing import Any

import pytest
import yaml

import charts
from cluster.paths import REPOSITORY

pytestmark = pytest.mark.control_plane

Manifest = dict[str, Any]
FOLDER = REPOSITORY / "manifests" / "gitops"


def read(name: str, kind: str) -> dict[str, Manifest]:
    found = yaml.safe_load_all((FOLDER / name).read_text())
    return {one["metadata"]["name"]: one["spec"] for one in found if one["kind"] == kind}


ARGO = {
    name: (spec["source"]["path"], spec["source"].get("helm", {}).get("valuesObject", {}))
    for name, spec in read("argocd.yaml", "Application").items()
}
FLUX = {
    name: (spec["chart"]["spec"]["chart"], spec["values"])
    for name, spec in read("flux.yaml", "HelmRelease").items()
}


@pytest.mark.parametrize(("path", "values"), [*ARGO.values(), *FLUX.values()], ids=[*ARGO, *FLUX])
def test_each_chart_is_there_and_takes_the_values(path: str, values: Manifest):
    assert (REPOSITORY / path / "Chart.yaml").is_file()
    served = ("monitoring.coreos.com/v1/ServiceMonitor",)
    made = charts.objects(charts.render(Path(REPOSITORY / path), values, served=served))
    assert made
    images = [
        container["image"]
        for one in made
        if one["kind"] == "Deployment"
        for container in one["spec"]["template"]["spec"]["containers"]
    ]
    assert all(image.startswith("registry.example.com/") for image in images)


def rendered() -> set[tuple[str, str]]:
    return {(one["kind"], one["metadata"]["name"]) for one in charts.objects(charts.render())}


def test_argo_leaves_out_of_the_diff_what_our_process_writes_and_nothing_else():
    ignored = read("argocd.yaml", "Application")["rollout"]["ignoreDifferences"]
    names = {(one["kind"], one.get("name")) for one in ignored}
    assert names == {
        ("ValidatingWebhookConfiguration", None),
        ("Secret", "rollout-webhook-tls"),
    }
    assert ("Secret", "rollout-webhook-tls") in rendered()


def test_flux_leaves_out_of_the_drift_what_our_process_writes_and_nothing_else():
    ignored = read("flux.yaml", "HelmRelease")["rollout"]["driftDetection"]["ignore"]
    [webhook] = [one["paths"] for one in ignored if "name" not in one["target"]]
    made = charts.objects(charts.render())
    [configuration] = [one for one in made if one["kind"] == "ValidatingWebhookConfiguration"]
    assert webhook == [
        f"/webhooks/{index}/clientConfig/caBundle"
        for index in range(len(configuration["webhooks"]))
    ]
    assert {one["target"].get("name") for one in ignored} == {None, "rollout-webhook-tls"}


def test_definitions_come_first_and_are_never_pruned():
    applications = yaml.safe_load_all((FOLDER / "argocd.yaml").read_text())
    waves = {
        one["metadata"]["name"]: int(one["metadata"]["annotations"]["argocd.argoproj.io/sync-wave"])
        for one in applications
    }
    assert waves["rollout-crds"] < waves["rollout"]
    crds = read("argocd.yaml", "Application")["rollout-crds"]
    assert crds["syncPolicy"]["automated"]["prune"] is False
    assert read("flux.yaml", "HelmRelease")["rollout"]["dependsOn"] == [{"name": "rollout-crds"}]
