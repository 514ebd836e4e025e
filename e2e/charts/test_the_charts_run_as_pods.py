"""The charts as a person installs them: pods of the real image on real nodes, in a namespace that takes restricted ones only."""

import base64
import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import loads
import pytest
import releases
from installed import SECRET, Installed, image_values, real_nodes

import charts
from cluster.local import LocalCluster
from cluster.nodes import containers
from rollout_operator.certs.issue import new_server
from rollout_operator.certs.plan import parse_certificates
from runs import build_run
from waiting import wait_until

pytestmark = pytest.mark.real_nodes


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with real_nodes() as made:
        yield made


@pytest.fixture(scope="module")
def installed(cluster: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    values = releases.write_values(tmp_path_factory.mktemp("values"), image_values())
    system = releases.prepare(cluster.kubectl)
    releases.helm(system, "install", "rollout-crds", str(charts.CRDS_CHART))
    wait = ("--values", values, "--wait", "--timeout", "5m")
    releases.helm(system, "install", "rollout", str(charts.CHART), *wait)
    return Installed(kubectl=cluster.kubectl, system=system)


def test_every_pod_is_ready_in_a_namespace_that_takes_restricted_pods_only(installed: Installed):
    found = installed.system.get("pods")["items"]
    assert len(found) == 5
    for pod in found:
        conditions = {one["type"]: one["status"] for one in pod["status"]["conditions"]}
        assert conditions["Ready"] == "True"
        assert [one["restartCount"] for one in pod["status"]["containerStatuses"]] == [0]
    words = ("run", "careless", f"--image={containers.OPERATOR}", "--dry-run=server")
    assert "violates PodSecurity" in installed.system.attempt(*words).stderr


def test_one_of_two_operators_leads(installed: Installed):
    lease = installed.system.get("lease", "rollout-operator")
    assert lease["spec"]["holderIdentity"] in installed.names("operator")
    leading = [releases.metric(text, "rollout_leader") for text in installed.scrape("operator")]
    assert sorted(leading) == [0, 1]


def test_every_pod_of_ours_can_be_scraped(installed: Installed):
    for component, name, num in (
        ("operator", "rollout_watch_age_seconds", 2),
        ("webhook", "rollout_webhook_review_seconds_count", 2),
        ("certificates", "rollout_webhook_certificate_expiry_seconds", 1),
    ):
        texts = installed.scrape(component)
        assert len(texts) == num
        assert all(releases.metric(text, name) >= 0 for text in texts), component


def test_the_release_passes_its_own_test(installed: Installed):
    done = releases.helm(installed.system, "test", "rollout", "--timeout", "2m")
    assert "Phase:          Succeeded" in done.stdout


def test_policies_and_budgets_are_there(installed: Installed):
    found = installed.system.get("networkpolicies,poddisruptionbudgets")["items"]
    names = sorted((one["kind"], one["metadata"]["name"]) for one in found)
    assert names == [
        ("NetworkPolicy", "rollout-certificates"),
        ("NetworkPolicy", "rollout-operator"),
        ("NetworkPolicy", "rollout-webhook"),
        ("PodDisruptionBudget", "rollout-operator"),
        ("PodDisruptionBudget", "rollout-webhook"),
    ]
    budgets = [one for one in found if one["kind"] == "PodDisruptionBudget"]
    assert [one["status"]["disruptionsAllowed"] for one in budgets] == [1, 1]


def test_a_run_that_is_applied_gets_its_children(installed: Installed):
    kubectl = installed.kubectl
    kubectl.apply(build_run("first"))
    children = releases.wait_for_children(kubectl, "first")
    sets = {name for kind, name in children if kind == "StatefulSet"}
    assert sets == {"first-coordinator", "first-learner", "first-actors"}
    kubectl("delete", "rolloutrun", "first", "--cascade=foreground", "--timeout=120s")


def test_what_the_schema_cannot_say_the_webhook_refuses_in_its_own_words(installed: Installed):
    document = json.dumps(build_run("wrong", {"actors": {"replicas": 0}}))
    answer = installed.kubectl.attempt("create", "-f", "-", stdin=document)
    assert answer.returncode != 0
    assert 'admission webhook "runs.rollout.dev" denied the request' in answer.stderr
    assert "spec.actors.replicas: grpo samples from the policy" in answer.stderr


@pytest.mark.slow
def test_a_roll_out_of_operator_and_webhook_refuses_no_valid_run(installed: Installed):
    """Quick: as processes, test_the_webhook_guards_runs.py."""
    before = installed.configuration()
    with loads.applying(installed.kubectl) as load:
        installed.restart("webhook", "operator")
    assert load.refused == []
    assert installed.configuration() == before
    test_one_of_two_operators_leads(installed)


def age_certificate(installed: Installed) -> None:
    """A server certificate of the same authority that is near its end: the next look renews it."""
    data = installed.system.get("secret", SECRET)["data"]
    found = parse_certificates({name: base64.b64decode(value) for name, value in data.items()})
    assert found is not None
    names = [
        "rollout-webhook.rollout-system.svc",
        "rollout-webhook.rollout-system.svc.cluster.local",
    ]
    old = new_server(found.key, names, datetime.now(UTC) - timedelta(days=70))
    pair = {"tls.crt": old.certificate_pem, "tls.key": old.key_pem}
    patch = {"data": {name: base64.b64encode(value).decode() for name, value in pair.items()}}
    installed.system("patch", "secret", SECRET, "--type=merge", "-p", json.dumps(patch))


@pytest.mark.slow
def test_a_renewal_in_the_middle_refuses_no_valid_run(installed: Installed):
    """Quick: as processes, test_the_webhook_guards_runs.py."""
    with loads.applying(installed.kubectl) as load:
        age_certificate(installed)
        aged, loads_before = installed.certificate(), installed.num_loads()
        installed.restart("certificates")
        wait_until(lambda: installed.certificate() != aged, "a new certificate is written")
        installed.wait_until_served(loads_before)
        installed.restart("webhook")
    assert load.refused == []


def test_uninstalling_leaves_a_living_run_as_it_is(installed: Installed):
    kubectl, system = installed.kubectl, installed.system
    kubectl.apply(build_run("stays"))
    before = releases.wait_for_children(kubectl, "stays")
    releases.helm(system, "uninstall", "rollout", "--wait")
    releases.helm(system, "uninstall", "rollout-crds", "--wait")
    kept = {key: mark for key, mark in releases.state_of(kubectl).items() if key[0] != "Pod"}
    assert kept == {key: mark for key, mark in before.items() if key[0] != "Pod"}
    assert replace(system, namespace="").get("crd", "-l", "app.kubernetes.io/part-of=rollout")[
        "items"
    ]
