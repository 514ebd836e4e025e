"""cert-manager itself issues the webhook's certificate and writes `caBundle`; no renewal refuses a valid run."""

import base64
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import loads
import pytest
import releases
from installed import Installed, image_values, real_nodes

import charts
from cluster import build, pins
from cluster.errors import BuildError
from cluster.local import LocalCluster
from cluster.skips import or_skip
from runs import build_run
from waiting import wait_until

pytestmark = [pytest.mark.real_nodes, pytest.mark.slow]

VALUES = image_values() | {"webhook": {"certificates": {"mode": "CertManager"}}}
AUTHORITY, SERVER = "rollout-webhook-ca", "rollout-webhook"


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with or_skip(BuildError):
        build.ensure(pins.CERT_MANAGER)
    with real_nodes() as made:
        definitions = build.folder("cert-manager") / "deploy" / "crds"
        made.kubectl("apply", "--server-side", "-f", str(definitions))
        made.kubectl.wait("--for=condition=Established", "crd/certificates.cert-manager.io")
        binary = str(build.path("cert-manager"))
        made.instance.start(
            "cert-manager", [binary, "--api-kubeconfig", str(made.kubectl.kubeconfig)]
        )
        yield made


@pytest.fixture(scope="module")
def installed(cluster: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    values = releases.write_values(tmp_path_factory.mktemp("values"), VALUES)
    system = releases.prepare(cluster.kubectl)
    releases.helm(system, "install", "rollout-crds", str(charts.CRDS_CHART))
    wait = ("--values", values, "--wait", "--timeout", "5m")
    releases.helm(system, "install", "rollout", str(charts.CHART), *wait)
    return Installed(kubectl=cluster.kubectl, system=system)


def bundles(installed: Installed) -> set[bytes]:
    hooks = installed.configuration()["webhooks"]
    return {base64.b64decode(one["clientConfig"].get("caBundle", "")) for one in hooks}


def secret(installed: Installed, name: str, key: str) -> bytes:
    return base64.b64decode(installed.system.get("secret", name)["data"][key])


def refused(installed: Installed) -> str:
    document = json.dumps(build_run("wrong", {"actors": {"replicas": 0}}))
    return installed.kubectl.attempt("create", "-f", "-", stdin=document).stderr


def revision(installed: Installed, certificate: str) -> int:
    return installed.system.get("certificate", certificate)["status"]["revision"]


def renew(installed: Installed, certificate: str) -> None:
    """What `cmctl renew` does; until the new certificate is in its Secret."""
    before = revision(installed, certificate)
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    due: dict[str, Any] = {"type": "Issuing", "status": "True", "reason": "ManuallyTriggered"}
    due |= {"message": "renewed by a test", "lastTransitionTime": now}
    found = installed.system.get("certificate", certificate)["status"]["conditions"]
    patch = {"status": {"conditions": [*found, due]}}
    words = ("--subresource=status", "--type=merge", "-p", json.dumps(patch))
    installed.system("patch", "certificate", certificate, *words)
    wait_until(lambda: revision(installed, certificate) > before, f"{certificate} is renewed")


def test_the_authority_is_injected_and_the_webhook_serves_with_its_certificate(
    installed: Installed,
):
    assert bundles(installed) == {secret(installed, f"{AUTHORITY}", "ca.crt")}
    assert installed.names("certificates") == set()
    assert 'admission webhook "runs.rollout.dev" denied the request' in refused(installed)


def test_a_renewed_certificate_is_served_and_refuses_no_valid_run(installed: Installed):
    before, trusted = installed.certificate(), bundles(installed)
    with loads.applying(installed.kubectl) as load:
        loads_before = installed.num_loads()
        renew(installed, SERVER)
        assert installed.certificate() != before
        installed.wait_until_served(loads_before)
    assert load.refused == []
    assert bundles(installed) == trusted


def test_a_renewed_authority_refuses_no_valid_run_before_or_after_it_signs(installed: Installed):
    before = bundles(installed)
    with loads.applying(installed.kubectl) as load:
        renew(installed, AUTHORITY)
        loads_before = installed.num_loads()
        renew(installed, SERVER)
        wait_until(lambda: bundles(installed) != before, "the new authority is injected")
        installed.wait_until_served(loads_before)
        installed.restart("webhook")
    assert load.refused == []
    (bundle,) = bundles(installed)  # cert-manager leaves the authority before in it, too
    assert secret(installed, f"{SERVER}-tls", "ca.crt").strip() in bundle
