"""Asks an API server about many objects and keeps none: one session, since kubectl takes a second for each."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cluster.kubectl import Kubectl
from rollout_api.v1alpha1.objects.kinds import KINDS
from rollout_operator.kube.config import find_connection, open_session

PLURALS = {kind.name: kind.plural for kind in KINDS}
ASKED_AT_ONCE_MAX = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What the API server says to one object; ``causes`` are (field, words) of a refusal."""

    status: int
    words: str
    causes: tuple[tuple[str, str], ...]

    @property
    def taken(self) -> bool:
        """Whether the object would be made."""
        return self.status == 201


def create_all(kubectl: Kubectl, documents: Sequence[dict[str, Any]]) -> list[Answer]:
    """The answer to a dry-run creation of each, in order, in the namespace of `kubectl`."""
    return asyncio.run(_create_all(kubectl, documents))


async def _create_all(kubectl: Kubectl, documents: Sequence[dict[str, Any]]) -> list[Answer]:
    connection = find_connection({"KUBECONFIG": str(kubectl.kubeconfig)})
    free = asyncio.Semaphore(ASKED_AT_ONCE_MAX)
    async with open_session(connection) as session:

        async def ask(document: dict[str, Any]) -> Answer:
            plural = PLURALS.get(document.get("kind", ""), "rolloutruns")
            scope = "" if plural.startswith("cluster") else f"/namespaces/{kubectl.namespace}"
            url = f"{connection.server}/apis/rollout.dev/v1alpha1{scope}/{plural}"
            parameters = {"dryRun": "All", "fieldValidation": "Strict"}
            meta = {k: v for k, v in document.get("metadata", {}).items() if k != "namespace"}
            body = document | {"metadata": meta}
            async with free, session.post(url, json=body, params=parameters) as answer:
                return _read(answer.status, await answer.json())

        return await asyncio.gather(*map(ask, documents))


def _read(status: int, body: dict[str, Any]) -> Answer:
    causes = body.get("details", {}).get("causes", ()) if body.get("kind") == "Status" else ()
    return Answer(
        status=status,
        words=body.get("message", ""),
        causes=tuple((one.get("field", ""), one.get("message", "")) for one in causes),
    )
