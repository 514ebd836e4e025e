"""A real API server asks the real webhook: what it refuses, in whose words, and while its certificate changes."""

import base64
import json
import re
import secrets
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

import dry_runs
import webhooks
from cluster.control.ports import LOOPBACK, find_free_ports
from cluster.kubectl import Kubectl
from cluster.paths import REPOSITORY
from rollout_api.problems import Severity
from rollout_operator.webhook.review import find_problems
from runs import build_run, install_crds

pytestmark = pytest.mark.control_plane

MANIFESTS = REPOSITORY / "tests" / "rollout_api" / "manifests"
SAMPLES = sorted(
    path
    for path in (REPOSITORY / "manifests" / "samples").rglob("*.yaml")
    if "apiVersion: rollout.dev/" in path.read_text()
)
LOCAL = {"plain-numbers"}
"""Numbers without quotes are for local files; `rollout fmt` quotes them."""
QUIET = {
    "limits": {"activeSeconds": 3600},
    "actors": {"resources": {"requests": {"cpu": "1"}}},
    "learner": {"resources": {"requests": {"cpu": "1"}}},
}


@pytest.fixture(scope="module")
def server(fake_cluster: Any) -> Kubectl:
    install_crds(fake_cluster.kubectl)
    return fake_cluster.kubectl


