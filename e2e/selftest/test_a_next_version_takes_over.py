"""How a next version of the API will come: served beside the old one, then stored, then alone.

Tried with a copy of our own definition under other names, so that the definition itself stays as it is.
"""

import json
from collections.abc import Iterator
from typing import Any

import pytest

import yamls
from cluster.kubectl import Kubectl
from cluster.paths import REPOSITORY
from cluster.providers import Cluster
from waiting import wait_until

pytestmark = pytest.mark.control_plane

DEFINITION = REPOSITORY / "crds" / "generated" / "rolloutsnapshots.yaml"
GROUP, KIND, PLURAL = "next.example", "NextSnapshot", "nextsnapshots"
NAME = f"{PLURAL}.{GROUP}"
OLD, NEW = "v1alpha1", "v1beta1"
SPEC = {"source": {"run": {"name": "a"}}, "description": "kept"}
NUM_OBJECTS = 3


def build_definition() -> dict[str, Any]:
    found = yamls.read(DEFINITION.read_text())
    found["metadata"]["name"] = NAME
    names = {"kind": KIND, "listKind": f"{KIND}List", "plural": PLURAL, "singular": KIND.lower()}
    found["spec"] |= {"group": GROUP, "names": names}
    return found


def with_versions(*versions: tuple[str, bool]) -> dict[str, Any]:
    """A definition that serves these, each with whether it is the stored one."""
    made = build_definition()
    [version] = made["spec"]["versions"]
    made["spec"]["versions"] = [
        {**version, "name": name, "storage": stored} for name, stored in versions
    ]
    return made


@pytest.fixture
def kubectl(fake_cluster: Cluster, fake: Kubectl) -> Iterator[Kubectl]:
    publish(fake, with_versions((OLD, True)))
    fake.apply(*(build_snapshot(number) for number in range(NUM_OBJECTS)))
    yield fake
    fake("delete", "crd", NAME)


def build_snapshot(number: int) -> dict[str, Any]:
    return {
        "apiVersion": f"{GROUP}/{OLD}",
        "kind": KIND,
        "metadata": {"name": f"snapshot-{number}"},
        "spec": SPEC,
    }


def publish(kubectl: Kubectl, definition: dict[str, Any]) -> None:
    """Apply a definition and wait until what it serves can be read."""
    kubectl.apply(definition)
    kubectl.wait("--for=condition=Established", f"crd/{NAME}")
    for version in definition["spec"]["versions"]:
        name = version["name"]
        wait_until(
            lambda name=name: kubectl.attempt("get", of(name)).returncode == 0, f"{name} is served"
        )


def of(version: str) -> str:
    return f"{PLURAL}.{version}.{GROUP}"


def read(kubectl: Kubectl, version: str) -> dict[str, Any]:
    """The spec of each object, read in a version."""
    found = kubectl.get(of(version))["items"]
    assert {one["apiVersion"] for one in found} == {f"{GROUP}/{version}"}
    return {one["metadata"]["name"]: one["spec"] for one in found}


def rewrite(kubectl: Kubectl) -> None:
    """Put every object back as it is: the server writes it in the version that it stores."""
    kubectl("replace", "-f", "-", stdin=json.dumps(kubectl.get(of(NEW))))


def stored(kubectl: Kubectl) -> list[str]:
    return kubectl.get("crd", NAME)["status"]["storedVersions"]


def test_both_versions_read_and_write_the_same_objects(kubectl: Kubectl):
    publish(kubectl, with_versions((OLD, True), (NEW, False)))

    assert read(kubectl, OLD) == read(kubectl, NEW)
    kubectl("label", f"{of(NEW)}/snapshot-0", "moved=yes")
    old = kubectl.get(of(OLD), "snapshot-0")
    assert old["metadata"]["labels"] == {"moved": "yes"}
    assert old["spec"].items() >= SPEC.items()


def test_what_is_stored_moves_to_the_new_version_and_the_old_one_goes(kubectl: Kubectl):
    before = read(kubectl, OLD)
    publish(kubectl, with_versions((OLD, False), (NEW, True)))
    assert set(stored(kubectl)) == {OLD, NEW}

    rewrite(kubectl)
    refused = kubectl.attempt("apply", "-f", "-", stdin=json.dumps(with_versions((NEW, True))))
    assert "storedVersions" in refused.stderr, "the old one cannot go while it may be stored"
    trimmed = json.dumps({"status": {"storedVersions": [NEW]}})
    kubectl("patch", "crd", NAME, "--subresource=status", "--type=merge", "-p", trimmed)
    publish(kubectl, with_versions((NEW, True)))

    assert stored(kubectl) == [NEW]
    assert read(kubectl, NEW) == before, "what was still stored in the old one could not be read"
