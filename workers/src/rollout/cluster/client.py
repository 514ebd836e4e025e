"""Calls to a cluster's API server as the person of the kubeconfig. The only importer of ``kubernetes``.

Plain objects in, plain objects out. Every call has a time limit; what the server refuses is said with the
verb, the object and the right that is missing. Nothing is retried: a person reads the error and asks again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from rollout.cluster.kinds import GROUP, VERSION, Kind, Reference
from rollout.errors import KubeError, ObjectNotFound, SpecError

try:
    from kubernetes import client, config
    from kubernetes.client.exceptions import ApiException
    from kubernetes.config.config_exception import ConfigException
    from kubernetes.stream import stream
except ImportError as error:
    raise SpecError(
        "commands that reach a cluster need the kubernetes package: pip install 'rollout-rl[cluster]'"
    ) from error
from urllib3.exceptions import HTTPError

CALL_SECONDS = 30
FOLLOW_SECONDS = 24 * 3600
"""A log that is followed and says nothing for so long is given up."""
PAGE_OBJECTS = 500
OBJECTS_MAX = 20_000
"""A list of more is refused, not cut."""
OUTPUT_BYTES_MAX = 64 << 20
"""What a command in a pod may print."""
EXEC_SECONDS = 300
FIELD_MANAGER = "rollout-cli"
NOT_FOUND, FORBIDDEN, UNAUTHORISED, CONFLICT = 404, 403, 401, 409

Object = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecResult:
    """What a command in a container came to."""

    code: int
    stdout: str
    stderr: str


class Cluster:
    """One namespace of one context. ``context`` None is the kubeconfig's current one, ``namespace`` None that of the context."""

    def __init__(self, *, context: str | None = None, namespace: str | None = None) -> None:
        self.context, active_namespace, self._api = _connect(context)
        self.namespace = namespace or active_namespace
        self._core = client.CoreV1Api(self._api)
        self._custom: Any = client.CustomObjectsApi(self._api)

    def get(self, reference: Reference) -> Object:
        """One object of ours. Raises ObjectNotFound."""
        with self._said("get", str(reference)):
            return self._custom.get_namespaced_custom_object(
                *self._place(reference.kind), reference.name, _request_timeout=CALL_SECONDS
            )

    def objects(self, kind: Kind, *, everywhere: bool = False) -> list[Object]:
        """All objects of a kind, in this namespace or in all."""
        where = f"{kind.plural} in {'all namespaces' if everywhere else self.namespace}"

        def page(limit: int, token: str | None) -> Object:
            more = {"limit": limit, "_continue": token, "_request_timeout": CALL_SECONDS}
            if everywhere:
                return self._custom.list_cluster_custom_object(GROUP, VERSION, kind.plural, **more)
            return self._custom.list_namespaced_custom_object(*self._place(kind), **more)

        with self._said("list", where):
            return _all_pages(page, where)

    def create(self, document: Mapping[str, Any], kind: Kind, *, dry_run: bool = False) -> Object:
        """Make an object; the API server's admission decides. Raises KubeError, also when its name is taken."""
        name = f"{kind.name.lower()}/{document['metadata']['name']}"
        further = {"dry_run": "All"} if dry_run else {}
        with self._said("create", name):
            return self._custom.create_namespaced_custom_object(
                *self._place(kind),
                dict(document),
                field_manager=FIELD_MANAGER,
                _request_timeout=CALL_SECONDS,
                **further,
            )

    def patch(self, reference: Reference, change: Mapping[str, Any]) -> Object:
        """JSON merge patch (RFC 7386)."""
        with self._said("patch", str(reference)):
            return self._custom.patch_namespaced_custom_object(
                *self._place(reference.kind),
                reference.name,
                dict(change),
                field_manager=FIELD_MANAGER,
                _request_timeout=CALL_SECONDS,
            )

    def scale(self, reference: Reference, replicas: int) -> Object:
        """Ask for so many replicas by the ``scale`` subresource."""
        with self._said("patch", f"{reference} (scale)"):
            return self._custom.patch_namespaced_custom_object_scale(
                *self._place(reference.kind),
                reference.name,
                {"spec": {"replicas": replicas}},
                _request_timeout=CALL_SECONDS,
            )

    def delete(self, reference: Reference, uid: str) -> None:
        """Delete this very object: a namesake made meanwhile stays."""
        preconditions = client.V1Preconditions(uid=uid)
        with self._said("delete", str(reference)):
            self._custom.delete_namespaced_custom_object(
                *self._place(reference.kind),
                reference.name,
                body=client.V1DeleteOptions(preconditions=preconditions),
                _request_timeout=CALL_SECONDS,
            )

    def pods(self, selector: str) -> list[Object]:
        """Pods by labels."""
        return self._core_list(self._core.list_namespaced_pod, "pods", label_selector=selector)

    def events(self, names: Sequence[str]) -> list[Object]:
        """Events about objects of these names, as the server has them (an hour by default)."""
        found = self._core_list(self._core.list_namespaced_event, "events")
        return [one for one in found if one.get("involvedObject", {}).get("name") in names]

    def pod_usage(self, selector: str) -> list[Object]:
        """CPU and memory of pods now, from metrics-server. Raises KubeError where the cluster has none."""
        with self._said("list", f"pods.metrics.k8s.io in {self.namespace}"):
            place = ("metrics.k8s.io", "v1beta1", self.namespace, "pods")
            found = self._custom.list_namespaced_custom_object(
                *place, label_selector=selector, _request_timeout=CALL_SECONDS
            )
        return found["items"]

    def log(
        self, pod: str, container: str, *, lines: int, follow: bool = False, previous: bool = False
    ) -> Iterator[str]:
        """Lines of a container's output; with ``follow`` as they come, until it ends."""
        timeout = (CALL_SECONDS, FOLLOW_SECONDS if follow else CALL_SECONDS)
        with self._said("get", f"the log of pod/{pod} (container {container})"):
            answer = self._core.read_namespaced_pod_log(
                pod,
                self.namespace,
                container=container,
                tail_lines=lines,
                follow=follow,
                previous=previous,
                _preload_content=False,
                _request_timeout=timeout,
            )
            yield from _lines(answer)

    def run_in(self, pod: str, container: str, command: Sequence[str]) -> ExecResult:
        """Run a command in a container and wait for its end. Raises KubeError past OUTPUT_BYTES_MAX or EXEC_SECONDS."""
        with self._said("create", f"an exec in pod/{pod} (container {container})"):
            channel = stream(
                self._core.connect_get_namespaced_pod_exec,
                pod,
                self.namespace,
                container=container,
                command=list(command),
                stdin=False,
                stdout=True,
                stderr=True,
                _preload_content=False,
                _request_timeout=CALL_SECONDS,
            )
            return _drain(channel, pod)

    def _core_list(self, call: Callable[..., Any], what: str, **further: Any) -> list[Object]:
        where = f"{what} in {self.namespace}"

        def page(limit: int, token: str | None) -> Object:
            more = {} if token is None else {"_continue": token}
            answer = call(
                self.namespace,
                limit=limit,
                _preload_content=False,
                _request_timeout=CALL_SECONDS,
                **further,
                **more,
            )
            return json.loads(answer.data)

        with self._said("list", where):
            return _all_pages(page, where)

    def _place(self, kind: Kind) -> tuple[str, str, str, str]:
        return GROUP, VERSION, self.namespace, kind.plural

    @contextmanager
    def _said(self, verb: str, what: str) -> Iterator[None]:
        """Turn the client's errors into ours."""
        try:
            yield
        except ApiException as error:
            raise _refusal(error, verb, what, self) from error
        except (HTTPError, OSError) as error:
            raise KubeError(
                f"{verb} {what}: the API server of context {self.context} does not answer:"
                f" {_short(str(error))}; is the cluster up, and the context the right one (--context)?"
            ) from error


