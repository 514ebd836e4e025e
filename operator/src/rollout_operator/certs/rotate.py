"""One look at the Secret and at the configuration, and what has to be written after it."""

from __future__ import annotations

import base64
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from rollout_operator.certs.plan import (
    Certificates,
    parse_certificates,
    plan_certificates,
)
from rollout_operator.kube.client import KubeClient
from rollout_operator.kube.resources import SECRETS, Resource

log = logging.getLogger(__name__)
MANAGER = "rollout-certificates"
CONFIGURATIONS = Resource(
    group="admissionregistration.k8s.io",
    version="v1",
    plural="validatingwebhookconfigurations",
    kind="ValidatingWebhookConfiguration",
    namespaced=False,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The Secret, the configuration, and the names that the certificate is for."""

    namespace: str
    secret: str
    configuration: str
    dns_names: Sequence[str]


async def rotate(client: KubeClient, target: Target, now: datetime) -> Certificates:
    """Bring Secret and bundle up to date: the Secret first, since the webhook is the slower reader.

    Both objects are the chart's and are never created or deleted here. Raises KubeError; a Conflict
    means that somebody else wrote, and that the next look will see it.
    """
    secret = await client.get(SECRETS, target.namespace, target.secret)
    configuration = await client.get(CONFIGURATIONS, None, target.configuration)
    found = parse_certificates(_decoded(secret.get("data") or {}))
    wanted = plan_certificates(found, target.dns_names, published_bundle(configuration), now)
    if wanted != found:
        await client.apply(_secret(secret, wanted), SECRETS, manager=MANAGER, force=True)
        log.info("secret written name=%s until=%s", target.secret, expiry(wanted).isoformat())
    if any(bundle != wanted.bundle_pem for bundle in _bundles(configuration)):
        body = _configuration(configuration, wanted)
        await client.apply(body, CONFIGURATIONS, manager=MANAGER, force=True)
        log.info("bundle written name=%s authorities=%d", target.configuration, len(wanted.bundle))
    return wanted


def expiry(certificates: Certificates) -> datetime:
    """When the server certificate ends."""
    return certificates.server.certificate.not_valid_after_utc


def published_bundle(configuration: dict[str, Any]) -> bytes:
    """What every webhook of the configuration trusts; empty when they differ."""
    bundles = _bundles(configuration)
    return bundles[0] if len(set(bundles)) == 1 else b""


def _bundles(configuration: dict[str, Any]) -> list[bytes]:
    return [
        base64.b64decode(webhook["clientConfig"].get("caBundle") or "")
        for webhook in configuration.get("webhooks") or ()
    ]


def _secret(secret: dict[str, Any], wanted: Certificates) -> dict[str, Any]:
    meta = secret["metadata"]
    kept = {name: meta[name] for name in ("name", "namespace", "uid", "resourceVersion")}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": kept,
        "data": {name: _encoded(value) for name, value in wanted.to_data().items()},
    }


def _configuration(configuration: dict[str, Any], wanted: Certificates) -> dict[str, Any]:
    bundle, meta = _encoded(wanted.bundle_pem), configuration["metadata"]
    return {
        "apiVersion": CONFIGURATIONS.api_version,
        "kind": CONFIGURATIONS.kind,
        "metadata": {name: meta[name] for name in ("name", "uid", "resourceVersion")},
        "webhooks": [
            {"name": webhook["name"], "clientConfig": {"caBundle": bundle}}
            for webhook in configuration["webhooks"]
        ],
    }


def _encoded(value: bytes) -> str:
    return base64.b64encode(value).decode()


def _decoded(data: dict[str, str]) -> dict[str, bytes]:
    return {name: base64.b64decode(value) for name, value in data.items()}
