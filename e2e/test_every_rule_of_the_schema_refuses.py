"""Each union and each range of the schema, at a place where a good manifest uses it: broken, it is refused in its own words."""

import copy
import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from cluster.kubectl import Kubectl
from cluster.paths import REPOSITORY
from cluster.providers import Cluster
from runs import CRDS, install_crds

pytestmark = pytest.mark.control_plane

CORPUS = (
    *sorted((REPOSITORY / "tests" / "rollout_api" / "manifests" / "good").glob("*.yaml")),
    *sorted((REPOSITORY / "manifests" / "samples").rglob("*.yaml")),
)
FAR = ("-1e12", "1e12")
CANDIDATES = 4
"""Good manifests in which each rule is broken: in some of them another field is in the way."""
NOT_IN_THE_CORPUS = {
    "exactly one of configMapRef, secretRef must be set",
    "exactly one of module, path must be set",
    "exactly one of persistentVolumeClaim, hostPath, emptyDir, configMap, secret, nfs, csi must be set",
    "exactly one of run, object must be set",
}
"""In lists that no good manifest fills (parametersFrom, python rewards, volumes), and of snapshots."""

Path = tuple[str, ...]


def read_rules() -> Iterator[tuple[str, Path, str]]:
    """(kind, path, message) of every union and range; ``*`` is any item or key."""
    for file in CRDS:
        spec = yaml.safe_load(file.read_text())["spec"]
        schema = spec["versions"][0]["schema"]["openAPIV3Schema"]
        for path, message in walk(schema["properties"]["spec"], ("spec",)):
            if message.startswith(("exactly one of", "must be at", "must be above")):
                yield spec["names"]["kind"], path, message


def walk(schema: Any, path: Path) -> Iterator[tuple[Path, str]]:
    for rule in schema.get("x-kubernetes-validations", ()):
        yield path, rule["message"]
    for name, inner in schema.get("properties", {}).items():
        yield from walk(inner, (*path, name))
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            yield from walk(schema[key], (*path, "*"))


def depth(value: Any, path: Path) -> int:
    """How far a document has something along a path, by its first items."""
    if not path:
        return 0
    if path[0] == "*":
        items = list(value) if isinstance(value, list) else list(value.values())
        return 1 + depth(items[0], path[1:]) if items else 0
    if isinstance(value, dict) and path[0] in value:
        return 1 + depth(value[path[0]], path[1:])
    return 0


def break_at(document: Any, path: Path, value: Any) -> Any | None:
    """The document with a value at a path, and with what lies between; None where a list has no item."""
    broken = copy.deepcopy(document)
    holder = broken
    for name, following in zip(path, (*path[1:], ""), strict=True):
        key: Any = name
        if name == "*":
            keys = range(len(holder)) if isinstance(holder, list) else list(holder)
            if not keys:
                return None
            key = keys[0]
        if not following:
            holder[key] = value
        elif following == "*" and name != "*" and not holder.get(name):
            return None
        elif isinstance(holder, dict) and not isinstance(holder.get(key), dict | list):
            holder[key] = {}
        holder = holder[key]
    return broken


def read_corpus() -> list[Any]:
    documents = [
        document
        for file in CORPUS
        for document in yaml.safe_load_all(file.read_text())
        if isinstance(document, dict) and "rollout.dev/" in str(document.get("apiVersion"))
    ]
    return [json.loads(json.dumps(document, default=str)) for document in documents]


@pytest.fixture
def kubectl(fake_cluster: Cluster, fake: Kubectl) -> Kubectl:
    install_crds(fake_cluster.kubectl)
    return fake


def test_it_refuses_what_breaks_it_and_takes_what_does_not(kubectl: Kubectl):
    corpus, wanted, broken = read_corpus(), set(), []
    for kind, path, message in read_rules():
        wanted.add(message)
        candidates = [document for document in corpus if document["kind"] == kind]
        candidates.sort(key=lambda document: -depth(document, path))
        values = [{}] if message.startswith("exactly") else FAR
        broken += [
            found
            for document in candidates[:CANDIDATES]
            for value in values
            if (found := break_at(document, path, value)) is not None
        ]
    for number, document in enumerate(broken):
        document["metadata"] = {"name": f"r-{number}"}
    listed = json.dumps({"apiVersion": "v1", "kind": "List", "items": broken})
    answer = kubectl.attempt(
        "create", "--validate=false", "--dry-run=server", "-f", "-", stdin=listed
    )
    said = answer.stderr
    missing = {message for message in wanted if message not in said}
    assert missing == NOT_IN_THE_CORPUS
    refused = set(re.findall(r'"(r-[0-9]+)" is invalid', said))
    assert len(refused) >= len(broken) // 2, "a range has two ends, and one of them may be open"
