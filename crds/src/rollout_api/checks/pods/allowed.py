"""What a run adds itself, held against the lists of its runtime: what no list names is refused.

Texts are compared as they are written, so only texts that can be read in one way are compared: an image or a
place that holds anything else (``..``, ``%2e``, a second slash, a letter that only looks like another) is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from urllib.parse import urlsplit

from pydantic import BaseModel

from rollout_api.checks.environment.agents import find_parameter, plays_harbor
from rollout_api.checks.within import models_within
from rollout_api.places import NAMESPACE, named_for, namespace_place
from rollout_api.problems import Problem
from rollout_api.v1alpha1.common import ModelSource
from rollout_api.v1alpha1.data import Data, Jsonl, Output
from rollout_api.v1alpha1.environment import Agent, HttpAccess, PluginContainer, PythonClass
from rollout_api.v1alpha1.inference.endpoint import EndpointSpec, ServedVllm
from rollout_api.v1alpha1.pods.allowed import Allowed, AllowedNamespaces
from rollout_api.v1alpha1.pods.pods import PodSettings, Toleration
from rollout_api.v1alpha1.pods.roles import Vllm
from rollout_api.v1alpha1.run import RolloutRunSpec
from rollout_api.v1alpha1.storage import CodeImage, CodeWheel, Storage

SHOWN_MAX = 5
LENGTH_MAX = 200
_PART = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_IMAGE = re.compile(
    r"(?P<repository>(?:[a-z0-9]+(?:[.-][a-z0-9]+)*(?::[0-9]{1,5})?/)?"
    rf"{_PART}(?:/{_PART})*)(?::[A-Za-z0-9_][A-Za-z0-9_.-]{{0,127}})?(?P<digest>@sha256:[0-9a-f]{{64}})?"
)
_FAR = frozenset({"s3", "gs", "https"})
"""Where models and rows lie that the coordinator's pod fetches, by its own identity."""
_PLACE = re.compile(r"[a-z0-9]+://[A-Za-z0-9._-]*(?::[0-9]{1,5})?(?:/[A-Za-z0-9._~=+-]+)*/?")


def find_unserved(
    allowed: AllowedNamespaces | None,
    name: str,
    namespace: str | None,
    labels: Mapping[str, str] | None = None,
) -> Iterator[Problem]:
    """A runtime of the whole cluster that does not serve a namespace, as far as that and its labels are known."""
    if _serves(allowed, namespace, labels) is not False:
        return
    who = "any namespace" if namespace is None else f"namespace {namespace!r}"
    yield _problem(
        "spec.runtimeRef",
        f"ClusterRolloutRuntime {name!r} does not serve {who}",
        "name another runtime, or let the platform add the namespace to the runtime's spec.allowedNamespaces",
    )


def _serves(
    allowed: AllowedNamespaces | None, namespace: str | None, labels: Mapping[str, str] | None
) -> bool | None:
    if allowed is None:
        return False
    if allowed.selector is not None:
        wanted = allowed.selector.match_labels.items()
        return None if labels is None else wanted <= labels.items()
    if allowed.from_ == "All":
        return True
    return None if namespace is None and allowed.names else namespace in allowed.names


def find_not_allowed(
    own: RolloutRunSpec | EndpointSpec, allowed: Allowed | None, namespace: str | None
) -> Iterator[Problem]:
    """What the user's own document adds, before runtime and presets add theirs; no namespace: it is not known yet."""
    lists = allowed or Allowed()
    brings_code = isinstance(own, RolloutRunSpec) and own.brings_data_code
    for path, model in models_within(own, "spec"):
        for field, image in _images(model, path):
            yield from _image(image, field, lists)
        yield from _judge(model, path, lists, namespace)
        yield from _pages(model, path, lists)
        if isinstance(model, Data) and brings_code and not lists.data_code_network:
            yield from _from_hub(model, path)


def allows_place(uri: str, lists: Allowed, namespace: str) -> bool:
    """Whether a place may be read: a plain one that the lists name."""
    return is_plain(uri) and _names(uri, lists.storage, namespace)


