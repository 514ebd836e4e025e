"""Where kopf meets the verdicts: one handler for all kinds, and settings under which kopf writes nothing.

Besides ``rollout_operator.handlers`` and the composition roots the only file that imports kopf.
"""

from __future__ import annotations

from typing import Any, cast

import aiohttp
import kopf

from rollout_operator.webhook.review import review
from rollout_operator.webhook.server import WebhookServer

GROUP, VERSION = "rollout.dev", "v1alpha1"
PATH = "validate"
KINDS = ("rolloutruns", "rolloutsnapshots", "rolloutendpoints", "rolloutsweeps")
"""Kinds with rules that a schema cannot hold; runtimes have none."""
INVALID = 422


def register(
    registry: kopf.OperatorRegistry,
    server: WebhookServer,
    session: aiohttp.ClientSession,
    api_server: str,
) -> None:
    """Answer reviews of our kinds through ``server``; kopf only asks ``api_server`` for the kinds."""

    @kopf.on.startup(registry=registry)
    def configure(settings: kopf.OperatorSettings, **_: Any) -> None:
        apply_settings(settings, server)

    @kopf.on.login(registry=registry)
    async def login(**_: Any) -> kopf.AiohttpSession:
        return kopf.AiohttpSession(aiohttp_session=session, server=api_server)

    for kind in KINDS:
        kopf.on.validate(
            GROUP, VERSION, kind, id=PATH, registry=registry, operations=["CREATE", "UPDATE"]
        )(validate)


def apply_settings(settings: kopf.OperatorSettings, server: WebhookServer) -> None:
    """The configuration is the chart's: kopf neither writes nor wipes it, and posts no events."""
    settings.admission.server = cast("Any", server)
    settings.admission.managed = None
    settings.scanning.disabled = True
    settings.posting.enabled = False


async def validate(**cause: Any) -> None:
    """One verdict. Raises kopf.AdmissionError with the text that the person sees."""
    objects = {"object": _plain(cause["new"]), "oldObject": _plain(cause["old"])}
    verdict = review({"operation": cause["operation"], **objects})
    cause["warnings"].extend(verdict.warnings)
    if not verdict.allowed:
        raise kopf.AdmissionError(verdict.message, code=INVALID)


def _plain(body: Any) -> dict[str, Any] | None:
    return dict(body) if body is not None else None
