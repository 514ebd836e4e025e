"""The attacker writes the archive of an image that is to be released: it wants files elsewhere, other bytes, or all of the disk."""

import io
import json
import tarfile

import pytest
import release_kit

from release import oci
from release.errors import LayoutError
from release.parts.archives import add_image

LABELS = release_kit.image_labels("0.3.1", "a" * 40)


@pytest.fixture
def place(tmp_path):
    (tmp_path / "work").mkdir()
    return tmp_path / "work"


def take(place, archive):
    """Read the archive into a layout; its index is never written, so that nothing counts as taken."""
    layout = oci.LayoutWriter(root=place / "layout")
    return add_image(archive, layout, "0.3.1", LABELS, place / "scratch")


def refuse(place, members, match):
    archive = release_kit.pack_members(place / "image.tar", members)
    with pytest.raises(LayoutError, match=match):
        take(place, archive)
    assert not (place / "scratch").exists()
    outside = {one.name for one in place.parent.iterdir()}
    assert outside == {"work"}


def test_an_honest_archive_is_taken(place):
    archive = release_kit.write_archive(place / "image.tar", LABELS)
    top = take(place, archive)
    assert len(list(oci.walk(place / "layout", top))) == 3


def test_what_docker_writes_beside_a_layout_is_passed_over(place):
    members = release_kit.image_members(LABELS) | {"manifest.json": b"[]", "repositories": b"{}"}
    take(place, release_kit.pack_members(place / "image.tar", members))


@pytest.mark.parametrize(
    "name",
    [
        "../escaped",
        "/tmp/escaped",
        "blobs/sha256/../../../escaped",
        "blobs/sha256/" + "a" * 63 + "/",
        "blobs/sha512/" + "a" * 128,
        "blobs/sha256/" + "A" * 64,
        "index.json/x",
        "a\nb",
    ],
)
def test_a_member_of_another_name_is_refused(place, name):
    refuse(place, release_kit.image_members(LABELS) | {name: b"mine"}, "is none of a layout")


@pytest.mark.parametrize(
    "kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE]
)
def test_a_member_that_is_no_file_is_refused(place, kind):
    path = place / "image.tar"
    with tarfile.open(path, "w") as archive:
        member = tarfile.TarInfo("blobs/sha256/" + "a" * 64)
        member.type, member.linkname = kind, "/etc/passwd"
        archive.addfile(member)
    with pytest.raises(LayoutError, match="is none of a layout"):
        take(place, path)


def test_a_member_that_is_there_twice_is_refused(place):
    path = place / "image.tar"
    release_kit.write_archive(path, LABELS)
    with tarfile.open(path, "a") as archive:
        member = tarfile.TarInfo("index.json")
        member.size = 2
        archive.addfile(member, io.BytesIO(b"{}"))
    with pytest.raises(LayoutError, match="is there twice"):
        take(place, path)


def change(members, name, text):
    return members | {name: text if isinstance(text, bytes) else json.dumps(text).encode()}


def blobs(members):
    return sorted((name for name in members if name.startswith("blobs")), key=lambda n: members[n])


def test_a_blob_of_other_bytes_is_refused(place):
    members = release_kit.image_members(LABELS)
    for name in blobs(members):
        data = members[name]
        refuse(place, members | {name: data[:-1] + bytes([data[-1] ^ 1])}, "its bytes are others")


def test_a_blob_that_is_not_there_is_refused(place):
    members = release_kit.image_members(LABELS)
    for name in blobs(members):
        refuse(place, {n: d for n, d in members.items() if n != name}, "no such file")


@pytest.mark.parametrize(
    "index",
    [
        b"",
        b"[" * 50_000,
        b'"text"',
        {"manifests": []},
        {"manifests": [{"digest": "sha256:../../etc/passwd", "size": 1, "mediaType": "x"}]},
        {"manifests": [{"digest": "sha256:" + "a" * 64, "size": -1, "mediaType": "x"}]},
        {
            "manifests": [
                {"digest": "sha256:" + "a" * 64, "size": 1e9, "mediaType": oci.MANIFEST_TYPE}
            ]
        },
        {"manifests": [{"digest": "sha256:" + "a" * 64, "size": 1, "mediaType": "text/html"}]},
        {"manifests": [{"digest": "sha256:" + "a" * 64, "size": 1}] * 2000},
        {"manifests": [17]},
        {"manifests": {}},
    ],
)
def test_an_index_of_something_else_is_refused(place, index):
    refuse(place, change(release_kit.image_members(LABELS), "index.json", index), "image.tar: ")


def test_an_index_of_itself_ends(place):
    members = release_kit.image_members(LABELS)
    inner = oci.to_bytes({"manifests": []})
    for _ in range(5):
        one = oci.describe(inner, oci.INDEX_TYPE)
        members[f"blobs/sha256/{one.digest[7:]}"] = inner
        inner = oci.to_bytes({"manifests": [one.to_json()]})
    refuse(place, change(members, "index.json", inner), "levels|no config")


def test_an_image_of_another_version_is_refused(place):
    old = LABELS | {"org.opencontainers.image.version": "0.3.0"}
    refuse(place, release_kit.image_members(old), "version is '0.3.0', expected '0.3.1'")
    refuse(place, release_kit.image_members({}), "version is None")


@pytest.mark.parametrize("settings", [[1], "text", {"Labels": [1]}, {"Labels": "text"}, None, 3])
def test_a_config_of_another_form_says_no_version(place, settings):
    config = oci.to_bytes({"config": settings})
    described = oci.describe(config, oci.CONFIG_TYPE)
    manifest = oci.to_bytes(oci.build_manifest(described, [], {}))
    top = oci.describe(manifest, oci.MANIFEST_TYPE)
    members = {
        "oci-layout": oci.LAYOUT_TEXT,
        "index.json": oci.to_bytes({"manifests": [top.to_json()]}),
        f"blobs/sha256/{described.digest[7:]}": config,
        f"blobs/sha256/{top.digest[7:]}": manifest,
    }
    refuse(place, members, "version is None")


def test_two_images_in_one_archive_are_refused(place):
    members = release_kit.image_members(LABELS)
    index = json.loads(members["index.json"])
    index["manifests"].append(index["manifests"][0] | {"annotations": {oci.TAG: "other"}})
    refuse(place, change(members, "index.json", index), "expected one image, found 2")


def test_a_sparse_member_of_terabytes_takes_no_disk(place):
    member = tarfile.TarInfo("blobs/sha256/" + "a" * 64)
    member.pax_headers = {
        "GNU.sparse.major": "1",
        "GNU.sparse.minor": "0",
        "GNU.sparse.realsize": str(1 << 42),
        "GNU.sparse.name": member.name,
    }
    data = b"1\n0\n0\n".ljust(512, b"\0")
    member.size = len(data)
    path = place / "image.tar"
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as archive:
        archive.addfile(member, io.BytesIO(data))
    with pytest.raises(LayoutError):
        take(place, path)


@pytest.mark.parametrize(
    "data", [b"", b"no archive at all", b"\0" * 10240, b"\x1f\x8b" + b"a" * 600]
)
def test_a_file_that_is_no_archive_is_refused(place, data):
    (place / "image.tar").write_bytes(data)
    with pytest.raises(LayoutError, match=r"image\.tar: "):
        take(place, place / "image.tar")
