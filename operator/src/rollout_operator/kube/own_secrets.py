"""Secrets of the operator's own namespace: read, or made at the first look by the first of several replicas."""

from __future__ import annotations

import base64
import logging
from collections.abc import Callable, Mapping
from typing import Any

from rollout_api import names
from rollout_operator.errors import Conflict, NotFound
from rollout_operator.kube.client import KubeClient
from rollout_operator.kube.resources import SECRETS

log = logging.getLogger(__name__)


async def read_or_make(
    client: KubeClient, namespace: str, name: str, new: Callable[[], Mapping[str, bytes]]
) -> dict[str, Any]:
    """The Secret; where there is none it is made with the entries of ``new``. Raises KubeError, NotLeader."""
    try:
        return await client.get(SECRETS, namespace, name)
    except NotFound:
        secret = build_own_secret(namespace, name, new())
    try:
        made = await client.create(secret, SECRETS, manager=names.MANAGER_CHILDREN)
    except Conflict:
        return await client.get(SECRETS, namespace, name)
    log.info("a key was made secret=%s/%s", namespace, name)
    return made


def build_own_secret(namespace: str, name: str, entries: Mapping[str, bytes]) -> dict[str, Any]:
    """The Secret with these entries."""
    labels = {names.LABEL_NAME: "rollout", names.LABEL_PART_OF: "rollout"}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "Opaque",
        "metadata": {"name": name, "namespace": namespace, "labels": labels},
        "data": {entry: base64.b64encode(value).decode() for entry, value in entries.items()},
    }
