"""Calls to a cluster's API server as somebody. The only importer of ``kubernetes``.

As the person of the kubeconfig, as the account of our pod where there is none, or as whoever holds a token.
Plain objects in, plain objects out. Every call has a time limit; what the server refuses is said with the
verb, the object and the right that is missing. Nothing is retried: a person reads the error and asks again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any

from rollout.cluster.kinds import GROUP, VERSION, Kind, Reference
from rollout.cluster.streams import ExecResult, drain, handshake_refusal, whole_lines
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
FIELD_MANAGER = "rollout-cli"
IN_POD = "KUBERNETES_SERVICE_HOST"
"""Set by the kubelet in every pod."""
POD_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
NOT_FOUND, FORBIDDEN, UNAUTHORISED, CONFLICT = 404, 403, 401, 409

NOBODY_REVIEWS = "failed calling webhook"
NO_WEBHOOK = (
    "runs are refused while nobody reviews them; are its pods up?"
    " kubectl get pods -A -l app.kubernetes.io/component=webhook"
)

Object = dict[str, Any]
Connection = tuple[str, str, client.ApiClient]
"""A context's name, its namespace, and how its API server is spoken to."""


class Cluster:
    """One namespace of one context. ``context`` None is the kubeconfig's current one, ``namespace`` None that of the context."""

    def __init__(
        self,
        *,
        context: str | None = None,
        namespace: str | None = None,
        connection: Connection | None = None,
    ) -> None:
        self.context, active_namespace, self._api = connection or _connect(context)
        self.namespace = namespace or active_namespace
        self._core = client.CoreV1Api(self._api)
        self._custom: Any = client.CustomObjectsApi(self._api)

    def within(self, namespace: str) -> Cluster:
        """Another namespace of the same cluster, with the same rights."""
        return Cluster(connection=(self.context, namespace, self._api))

    def as_holder(self, token: str) -> Cluster:
        """The same place with the rights of whoever holds this bearer token, and with none of ours."""
        api = client.ApiClient(_settings_of_holder(self._api.configuration, token))
        return Cluster(connection=(self.context, self.namespace, api))

    def review(self, group: str, kind: str, spec: Mapping[str, Any]) -> Object:
        """The ``status`` that the API server gives a review, such as a TokenReview of ``authentication.k8s.io``."""
        plural = f"{kind.lower()}s"
        body = {"apiVersion": f"{group}/v1", "kind": kind, "spec": dict(spec)}
        with self._said("create", plural):
            answer = self._custom.create_cluster_custom_object(
                group, "v1", plural, body, _request_timeout=CALL_SECONDS
            )
        return answer.get("status") or {}

    def get(self, reference: Reference) -> Object:
        """One object of ours. Raises ObjectNotFound."""
        with self._said("get", str(reference)):
            return self._custom.get_namespaced_custom_object(
                *self._place(reference.kind), reference.name, _request_timeout=CALL_SECONDS
            )

    def objects(self, kind: Kind, *, everywhere: bool = False) -> list[Object]:
        """All objects of a kind, in this namespace or in all."""
        return list(self.each(kind, everywhere=everywhere))

    def each(self, kind: Kind, *, everywhere: bool = False) -> Iterator[Object]:
        """As ``objects``, one page of them in memory."""
        where = f"{kind.plural} in {'all namespaces' if everywhere else self.namespace}"

        def page(limit: int, token: str | None) -> Object:
            more = {"limit": limit, "_continue": token, "_request_timeout": CALL_SECONDS}
            if everywhere:
                return self._custom.list_cluster_custom_object(GROUP, VERSION, kind.plural, **more)
            return self._custom.list_namespaced_custom_object(*self._place(kind), **more)

        with self._said("list", where):
            yield from _all_pages(page, where)

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
            yield from whole_lines(answer)

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
            return drain(channel, pod)

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
            return list(_all_pages(page, where))

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