def find_storage_not_allowed(
    storage: Storage, allowed: Allowed, namespace: str
) -> Iterator[Problem]:
    """What of a storage that is not the runtime's own its lists do not name."""
    yield from _judge(storage, "status.storage", allowed, namespace)


def _judge(model: BaseModel, path: str, lists: Allowed, namespace: str | None) -> Iterator[Problem]:
    match model:
        case PodSettings():
            yield from _pods(model, path, lists)
        case ModelSource() | Jsonl():
            if urlsplit(model.uri or "").scheme in _FAR:
                yield from _place(model.uri or "", f"{path}.uri", "storage", lists, namespace)
        case CodeWheel() | Output():
            field = "wheels" if isinstance(model, CodeWheel) else "storage"
            yield from _place(model.uri, f"{path}.uri", field, lists, namespace)
        case Storage():
            if model.uri is not None:
                yield from _root(model.uri, f"{path}.uri", lists, namespace)
            if model.endpoint is not None:
                yield from _place(model.endpoint, f"{path}.endpoint", "storage", lists, namespace)


def _pages(model: BaseModel, path: str, lists: Allowed) -> Iterator[Problem]:
    """The hosts whose pages a policy may get."""
    for place, host in enumerate(model.hosts if isinstance(model, HttpAccess) else ()):
        if host not in lists.hosts:
            yield _refused(f"{path}.hosts[{place}]", host, "hosts", lists.hosts)


def _images(model: BaseModel, path: str) -> Iterator[tuple[str, str]]:
    """The images that a model names, with their fields."""
    match model:
        case PythonClass():
            named = find_parameter(model, path) if plays_harbor(model) else None
            yield from () if named is None else (named,)
        case CodeImage():
            yield f"{path}.reference", model.reference
        case Vllm() | ServedVllm() | PluginContainer() | Agent():
            if model.image is not None:
                yield f"{path}.image", model.image


def _from_hub(data: Data, path: str) -> Iterator[Problem]:
    """Data that only a network brings, beside data code, whose container has none."""
    if data.hugging_face is not None and not data.hugging_face.path.startswith(("/", ".")):
        field, wanted = f"{path}.huggingFace.path", data.hugging_face.path
    elif data.jsonl is not None and data.jsonl.uri.startswith("hf://"):
        field, wanted = f"{path}.jsonl.uri", data.jsonl.uri
    else:
        return
    message = f"{_quote(wanted)} comes from a hub, and data code has no network on this runtime"
    yield _problem(
        field,
        message,
        "name a file or folder that the pods have, or let the platform set the runtime's"
        " spec.allowed.dataCodeNetwork",
    )


def _pods(pods: PodSettings, path: str, lists: Allowed) -> Iterator[Problem]:
    for field, keys, entries in (
        ("annotations", pods.annotations, lists.annotations),
        ("labels", pods.labels, lists.labels),
    ):
        for key in keys:
            if not matches(key, entries):
                yield _refused(f"{path}.{field}", key, field, entries)
    for index, one in enumerate(pods.tolerations):
        if not any(covers(entry, one) for entry in lists.tolerations):
            shown = [_plain(entry) for entry in lists.tolerations]
            yield _refused(f"{path}.tolerations[{index}]", _plain(one), "tolerations", shown)
    wanted = pods.priority_class_name
    if wanted is not None and wanted not in lists.priority_classes:
        field = f"{path}.priorityClassName"
        yield _refused(field, wanted, "priorityClasses", lists.priority_classes)


def _image(image: str, path: str, lists: Allowed) -> Iterator[Problem]:
    found = _IMAGE.fullmatch(image)
    if found is None:
        what = "is not an image as registry/repository:tag@sha256:digest"
        yield _problem(path, f"{_quote(image)} {what}", "write it in full, in small letters")
        return
    if not matches(image, lists.images) and not matches(found["repository"], lists.images):
        yield _refused(path, image, "images", lists.images)
    if lists.require_digests and found["digest"] is None:
        message = f"{_quote(image)} has no digest, and the runtime requires digests"
        yield _problem(path, message, "name the image by its digest, ...@sha256:...")


