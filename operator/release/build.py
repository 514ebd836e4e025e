"""Makes a release in a folder, from one commit and a key, without network; verified before anybody is told it is there."""

from __future__ import annotations

import platform
import tempfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version as installed_version
from pathlib import Path

from cyclonedx.model.component import ComponentType

from release import oci, signatures, sums, versions
from release.contents import (
    CONTENTS,
    PUBLIC_KEY,
    SBOMS,
    SUMS,
    SUMS_SIGNATURE,
    WHEELS,
    Artifact,
    Contents,
    layout_of,
    sbom_tag,
)
from release.errors import ReleaseError
from release.parts import archives, charts, sbom, wheels
from release.parts.closure import Package
from release.source import Commit, export, read_commit
from release.verify import find_differences

Check = Callable[[Path, str], list[str]]
"""Of an exported tree and a version: each place that does not fit."""
SBOM_TYPE = sbom.MEDIA_TYPE


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What to release."""

    checkout: Path
    version: str
    """As ``x.y.z``."""
    key: signatures.PrivateKey
    images: Mapping[str, Path]
    """Archives by the name of the image; those that are not named are not in the release."""
    pins_file: str
    """The pins that this environment was made from."""
    target: Path
    """A folder that does not exist yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workbench:
    """What the steps of one build share."""

    order: Order
    commit: Commit
    tree: Path
    """The commit's files."""
    out: Path
    """The release, until it is whole."""
    scratch: Path


def build(order: Order, checks: Sequence[Check] = (versions.find_differences,)) -> Contents:
    """Make a release; the folder appears whole or not at all.

    Raises:
        ReleaseError: the checkout, a version, an image or the key does not do.
    """
    if unknown := sorted(order.images.keys() - {*sbom.IMAGES}):
        raise ReleaseError(f"image {', '.join(unknown)}: expected {' or '.join(sbom.IMAGES)}")
    if order.target.exists():
        raise ReleaseError(f"{order.target}: is there already; a release is not made over another")
    commit = read_commit(order.checkout)
    order.target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=order.target.parent, prefix=".release-") as folder:
        place = Path(folder)
        bench = Workbench(
            order=order,
            commit=commit,
            tree=place / "tree",
            out=place / "out",
            scratch=place / "scratch",
        )
        export(order.checkout, commit, bench.tree)
        if wrong := [one for check in checks for one in check(bench.tree, order.version)]:
            raise ReleaseError("not one version:\n  " + "\n  ".join(wrong))
        contents = _fill(bench)
        bench.out.rename(order.target)
    return contents


def _fill(bench: Workbench) -> Contents:
    built = wheels.build_wheels(bench.tree, bench.out / WHEELS, bench.commit)
    packages = sbom.close_images(bench.tree, bench.order.pins_file)
    _write_sboms(bench, packages)
    images = [_add_image(bench, name) for name in sorted(bench.order.images)]
    by_name = {one.repository: one.digest for one in images}
    packed = [_add_chart(bench, name, by_name) for name in versions.CHARTS]
    contents = Contents(
        version=bench.order.version,
        commit=bench.commit.revision,
        created=bench.commit.created,
        artifacts=[*packed, *images],
        wheels=[one.name for one in built],
        made_with=_made_with(),
    )
    _seal(bench, contents)
    return contents


def _made_with() -> dict[str, str]:
    return {
        "python": platform.python_version(),
        "setuptools": installed_version("setuptools"),
        "zlib": zlib.ZLIB_RUNTIME_VERSION,
    }


def _write_sboms(bench: Workbench, packages: Mapping[str, Mapping[str, Package]]) -> None:
    (bench.out / SBOMS).mkdir()
    roots = {"rollout-operator": ["rollout-operator"], "rollout-worker": ["rollout-rl"]}
    for name, held in packages.items():
        subject = _subject(bench, name, ComponentType.CONTAINER)
        text = sbom.render_environment(subject, held, roots[name], bench.commit)
        _sbom_file(bench, name).write_bytes(text)


def _sbom_file(bench: Workbench, name: str) -> Path:
    return bench.out / SBOMS / f"{name}.cdx.json"


def _subject(bench: Workbench, name: str, kind: ComponentType) -> sbom.Subject:
    return sbom.Subject(name=name, version=bench.order.version, kind=kind)


def _add_chart(bench: Workbench, name: str, images: Mapping[str, str]) -> Artifact:
    repository = f"charts/{name}"
    layout = _open_layout(bench, repository)
    chart = charts.add_chart(
        layout, bench.tree / "charts" / name, bench.order.version, bench.commit
    )
    subject = _subject(bench, repository, ComponentType.APPLICATION)
    # the definitions alone run nothing
    run = images if name == "rollout" else {}
    text = sbom.render_chart(subject, run, bench.commit)
    (bench.out / SBOMS / f"chart-{name}.cdx.json").write_bytes(text)
    held = _attach(bench, layout, repository, chart, text)
    return Artifact(repository=repository, kind="chart", digest=chart.digest, sbom=held.digest)


def _add_image(bench: Workbench, name: str) -> Artifact:
    layout = _open_layout(bench, name)
    labels = archives.labels_of(bench.order.version, bench.commit.revision)
    archive = bench.order.images[name]
    image = archives.add_image(archive, layout, bench.order.version, labels, bench.scratch)
    held = _attach(bench, layout, name, image, _sbom_file(bench, name).read_bytes())
    return Artifact(repository=name, kind="image", digest=image.digest, sbom=held.digest)


def _open_layout(bench: Workbench, repository: str) -> oci.LayoutWriter:
    return oci.LayoutWriter(root=layout_of(bench.out, repository))


def _attach(
    bench: Workbench, layout: oci.LayoutWriter, repository: str, one: oci.Descriptor, text: bytes
) -> oci.Descriptor:
    """Put an SBOM beside an artifact, sign both, and end the layout."""
    config = layout.add_blob(b"{}", oci.EMPTY_TYPE)
    document = layout.add_blob(text, SBOM_TYPE)
    created = {"org.opencontainers.image.created": bench.commit.created}
    manifest = oci.build_manifest(config, [document], created, artifact_type=SBOM_TYPE, subject=one)
    held = layout.add_manifest(manifest, sbom_tag(one.digest))
    claims = {"version": bench.order.version, "commit": bench.commit.revision}
    for signed in (one, held):
        signatures.add_signature(layout, signed, repository, claims, bench.order.key)
    layout.close()
    return held


def _seal(bench: Workbench, contents: Contents) -> None:
    """Write digests and their signature, and read all of it as a stranger would."""
    key = bench.order.key.public_key()
    (bench.out / CONTENTS).write_bytes(contents.to_bytes())
    (bench.out / PUBLIC_KEY).write_bytes(signatures.public_pem(key))
    text = sums.render(sums.read_folder(bench.out))
    (bench.out / SUMS).write_bytes(text)
    (bench.out / SUMS_SIGNATURE).write_text(signatures.sign(bench.order.key, text) + "\n")
    if wrong := find_differences(bench.out, key, bench.order.version):
        raise ReleaseError("the release that was made does not verify:\n  " + "\n  ".join(wrong))
