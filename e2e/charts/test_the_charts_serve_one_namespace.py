"""Namespaced mode as it is installed: Roles and nothing of the cluster, and runs that say what nobody looks at."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import releases

import charts
from cluster import pins
from cluster.kubectl import Kubectl
from cluster.local import LocalCluster, Shape, running
from cluster.skips import or_skip
from runs import build_run
from waiting import wait_until
from webhooks import fetch, write_kubeconfig

pytestmark = pytest.mark.control_plane

WATCHED = "research"
VALUES = {"namespaces": [WATCHED]}


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with or_skip(), running(Shape(fake_nodes=2)) as made:
        yield made


@pytest.fixture(scope="module")
def research(cluster: LocalCluster) -> Kubectl:
    """Where the operator looks."""
    return releases.prepare(cluster.kubectl, WATCHED)


@pytest.fixture(scope="module")
def system(
    cluster: LocalCluster, research: Kubectl, tmp_path_factory: pytest.TempPathFactory
) -> Kubectl:
    """Where it is installed."""
    values = releases.write_values(tmp_path_factory.mktemp("values"), VALUES)
    made = releases.prepare(cluster.kubectl)
    releases.helm(made, "install", "rollout-crds", str(charts.CRDS_CHART))
    releases.helm(made, "install", "rollout", str(charts.CHART), "--values", values)
    return made


@pytest.fixture(scope="module")
def operator(system: Kubectl, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with releases.operating(system, tmp_path_factory.mktemp("operator")) as health:
        yield health


def test_nothing_of_the_cluster_is_installed(system: Kubectl):
    kinds = "clusterroles,clusterrolebindings,validatingwebhookconfigurations,flowschemas"
    kinds += ",validatingadmissionpolicies,clusterrolloutruntimes"
    found = system("get", kinds, "-l", "app.kubernetes.io/part-of=rollout", "-o", "name")
    assert found == ""


def test_the_account_may_act_in_its_namespace_and_nowhere_else(
    system: Kubectl, research: Kubectl, tmp_path: Path
):
    path = write_kubeconfig(system, "rollout-operator", tmp_path)

    def may(kubectl: Kubectl, *words: str) -> bool:
        asked = replace(kubectl, kubeconfig=path).attempt("auth", "can-i", *words)
        return asked.stdout.strip() == "yes"

    assert may(research, "create", "statefulsets.apps")
    assert may(research, "patch", "rolloutruns.rollout.dev", "--subresource=status")
    elsewhere = replace(system, namespace="default")
    assert not may(elsewhere, "list", "rolloutruns.rollout.dev")
    assert not may(elsewhere, "get", "secrets")
    for words in (("list", "nodes"), ("list", "storageclasses.storage.k8s.io")):
        assert not may(research, *words)


def test_a_run_comes_up_and_says_that_nobody_watches_the_cluster(
    operator: str, research: Kubectl, cluster: LocalCluster
):
    """There is no StorageClass at all: an operator of the whole cluster would stop here."""
    research.apply(build_run())
    cluster.kubectl.apply(build_run("elsewhere"))
    said = wait_until(
        lambda: releases.condition(research, "arithmetic", "ClusterWatched"),
        "the run says whether its cluster is watched",
    )
    assert (said["status"], said["reason"]) == ("False", "NamespacedMode")
    releases.wait_for_children(research, "arithmetic")
    assert releases.condition(research, "arithmetic", "Stalled") == {}
    releases.give_volumes(cluster.kubectl, 1)
    wait_until(lambda: releases.is_running(research, "arithmetic"), "the run works")
    assert "status" not in cluster.kubectl.get("rolloutrun", "elsewhere")
    refused = [
        line for line in fetch(f"{operator}/metrics")[1].splitlines() if 'code="403"' in line
    ]
    assert refused == []


def test_an_administrator_installs_the_policy_and_the_operator_goes_on(
    operator: str, system: Kubectl, research: Kubectl, tmp_path: Path
):
    """The command is the one of docs/how-to/install-with-helm.md."""
    shown = ("--show-only", "templates/admission-policy.yaml", "--kube-version", pins.KUBERNETES)
    text = releases.helm(system, "template", "rollout", str(charts.CHART), *shown).stdout
    system("apply", "-f", "-", stdin=text)

    account = write_kubeconfig(research, "arithmetic-coordinator", tmp_path)

    def report(status: dict[str, Any]) -> str:
        return releases.try_status(account, WATCHED, "arithmetic", status)

    wait_until(lambda: "nothing else of its run" in report({"attempt": 7}), "the policy holds")
    assert report({"progress": {"step": 1}}) == ""
    research("patch", "rolloutrun", "arithmetic", "--type=merge", "-p", '{"spec":{"suspend":true}}')
    wait_until(
        lambda: releases.condition(research, "arithmetic", "Suspended") != {}, "it is suspended"
    )