def _connect(context: str | None) -> Connection:
    path = os.environ.get("KUBECONFIG")  # the client reads it once, when it is imported
    try:
        if context is None and not path and _is_pod():
            return _connect_in_pod()
        contexts, active = config.list_kube_config_contexts(path)
        chosen = active if context is None else _find(contexts, context)
        api = config.new_client_from_config(path, context=chosen["name"])
    except ConfigException as error:
        raise SpecError(
            f"no cluster to speak to: {error}; set KUBECONFIG, or make ~/.kube/config with your cloud's command"
        ) from error
    namespace = chosen["context"].get("namespace") or "default"
    return chosen["name"], namespace, api


def _is_pod() -> bool:
    default = Path(config.KUBE_CONFIG_DEFAULT_LOCATION).expanduser()
    return IN_POD in os.environ and not default.is_file()


def _connect_in_pod() -> Connection:
    settings = client.Configuration()
    config.load_incluster_config(client_configuration=settings)
    namespace = POD_NAMESPACE.read_text(encoding="utf-8").strip()
    return "of the pod's own account", namespace, client.ApiClient(settings)


def _settings_of_holder(ours: client.Configuration, token: str) -> client.Configuration:
    """Where the API server is and what it is known by, and nothing that says who we are."""
    settings = deepcopy(ours)
    settings.refresh_api_key_hook = None
    settings.cert_file = settings.key_file = None
    settings.username = settings.password = None
    settings.api_key = {"BearerToken": token}
    settings.api_key_prefix = {"BearerToken": "Bearer"}
    return settings


def _find(contexts: Sequence[Object], name: str) -> Object:
    found = next((one for one in contexts if one["name"] == name), None)
    if found is None:
        known = ", ".join(sorted(one["name"] for one in contexts))
        raise SpecError(f"--context {name}: the kubeconfig has no such context; there are: {known}")
    return found


def _all_pages(page: Callable[[int, str | None], Object], where: str) -> Iterator[Object]:
    count = 0
    token: str | None = None
    while True:
        answer = page(PAGE_OBJECTS, token)
        items = answer.get("items", [])
        count += len(items)
        yield from items
        token = answer.get("metadata", {}).get("continue") or None
        if token is None:
            return
        if count >= OBJECTS_MAX:
            raise KubeError(f"list {where}: more than {OBJECTS_MAX} objects; name a namespace")


def _refusal(error: ApiException, verb: str, what: str, cluster: Cluster) -> KubeError:
    """The server's words, and what to do about them."""
    status, message = error.status, _message(error)
    if refused := handshake_refusal(str(error.reason)):
        status, message = refused[0], _short(refused[1])
    if status == NOT_FOUND:
        fix = f"namespace {cluster.namespace} of context {cluster.context}; another: --namespace, --context"
        return ObjectNotFound(f"{what} not found in {fix} ({message})")
    if status == FORBIDDEN and (fix := _of_a_quota(message)):
        return KubeError(f"{verb} {what}: {message}; {fix}")
    if status in {FORBIDDEN, UNAUTHORISED}:
        return KubeError(
            f"you may not {verb} {what} in namespace {cluster.namespace}: {message}; ask the platform for that right"
        )
    silent = f"; {NO_WEBHOOK}" if NOBODY_REVIEWS in message else ""
    return KubeError(f"{verb} {what}: {message}{silent}")


def _of_a_quota(message: str) -> str:
    """What to do where a quota refuses; empty where a right is missing."""
    if "status unknown for quota" in message:
        return "nobody has counted for it yet, which takes minutes where our kinds were just installed: try again"
    if "exceeded quota" in message:
        return "delete what has ended (rollout get), or ask the platform for more"
    return ""


def _message(error: ApiException) -> str:
    try:
        said = json.loads(error.body or "")
        return _short(str(said["message"]))
    except (ValueError, TypeError, KeyError):
        return _short(f"{error.status} {error.reason}")


def _short(text: str) -> str:
    return text if len(text) <= 2000 else text[:2000] + " ..."