def _root(uri: str, path: str, lists: Allowed, namespace: str | None) -> Iterator[Problem]:
    if not is_plain(uri) or not _may_hold(uri, lists, namespace):
        yield from _place(uri, path, "storage", lists, namespace)


def _may_hold(uri: str, lists: Allowed, namespace: str | None) -> bool:
    """Whether objects may go below a place; where the namespace is not known, whether those of some namespace may."""
    if namespace is not None:
        return allows_root(uri, lists, namespace)
    below = f"{uri.rstrip('/')}/"
    return any(one.startswith(below) for one in lists.storage)


def _place(
    uri: str, path: str, field: str, lists: Allowed, namespace: str | None
) -> Iterator[Problem]:
    if not is_plain(uri):
        what = "is not a plain place: scheme://host/path of letters, digits and ._~=+-, without . and .."
        yield _problem(path, f"{_quote(uri)} {what}", "write it so")
    elif not _names(uri, entries := getattr(lists, field), namespace):
        shown = [named_for(one, namespace or NAMESPACE) for one in entries]
        yield _refused(path, uri, field, shown)


def is_plain(uri: str) -> bool:
    """Whether a place can be read in one way only."""
    return _PLACE.fullmatch(uri) is not None and not {".", ".."} & set(uri.split("/"))


def allows_root(uri: str, lists: Allowed, namespace: str) -> bool:
    """Whether objects of a namespace's runs may go below a ``storage.uri``: judged as written, and as where they go."""
    places = (uri, namespace_place(uri, namespace))
    return any(_names(one, lists.storage, namespace) for one in places)


def _names(uri: str, entries: Iterable[str], namespace: str | None) -> bool:
    """Whether an entry names a place, with or without a slash at its end; up to a namespace that is not known."""
    bare = uri.rstrip("/")
    if namespace is None:
        known = [one.partition(NAMESPACE) for one in entries]
        begun = any(marked and uri.startswith(before) for before, marked, _ in known)
        entries = [before for before, marked, _ in known if not marked]
        return begun or _names(uri, entries, NAMESPACE)
    named = [named_for(one, namespace) for one in entries]
    return any(matches(one, named) for one in (uri, bare, f"{bare}/"))


def matches(value: str, entries: Iterable[str]) -> bool:
    """Whether an entry is equal, or ends in a slash and begins the value."""
    return any(value == one or (one.endswith("/") and value.startswith(one)) for one in entries)


def covers(entry: Toleration, wanted: Toleration) -> bool:
    """Whether every taint that is tolerated by ``wanted`` is by ``entry``, and for as long."""
    if entry.key is None and entry.operator != "Exists":
        return False
    if entry.key is not None and entry.key != wanted.key:
        return False
    if entry.operator == "Equal":
        same = wanted.operator == "Equal" and (entry.value or "") == (wanted.value or "")
        if not same:
            return False
    if entry.effect is not None and entry.effect != wanted.effect:
        return False
    longest, asked = entry.toleration_seconds, wanted.toleration_seconds
    return longest is None or (asked is not None and asked <= longest)


def _refused(path: str, value: str, field: str, entries: Iterable[str]) -> Problem:
    known = list(entries)
    shown = ", ".join(map(_quote, known[:SHOWN_MAX])) or "nothing"
    more = f" and {len(known) - SHOWN_MAX} more" if len(known) > SHOWN_MAX else ""
    message = f"{_quote(value)} is not allowed by the runtime, whose spec.allowed.{field} names {shown}{more}"
    return _problem(path, message, "leave it out, or let the platform add it there")


def _problem(path: str, message: str, fix: str) -> Problem:
    return Problem(field=path, reason="NotAllowed", message=message, fix=fix)


def _quote(text: str) -> str:
    return repr(text if len(text) <= LENGTH_MAX else f"{text[:LENGTH_MAX]}...")


def _plain(toleration: Toleration) -> str:
    named = toleration.model_dump(mode="json", exclude_none=True)
    return " ".join(f"{key}={value}" for key, value in named.items())
