"""Callers of the API server that are somebody: by impersonation, with the rights that RBAC gives that name and its groups."""

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from kubernetes import config

from rollout_operator.kube.resources import Resource, resource_of

ANSWER_SECONDS_MAX = 60.0
MERGE = "application/merge-patch+json"
APPLY = "application/apply-patch+yaml"
ROLE = Resource(group="rbac.authorization.k8s.io", version="v1", plural="roles", kind="Role")
"""A kind that the operator does not write, and people do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What the API server said."""

    status: int
    body: dict[str, Any]

    @property
    def done(self) -> bool:
        """Whether it did as asked."""
        return self.status < 300

    @property
    def words(self) -> str:
        """Its refusal; empty when there is none."""
        return "" if self.done else self.body.get("message", "")


@dataclass(frozen=True, kw_only=True)
class Person:
    """A user at work in one namespace. An empty `user` is the administrator."""

    kubeconfig: Path
    user: str = ""
    groups: tuple[str, ...] = ()
    namespace: str = ""

    @cached_property
    def _api(self) -> Any:
        return config.new_client_from_config(str(self.kubeconfig))

    @property
    def server(self) -> str:
        """Where the API server is."""
        return self._api.configuration.host

    def create(self, manifest: dict[str, Any], namespace: str = "", **query: str) -> Answer:
        """Make an object in my namespace, or in another."""
        return self.send("POST", self._path(manifest["kind"], "", namespace), manifest, query=query)

    def patch(
        self,
        kind: str,
        name: str,
        body: dict[str, Any],
        *,
        subresource: str = "",
        namespace: str = "",
    ) -> Answer:
        """Merge a document into an object."""
        path = self._path(kind, name, namespace, subresource)
        return self.send("PATCH", path, body, content=MERGE)

    def replace(self, manifest: dict[str, Any], namespace: str = "") -> Answer:
        """Put an object in the place of what there is."""
        path = self._path(manifest["kind"], manifest["metadata"]["name"], namespace)
        return self.send("PUT", path, manifest)

    def delete(self, kind: str, name: str, namespace: str = "", **query: str) -> Answer:
        """Take an object away."""
        return self.send("DELETE", self._path(kind, name, namespace), query=query)

    def get(self, kind: str, name: str, namespace: str = "") -> Answer:
        """An object."""
        return self.send("GET", self._path(kind, name, namespace))

    def send(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        content: str = "application/json",
        query: dict[str, str] | None = None,
    ) -> Answer:
        """Any call at all."""
        identity = {"Impersonate-User": self.user} if self.user else {}
        headers = [("Content-Type", content), *identity.items()]
        headers += [("Impersonate-Group", one) for one in self.groups]
        return self._ask(method, path, body, headers, query or {})

    def with_token(self, authorization: str, path: str) -> Answer:
        """What somebody reads who has this header and no certificate."""
        import urllib3

        authority = self._api.configuration.ssl_ca_cert
        with urllib3.PoolManager(ca_certs=authority) as nobody:
            found = nobody.request(
                "GET",
                self.server + path,
                headers={"Authorization": authorization},
                timeout=ANSWER_SECONDS_MAX,
            )
        return Answer(status=found.status, body=json.loads(found.data))

    def _ask(
        self,
        method: str,
        path: str,
        body: Any,
        headers: list[tuple[str, str]],
        query: dict[str, str],
    ) -> Answer:
        from urllib3 import HTTPHeaderDict

        tail = "&".join(f"{name}={value}" for name, value in query.items())
        found = self._api.rest_client.pool_manager.request(
            method,
            f"{self.server}{path}{'?' if tail else ''}{tail}",
            body=None if body is None else json.dumps(body).encode(),
            headers=HTTPHeaderDict(headers),
            timeout=ANSWER_SECONDS_MAX,
            redirect=False,
        )
        text = found.data.decode()
        try:
            return Answer(status=found.status, body=json.loads(text))
        except ValueError:
            return Answer(status=found.status, body={"message": text})

    def _path(self, kind: str, name: str, namespace: str, subresource: str = "") -> str:
        resource = ROLE if kind == ROLE.kind else resource_of(kind)
        return resource.path(namespace or self.namespace, name, subresource)