def _connect(context: str | None) -> tuple[str, str, client.ApiClient]:
    path = os.environ.get("KUBECONFIG")  # the client reads it once, when it is imported
    try:
        contexts, active = config.list_kube_config_contexts(path)
        chosen = active if context is None else _find(contexts, context)
        api = config.new_client_from_config(path, context=chosen["name"])
    except ConfigException as error:
        raise SpecError(
            f"no cluster to speak to: {error}; set KUBECONFIG, or make ~/.kube/config with your cloud's command"
        ) from error
    namespace = chosen["context"].get("namespace") or "default"
    return chosen["name"], namespace, api


def _find(contexts: Sequence[Object], name: str) -> Object:
    found = next((one for one in contexts if one["name"] == name), None)
    if found is None:
        known = ", ".join(sorted(one["name"] for one in contexts))
        raise SpecError(f"--context {name}: the kubeconfig has no such context; there are: {known}")
    return found


def _all_pages(page: Callable[[int, str | None], Object], where: str) -> list[Object]:
    found: list[Object] = []
    token: str | None = None
    while True:
        answer = page(PAGE_OBJECTS, token)
        found += answer.get("items", [])
        token = answer.get("metadata", {}).get("continue") or None
        if token is None:
            return found
        if len(found) >= OBJECTS_MAX:
            raise KubeError(f"list {where}: more than {OBJECTS_MAX} objects; name a namespace")


