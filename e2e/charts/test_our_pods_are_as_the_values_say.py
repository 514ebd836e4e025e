"""Values that change our own pods change them, and everything that has to go along: ports, policies, the test of the release."""

import pytest
from renders import MODES, of_kind, pods, rendered

import charts
import yamls

pytestmark = pytest.mark.control_plane


def test_files_of_others_are_mounted_read_only_where_they_are_asked_for():
    made = pods(rendered("everything"))
    operator, webhook = made["rollout-operator"], made["rollout-webhook"]
    [mount] = [one for one in operator["containers"][0]["volumeMounts"] if one["name"] == "ca"]
    assert mount == {"name": "ca", "mountPath": "/etc/ca", "readOnly": True}
    assert {"name": "ca", "configMap": {"name": "company-ca"}} in operator["volumes"]
    assert {"name": "proxy", "secret": {"secretName": "proxy"}} in webhook["volumes"]
    assert operator["hostAliases"] == [{"ip": "10.0.0.1", "hostnames": ["proxy.internal"]}]
    assert "hostAliases" not in webhook


@pytest.mark.parametrize("name", ["operator", "webhook", "certificates"])
def test_our_processes_log_as_they_are_asked_and_are_the_user_that_is_given(name):
    pod = pods(rendered("everything"))[f"rollout-{name}"]
    given = {one["name"]: one.get("value") for one in pod["containers"][0]["env"]}
    assert (given["ROLLOUT_LOG_LEVEL"], given["ROLLOUT_LOG_FORMAT"]) == ("DEBUG", "json")
    security = pod["securityContext"]
    assert (security["runAsUser"], security["fsGroup"]) == (1_000_650_000, 1_000_650_000)
    assert security["runAsNonRoot"] is True
    plain = pods(rendered("default"))[f"rollout-{name}"]["securityContext"]
    assert set(plain) == {"runAsNonRoot", "seccompProfile"}


def test_the_webhook_listens_where_it_is_told_and_is_let_through_there():
    made = rendered("everything")
    container = pods(made)["rollout-webhook"]["containers"][0]
    ports = {one["name"]: one["containerPort"] for one in container["ports"]}
    assert ports["review"] == 10_250
    [policy] = [
        one
        for one in of_kind(made, "NetworkPolicy")
        if one["metadata"]["name"] == "rollout-webhook"
    ]
    opened = [port["port"] for rule in policy["spec"]["ingress"] for port in rule["ports"]]
    assert 10_250 in opened
    [service] = [
        one for one in of_kind(made, "Service") if one["metadata"]["name"] == "rollout-webhook"
    ]
    assert {one["targetPort"] for one in service["spec"]["ports"]} <= {"review", "health"}


@pytest.mark.parametrize("mode", MODES)
def test_helm_test_asks_what_there_is_and_is_let_through(mode):
    """Under every switch: the pod of the test is one whom each policy lets in, and it asks for no Service that is not made."""
    text = charts.render(values=MODES[mode])
    [test] = [
        one
        for one in yamls.read_all(text)
        if one and one["metadata"].get("annotations", {}).get("helm.sh/hook") == "test"
    ]
    labels = test["metadata"]["labels"]
    for policy in of_kind(rendered(mode), "NetworkPolicy"):
        let_in = [one for rule in policy["spec"]["ingress"] for one in rule.get("from", ())]
        wanted = [one["podSelector"]["matchLabels"] for one in let_in if "podSelector" in one]
        assert any(selector.items() <= labels.items() for selector in wanted)
    services = {one["metadata"]["name"] for one in of_kind(rendered(mode), "Service")}
    asked = {url.split("/")[2].split(":")[0] for url in test["spec"]["containers"][0]["args"][1:]}
    assert asked <= services
