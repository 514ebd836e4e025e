"""Packs a chart as `helm push` does: its metadata as config, one layer with its files; equal bytes for equal charts.

https://helm.sh/docs/topics/registries/
"""

from __future__ import annotations

import fnmatch
import gzip
import io
import tarfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from release import oci
from release.errors import LayoutError
from release.source import Commit

CONFIG_TYPE = "application/vnd.cncf.helm.config.v1+json"
LAYER_TYPE = "application/vnd.cncf.helm.chart.content.v1.tar+gzip"
IGNORE = ".helmignore"
CHART_BYTES_MAX = 64 << 20
"""Of a chart when it is unpacked."""
CHART_YAML_BYTES_MAX = 64 << 10
MEMBERS_MAX = 4096


def add_chart(layout: oci.LayoutWriter, folder: Path, tag: str, commit: Commit) -> oci.Descriptor:
    """Pack a chart's folder into a layout under this tag."""
    metadata = yaml.safe_load((folder / "Chart.yaml").read_text(encoding="utf-8"))
    config = layout.add_blob(oci.to_bytes(metadata), CONFIG_TYPE)
    content = layout.add_blob(pack(folder, metadata["name"], commit.epoch_seconds), LAYER_TYPE)
    annotations = {
        "org.opencontainers.image.title": metadata["name"],
        "org.opencontainers.image.version": metadata["version"],
        "org.opencontainers.image.description": metadata["description"],
        "org.opencontainers.image.created": commit.created,
        "org.opencontainers.image.revision": commit.revision,
    }
    return layout.add_manifest(oci.build_manifest(config, [content], annotations), tag)


def pack(folder: Path, name: str, epoch_seconds: int) -> bytes:
    """The chart as one file, without what its `.helmignore` names."""
    written = io.BytesIO()
    with (
        gzip.GzipFile("", "wb", 9, written, mtime=epoch_seconds) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for path in _files(folder):
            data = path.read_bytes()
            member = tarfile.TarInfo(f"{name}/{path.relative_to(folder).as_posix()}")
            member.size, member.mode, member.mtime = len(data), 0o644, epoch_seconds
            archive.addfile(member, io.BytesIO(data))
    return written.getvalue()


def _files(folder: Path) -> Iterator[Path]:
    ignored = _read_ignored(folder)
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        if path.is_file() and not any(_matches(name, pattern) for pattern in ignored):
            yield path


def _read_ignored(folder: Path) -> list[str]:
    path = folder / IGNORE
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    return [line.strip() for line in lines if line.strip() and not line.startswith("#")]


def _matches(name: Path, pattern: str) -> bool:
    """Helm's two plain forms: `folder/`, and a glob of the last name."""
    if pattern.endswith("/"):
        return pattern.rstrip("/") in {part.name for part in name.parents}
    return fnmatch.fnmatchcase(name.name, pattern)


def find_wrong_versions(root: Path, manifest: Mapping[str, Any], version: str) -> list[str]:
    """Each place in a packed chart that says another version.

    Raises:
        LayoutError: no chart that can be read.
    """
    config, content = oci.blobs_of(manifest, "manifest")
    if (config.media_type, content.media_type) != (CONFIG_TYPE, LAYER_TYPE):
        raise LayoutError(f"config {config.media_type!r:.80}: no chart of Helm's")
    said = oci.read_document(oci.read_blob(root, config), config.digest)
    packed = _read_packed(oci.blob_path(root, content.digest), str(said.get("name")))
    held = {"config": said, "Chart.yaml": packed}
    return [
        f"{place} of the chart: {field} is {chart.get(field)!r:.80}, expected {version}"
        for place, chart in held.items()
        for field in ("version", "appVersion")
        if chart.get(field) != version
    ]


def _read_packed(path: Path, name: str) -> Mapping[str, Any]:
    try:
        text = _read_bounded(path)
        with tarfile.open(fileobj=io.BytesIO(text), mode="r:") as archive:
            for count, member in enumerate(archive):
                if count >= MEMBERS_MAX:
                    break
                if member.name == f"{name}/Chart.yaml" and member.isreg():
                    found = archive.extractfile(member)
                    assert found is not None
                    return _parse_chart(found.read(CHART_YAML_BYTES_MAX))
    except (OSError, EOFError, zlib.error, tarfile.TarError, yaml.YAMLError) as error:
        raise LayoutError(f"no packed chart that can be read: {error}") from error
    raise LayoutError(f"the packed chart has no {name}/Chart.yaml")


def _read_bounded(path: Path) -> bytes:
    with gzip.open(path) as packed:
        text = packed.read(CHART_BYTES_MAX + 1)
    if len(text) > CHART_BYTES_MAX:
        raise LayoutError(f"the packed chart holds more than {CHART_BYTES_MAX} bytes")
    return text


def _parse_chart(text: bytes) -> Mapping[str, Any]:
    try:
        if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text)):
            raise LayoutError("Chart.yaml: an alias of YAML, which is not read")
        chart = yaml.safe_load(text)
    except RecursionError as error:
        raise LayoutError("Chart.yaml: nested too deeply") from error
    if not isinstance(chart, dict):
        raise LayoutError("Chart.yaml: expected a mapping")
    return chart