def _refusal(error: ApiException, verb: str, what: str, cluster: Cluster) -> KubeError:
    """The server's words, and what to do about them."""
    message = _message(error)
    if error.status == NOT_FOUND:
        fix = f"namespace {cluster.namespace} of context {cluster.context}; another: --namespace, --context"
        return ObjectNotFound(f"{what} not found in {fix} ({message})")
    if error.status in {FORBIDDEN, UNAUTHORISED}:
        return KubeError(
            f"you may not {verb} {what} in namespace {cluster.namespace}: {message}; ask the platform for that right"
        )
    return KubeError(f"{verb} {what}: {message}")


def _message(error: ApiException) -> str:
    try:
        said = json.loads(error.body or "")
        return _short(str(said["message"]))
    except (ValueError, TypeError, KeyError):
        return _short(f"{error.status} {error.reason}")


def _short(text: str) -> str:
    return text if len(text) <= 2000 else text[:2000] + " ..."


def _lines(answer: Any) -> Iterator[str]:
    """Whole lines of a streamed body."""
    rest = b""
    try:
        for chunk in answer.stream(1 << 16):
            *lines, rest = (rest + chunk).split(b"\n")
            yield from (line.decode(errors="replace") for line in lines)
    finally:
        answer.release_conn()
    if rest:
        yield rest.decode(errors="replace")


def _drain(channel: Any, pod: str) -> ExecResult:
    """Read both outputs until the command has ended."""
    outputs = ("stdout", "stderr")
    taken: dict[str, list[str]] = {name: [] for name in outputs}
    size = idle_seconds = 0
    while channel.is_open():
        channel.update(timeout=1)
        piece_size = _take(channel, taken)
        size += piece_size
        idle_seconds = 0 if piece_size else idle_seconds + 1
        if size > OUTPUT_BYTES_MAX or idle_seconds > EXEC_SECONDS:
            channel.close()
            raise KubeError(
                f"a command in pod/{pod} printed more than {OUTPUT_BYTES_MAX} bytes, or nothing for {EXEC_SECONDS} s"
            )
    _take(channel, taken)
    stdout, stderr = ("".join(taken[name]) for name in outputs)
    return ExecResult(code=channel.returncode, stdout=stdout, stderr=stderr)


def _take(channel: Any, taken: Mapping[str, list[str]]) -> int:
    """Move what has arrived; how many characters that was."""
    size = 0
    for name, read, peek in (
        ("stdout", channel.read_stdout, channel.peek_stdout),
        ("stderr", channel.read_stderr, channel.peek_stderr),
    ):
        if peek():
            taken[name].append(read())
            size += len(taken[name][-1])
    return size
