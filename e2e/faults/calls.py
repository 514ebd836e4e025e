"""What a request to an API server is: its verb and its object, from method, path and query alone."""

from collections.abc import Mapping
from dataclasses import dataclass

WRITES = frozenset({"create", "update", "patch", "apply", "delete", "deletecollection"})
READS = frozenset({"get", "list", "watch"})
VERBS_OF_METHODS = {"POST": "create", "PUT": "update", "PATCH": "patch", "HEAD": "get"}
APPLY_TYPE = "application/apply-patch"
SUBRESOURCES_OF_NAMESPACES = {"finalize", "status"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One request; `resource` is empty for paths that name none (`/readyz`, discovery)."""

    verb: str
    path: str
    resource: str = ""
    namespace: str = ""
    name: str = ""
    subresource: str = ""
    client: str = ""

    @property
    def writes(self) -> bool:
        """Whether it changes something."""
        return self.verb in WRITES


def parse_call(
    method: str, path: str, query: Mapping[str, str], headers: Mapping[str, str]
) -> Call:
    """The call that a request makes."""
    namespace, resource, name, subresource = _parse_path(path)
    return Call(
        verb=_parse_verb(method, query, headers, named=bool(name) or not resource),
        path=path,
        resource=resource,
        namespace=namespace,
        name=name,
        subresource=subresource,
        client=headers.get("User-Agent", ""),
    )


def _parse_verb(
    method: str, query: Mapping[str, str], headers: Mapping[str, str], *, named: bool
) -> str:
    if method == "PATCH" and headers.get("Content-Type", "").startswith(APPLY_TYPE):
        return "apply"
    if method == "DELETE":
        return "delete" if named else "deletecollection"
    if method != "GET":
        return VERBS_OF_METHODS.get(method, method.lower())
    if query.get("watch") in {"true", "1"}:
        return "watch"
    return "get" if named else "list"


def _parse_path(path: str) -> tuple[str, str, str, str]:
    parts = path.strip("/").split("/")
    prefix = {"api": 2, "apis": 3}.get(parts[0], len(parts))
    rest, namespace = parts[prefix:], ""
    if rest[:1] == ["namespaces"] and len(rest) > 2 and rest[2] not in SUBRESOURCES_OF_NAMESPACES:
        namespace, rest = rest[1], rest[2:]
    resource, name, *subresource = [*rest, "", ""][: max(2, len(rest))] if rest else ("", "")
    return namespace, resource, name, "/".join(subresource)
