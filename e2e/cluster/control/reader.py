"""Reads objects as `kubectl get -o json` prints them, over connections that are kept.

Tests poll: a kubectl process for each look costs a fifth of a second of a core. Kinds are found by the names that
kubectl takes, from the API server's own discovery. What this cannot answer (another flag, a kind that nobody serves)
it leaves to kubectl, whose words people know.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from cluster.errors import ClusterError

ANSWER_SECONDS_MAX = 60.0
TRIES_AGAIN_MAX = 2
"""A connection that was kept may have been closed by a server that is back by now."""
CONNECTIONS_MAX = 64
"""Kubeconfigs whose connections are kept."""
DISCOVERY = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
MERGE = "application/merge-patch+json"
SELECTORS = {
    "-l": "labelSelector",
    "--selector": "labelSelector",
    "--field-selector": "fieldSelector",
}
SHOWN = "--show-managed-fields"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """Where the objects of a kind are, and every name that kubectl has for it."""

    prefix: str
    plural: str
    namespaced: bool
    names: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What `kubectl get` was asked, where it is of the simple sort: kinds, at most one name, selectors."""

    kinds: tuple[str, ...]
    name: str = ""
    namespace: str
    selectors: dict[str, str]
    managed_fields: bool


@dataclass(slots=True, kw_only=True)
class Reader:
    """A kubeconfig's connections, and the kinds that its server has."""

    server: str
    pool: Any
    headers: dict[str, str]
    namespace: str
    _kinds: tuple[Kind, ...] = field(default=())

    def get(self, namespace: str, arguments: tuple[str, ...]) -> dict[str, Any] | None:
        """The object or the list; None where kubectl has to be asked.

        Raises:
            ClusterError: the API server refused, or does not answer.
        """
        question = parse(namespace or self.namespace, arguments)
        kinds = question and self._find_all(question.kinds)
        if not question or not kinds:
            return None
        try:
            found = [self._read(kind, question) for kind in kinds]
        except ClusterError:
            self._kinds = ()  # a definition may be another one by now
            raise
        if question.name:
            return found[0]
        return {
            "apiVersion": "v1",
            "kind": "List",
            "items": [one for items in found for one in items],
        }

    def text(self, path: str, accept: str = "*/*") -> str:
        """What is behind a path of the API server.

        Raises:
            ClusterError: the API server refused, or does not answer.
        """
        return self._ask(path, {}, accept)

    def send(self, method: str, path: str, body: dict[str, Any] | None = None) -> str:
        """What a call that changes something is answered with.

        Raises:
            ClusterError: the API server refused, or does not answer.
        """
        return self._call(method, path, {"body": json.dumps(body)} if body else {})

    def merge(
        self,
        namespace: str,
        kind: str,
        name: str,
        body: dict[str, Any],
        subresource: str,
        *,
        dry_run: bool = False,
    ) -> None:
        """A JSON merge patch, under the name that kubectl gives its own; nothing is kept of a `dry_run`.

        Raises:
            ClusterError: the API server refused, does not answer, or has no such kind.
        """
        path = f"{self.path_of(kind, namespace)}/{name}"
        path += f"/{subresource}" if subresource else ""
        query = "?fieldManager=kubectl-patch" + ("&dryRun=All" if dry_run else "")
        given = {"body": json.dumps(body)}
        self._call("PATCH", f"{path}{query}", given, kind=MERGE)

    def path_of(self, name: str, namespace: str) -> str:
        """Where the objects of a kind are. Raises ClusterError where the API server has none of the name."""
        kinds = self._find_all((name,))
        if not kinds:
            raise ClusterError(f"{self.server} has no kind {name}")
        return _place(kinds[0], namespace or self.namespace)

    def _find_all(self, names: tuple[str, ...]) -> list[Kind]:
        """The kinds of these names; empty when one of them is unknown, also after another look."""
        found = [find(self._kinds, name) for name in names]
        if None in found:
            self._kinds = tuple(self._discover())
            found = [find(self._kinds, name) for name in names]
        known = [one for one in found if one is not None]
        return known if len(known) == len(names) else []

    def _discover(self) -> Iterator[Kind]:
        for root in ("/api", "/apis"):
            yield from parse_discovery(root, json.loads(self._ask(root, {}, DISCOVERY)))

    def _read(self, kind: Kind, question: Question) -> Any:
        path = _place(kind, question.namespace)
        if not question.name:
            read = json.loads(self._ask(path, question.selectors))
            return [_shown(one, question) for one in _items(read)]
        return _shown(json.loads(self._ask(f"{path}/{question.name}", {})), question)

    def _ask(self, path: str, query: dict[str, str], accept: str = "application/json") -> str:
        return self._call("GET", path, {"fields": query}, accept)

    def _call(
        self,
        method: str,
        path: str,
        given: dict[str, Any],
        accept: str = "application/json",
        kind: str = "application/json",
    ) -> str:
        from urllib3.exceptions import HTTPError

        body = {"Content-Type": kind} if "body" in given else {}
        try:
            answer = self.pool.request(
                method,
                self.server + path,
                **given,
                headers=self.headers | {"Accept": accept} | body,
                timeout=ANSWER_SECONDS_MAX,
                retries=TRIES_AGAIN_MAX,
            )
        except HTTPError as error:
            raise ClusterError(f"{method} {self.server}{path}: {error}") from error
        text = answer.data.decode()
        if answer.status >= 300:
            raise ClusterError(f"{method} {self.server}{path}: {answer.status}: {_reason(text)}")
        return text