@pytest.fixture(scope="module")
def webhook(
    server: Kubectl, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[webhooks.Webhook]:
    """One for every test that leaves it as it is."""
    name = f"test-{secrets.token_hex(4)}"
    server("create", "namespace", name)
    with ready(replace(server, namespace=name), tmp_path_factory.mktemp("webhook")) as made:
        yield made
    server("delete", "namespace", name, "--wait=false")


@pytest.fixture
def own_webhook(server: Kubectl, fake: Kubectl, tmp_path: Path) -> Iterator[webhooks.Webhook]:
    """One to be restarted, renewed or cut off."""
    with ready(fake, tmp_path) as made:
        yield made


@contextmanager
def ready(kubectl: Kubectl, scratch: Path) -> Iterator[webhooks.Webhook]:
    with webhooks.serving(kubectl, scratch) as made:
        made.mount()
        webhooks.wait_until(lambda: made.ready()[0] == 200, "the webhook is ready")
        yield made


def dry_create(kubectl: Kubectl, document: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    return kubectl.attempt("create", "--dry-run=server", "-f", "-", stdin=json.dumps(document))


def as_objects(path: Path) -> list[dict[str, Any]]:
    """Documents of a file in the form of objects that a cluster can take."""
    documents = YAML(typ="safe", pure=True).load_all(path.read_text())
    return [one for one in documents if one and "apiVersion" in one]


def test_everything_is_judged_as_the_command_line_judges_it(webhook: webhooks.Webhook):
    """Good and bad manifests and every sample; what the schema lets through has the webhook's words."""
    files = [*sorted(MANIFESTS.glob("*/*.yaml")), *SAMPLES]
    given = [
        (path.name, one) for path in files if path.stem not in LOCAL for one in as_objects(path)
    ]
    found = dry_runs.create_all(webhook.kubectl, [document for _, document in given])
    num_words = 0
    for (name, document), answer in zip(given, found, strict=True):
        words = answer.words
        problems = [p for p in find_problems(document) if p.severity is Severity.error]
        assert answer.taken != bool(problems), (name, answer)
        if 'admission webhook "runs.rollout.dev" denied the request' in words:
            num_words += 1
            assert words.endswith("denied the request: " + "\n".join(map(str, problems))), name
    assert num_words >= 80


def test_ready_comes_first_and_creation_never_fails_after_it(own_webhook: webhooks.Webhook):
    own_webhook.kubectl.apply(build_run(spec=QUIET))
    assert "arithmetic" in own_webhook.kubectl("get", "rrun", "-o", "name")


def test_what_is_risky_is_let_in_with_warnings(webhook: webhooks.Webhook):
    answer = dry_create(webhook.kubectl, build_run())

    assert answer.returncode == 0
    assert "Warning: spec.limits.activeSeconds: nothing bounds" in answer.stderr
    assert "Warning: spec.learner.resources: these pods ask for no resources" in answer.stderr
    assert "Warning" not in dry_create(webhook.kubectl, build_run(spec=QUIET)).stderr


def test_a_dry_run_is_answered_and_leaves_nothing(webhook: webhooks.Webhook):
    kubectl = webhook.kubectl
    kubectl.apply(build_run("kept", QUIET))
    before = everything(kubectl)

    assert "Warning" in dry_create(kubectl, build_run("taken")).stderr
    refused = dry_create(kubectl, build_run("refused", {"actors": {"replicas": 0}}))
    assert "spec.actors.replicas" in refused.stderr
    patch = ("patch", "rrun", "kept", "--type=merge", "--dry-run=server", "-p")
    kubectl(*patch, '{"spec":{"limits":{"activeSeconds":7200}}}')

    assert everything(kubectl) == before


def everything(kubectl: Kubectl) -> dict[str, str]:
    """Each object of the namespace and of the webhook, as it was last written."""
    kinds = "rolloutruns,rolloutsnapshots,configmaps,secrets,events,statefulsets,services"
    found = kubectl.get(f"{kinds},validatingwebhookconfigurations")["items"]
    return {one["metadata"]["uid"]: one["metadata"]["resourceVersion"] for one in found}


def test_an_endpoint_of_what_is_not_built_is_refused_and_one_without_keys_is_warned_of(
    webhook: webhooks.Webhook,
):
    small = {"model": {"uri": "rollout://tiny-adder"}, "engine": {"embedded": {}}}
    endpoint = build_run() | {"kind": "RolloutEndpoint", "spec": small}
    assert "spec.apiKeys: no key is asked for" in dry_create(webhook.kubectl, endpoint).stderr
    endpoint["spec"] = small | {"queueName": "a"}
    refused = dry_create(webhook.kubectl, endpoint)
    assert refused.returncode != 0
    assert "spec.queueName" in refused.stderr


def test_an_update_is_asked_about_its_spec_only(own_webhook: webhooks.Webhook):
    kubectl = own_webhook.kubectl
    kubectl.apply(build_run(spec=QUIET))
    patch = ("patch", "rrun", "arithmetic", "--type=merge", "-p")

    refused = kubectl.attempt(*patch, '{"spec":{"actors":{"replicas":0}}}')
    assert "spec.actors.replicas: grpo samples from the policy" in refused.stderr
    with_nobody_there(own_webhook)
    kubectl(*patch, '{"metadata":{"labels":{"a":"b"}}}')
    assert kubectl.attempt(*patch, '{"spec":{"suspend":true}}').returncode != 0
    kubectl("delete", "rrun", "arithmetic", "--wait=false")
    kubectl("create", "configmap", "unrelated")


def with_nobody_there(webhook: webhooks.Webhook) -> None:
    """Point the configuration at a port where nobody listens."""
    configuration = webhook.kubectl.get("validatingwebhookconfiguration", webhook.configuration)
    patch = [
        {
            "op": "replace",
            "path": f"/webhooks/{index}/clientConfig/url",
            "value": "https://localhost:9/validate",
        }
        for index, _ in enumerate(configuration["webhooks"])
    ]
    webhook.kubectl(
        "patch", "validatingwebhookconfiguration", webhook.configuration,
        "--type=json", "-p", json.dumps(patch),
    )  # fmt: skip


def test_the_processes_leave_the_configuration_to_the_chart(webhook: webhooks.Webhook):
    """Only the bundle is written, by the rotation, and by nobody else."""
    found = webhook.kubectl.get(
        "validatingwebhookconfiguration", webhook.configuration, "--show-managed-fields"
    )
    writers = {entry["manager"]: entry["fieldsV1"] for entry in found["metadata"]["managedFields"]}

    assert set(writers) == {"kubectl-client-side-apply", "rollout-certificates"}
    written = set(re.findall(r'"f:(\w+)"', json.dumps(writers["rollout-certificates"])))
    assert written <= {"webhooks", "clientConfig", "caBundle", "name"}
    assert all(hook["clientConfig"]["caBundle"] for hook in found["webhooks"])


@contextmanager
def load(kubectl: Kubectl) -> Iterator[list[str]]:
    """Valid runs are created all the time; yields what was said to those that were refused."""
    failures: list[str] = []
    stop = threading.Event()

    def create() -> None:
        while not stop.is_set():
            answer = dry_create(kubectl, build_run(spec=QUIET))
            if answer.returncode:
                failures.append(answer.stderr)

    workers = [threading.Thread(target=create) for _ in range(2)]
    for worker in workers:
        worker.start()
    try:
        yield failures
    finally:
        stop.set()
        for worker in workers:
            worker.join()


def test_a_rotation_under_load_refuses_nobody(own_webhook: webhooks.Webhook):
    """Another certificate of the same authority is mounted while runs are created."""
    before = (own_webhook.folder / "tls.crt").read_bytes()
    with load(own_webhook.kubectl) as failures:
        renew_server_certificate(own_webhook)
        own_webhook.mount()
        assert (own_webhook.folder / "tls.crt").read_bytes() != before
        time.sleep(5)
    assert failures == []


def test_a_roll_out_refuses_nobody(own_webhook: webhooks.Webhook):
    """A second process comes and is ready, new connections go to it, the first one ends."""
    before = own_webhook.kubectl("get", "validatingwebhookconfiguration", "-o", "yaml")
    review, health = find_free_ports([LOOPBACK] * 2)
    ports = {"ROLLOUT_WEBHOOK_PORT": str(review), "ROLLOUT_HEALTH_PORT": str(health)}
    second = webhooks.process("rollout_operator.webhook", own_webhook.environment | ports)
    with second, load(own_webhook.kubectl) as failures:
        ready = f"http://{LOOPBACK}:{health}/readyz"
        webhooks.wait_until(lambda: webhooks.fetch(ready)[0] == 200, "the second one is ready")
        own_webhook.balancer.backend = review
        own_webhook.first.terminate()
        own_webhook.first.wait(60)
        time.sleep(3)
    assert failures == []
    assert own_webhook.kubectl("get", "validatingwebhookconfiguration", "-o", "yaml") == before


def renew_server_certificate(webhook: webhooks.Webhook) -> None:
    """What the rotation does a month before the end: another certificate of the same authority."""
    from datetime import UTC, datetime

    from rollout_operator.certs.issue import new_server
    from rollout_operator.certs.plan import parse_certificates

    data = webhook.kubectl.get("secret", webhooks.SECRET)["data"]
    found = parse_certificates({name: base64.b64decode(value) for name, value in data.items()})
    assert found is not None
    made = new_server(found.key, ["localhost"], datetime.now(UTC))
    patch = {
        "data": {
            "tls.crt": base64.b64encode(made.certificate_pem).decode(),
            "tls.key": base64.b64encode(made.key_pem).decode(),
        }
    }
    webhook.kubectl("patch", "secret", webhooks.SECRET, "--type=merge", "-p", json.dumps(patch))
