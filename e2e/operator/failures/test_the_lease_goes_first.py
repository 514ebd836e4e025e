"""The chart's FlowSchema: calls for our Lease are counted with leader elections, and no other call is."""

import json
import ssl
import urllib.request

import pytest
import yaml
from kubernetes import client, config

from cluster.paths import REPOSITORY

pytestmark = pytest.mark.process

SCHEMA = REPOSITORY / "manifests/components/flow-schema/flow-schemas.yaml"
LEASE = "/apis/coordination.k8s.io/v1/namespaces/{}/leases/rollout-operator"
PODS = "/api/v1/namespaces/{}/pods"


@pytest.fixture
def schema(bare):
    """The schema of the chart, moved to the test's namespace."""
    documents = yaml.safe_load_all(SCHEMA.read_text())
    found = next(one for one in documents if one and one["kind"] == "FlowSchema")
    text = json.dumps(found)
    text = text.replace(json.dumps("rollout-system"), json.dumps(bare.namespace))
    moved = json.loads(text)
    moved["metadata"]["name"] = f"lease-{bare.namespace}"
    bare.apply(moved)
    yield bare.get("flowschema", moved["metadata"]["name"])
    bare("delete", "flowschema", moved["metadata"]["name"])


def answer_headers(kubectl, token, path):
    """The headers of a call as a service account, whatever its status."""
    settings = client.Configuration()
    config.load_kube_config(str(kubectl.kubeconfig), client_configuration=settings)
    context = ssl.create_default_context(cafile=settings.ssl_ca_cert)
    request = urllib.request.Request(
        settings.host + path.format(kubectl.namespace), headers={"Authorization": f"Bearer {token}"}
    )
    try:
        with urllib.request.urlopen(request, context=context, timeout=60) as answer:
            return answer.headers
    except urllib.error.HTTPError as error:
        return error.headers


def test_calls_for_the_lease_and_no_others(schema, bare):
    account = schema["spec"]["rules"][0]["subjects"][0]["serviceAccount"]
    assert account["namespace"] == bare.namespace
    bare("create", "serviceaccount", account["name"])
    token = bare("create", "token", account["name"]).strip()
    level = bare.get("prioritylevelconfiguration", "leader-election")["metadata"]["uid"]

    headers = answer_headers(bare, token, LEASE)
    assert headers["X-Kubernetes-PF-FlowSchema-UID"] == schema["metadata"]["uid"]
    assert headers["X-Kubernetes-PF-PriorityLevel-UID"] == level
    headers = answer_headers(bare, token, PODS)
    assert headers["X-Kubernetes-PF-FlowSchema-UID"] != schema["metadata"]["uid"]