def _place(kind: Kind, namespace: str) -> str:
    return f"{kind.prefix}{f'/namespaces/{namespace}' if kind.namespaced else ''}/{kind.plural}"


def reader(kubeconfig: Path) -> Reader:
    """The kept connections of a kubeconfig, as it is now."""
    return _reader(kubeconfig, kubeconfig.stat().st_mtime_ns)


@lru_cache(maxsize=CONNECTIONS_MAX)
def _reader(kubeconfig: Path, _written: int) -> Reader:
    from kubernetes import config

    api = config.new_client_from_config(str(kubeconfig))
    settings = api.configuration
    token = settings.get_api_key_with_prefix("authorization")
    _, active = config.list_kube_config_contexts(str(kubeconfig))
    return Reader(
        server=settings.host,
        pool=api.rest_client.pool_manager,
        headers={"Authorization": token} if token else {},
        namespace=active["context"].get("namespace", "default"),
    )


def parse(namespace: str, arguments: tuple[str, ...]) -> Question | None:
    """What is asked; None where it is not of the simple sort."""
    words, selectors, managed_fields = [], {}, False
    rest = iter(arguments)
    for argument in rest:
        flag, equals, value = argument.partition("=")
        if not argument.startswith("-"):
            words.append(argument)
        elif flag in SELECTORS:
            selectors[SELECTORS[flag]] = value if equals else next(rest, "")
        elif flag in {"-n", "--namespace"}:
            namespace = value if equals else next(rest, "")
        elif argument == SHOWN:
            managed_fields = True
        else:
            return None
    if not _simple(words, selectors):
        return None
    return Question(
        kinds=tuple(words[0].split(",")),
        name=words[1] if len(words) > 1 else "",
        namespace=namespace,
        selectors=selectors,
        managed_fields=managed_fields,
    )


def _simple(words: list[str], selectors: dict[str, str]) -> bool:
    """Kinds and at most one name, which stands for itself."""
    if not words or len(words) > 2 or any("/" in word for word in words):
        return False
    return len(words) == 1 or ("," not in words[0] and not selectors)


def find(kinds: Iterable[Kind], name: str) -> Kind | None:
    """The kind of this name; of several the first, as the server orders them."""
    return next((one for one in kinds if name.lower() in one.names), None)


def parse_discovery(root: str, document: dict[str, Any]) -> Iterator[Kind]:
    """The kinds of an aggregated discovery, each in its group's preferred version."""
    for group in document.get("items", ()):
        seen: set[str] = set()
        for version in group["versions"]:
            for resource in version.get("resources", ()):
                if resource["resource"] not in seen:
                    seen.add(resource["resource"])
                    yield _build_kind(root, group["metadata"], version["version"], resource)


def _build_kind(root: str, group: dict[str, Any], version: str, resource: dict[str, Any]) -> Kind:
    name = group.get("name", "")
    plural = resource["resource"]
    singular = resource.get("singularResource") or resource["responseKind"]["kind"].lower()
    plain = [plural, singular, *resource.get("shortNames", ())]
    whole = [f"{one}.{name}" for one in (plural, singular)] if name else []
    return Kind(
        prefix="/".join(filter(None, (root, name, version))),
        plural=plural,
        namespaced=resource["scope"] == "Namespaced",
        names=frozenset([*plain, *whole]),
    )


def _items(read: dict[str, Any]) -> list[dict[str, Any]]:
    """Of a list, each with its kind, which the API server leaves to the list."""
    kind = {"apiVersion": read["apiVersion"], "kind": read["kind"].removesuffix("List")}
    return [kind | one for one in read["items"]]


def _shown(live: dict[str, Any], question: Question) -> dict[str, Any]:
    """As kubectl prints it."""
    if not question.managed_fields:
        live["metadata"].pop("managedFields", None)
    return live


def _reason(text: str) -> str:
    """The API server's words, in the form in which kubectl says them."""
    try:
        status = json.loads(text)
        return f"Error from server ({status['reason']}): {status['message']}"
    except (ValueError, KeyError, TypeError):
        return text.strip()
