"""The attacker keeps a mirror of releases: they change a byte, drop a file, sign it themselves, or pass an old one for new."""

import json
import os
import shutil
import subprocess

import pytest
import release_kit

from release import oci, signatures
from release.__main__ import main
from release.contents import CONTENTS, PUBLIC_KEY, SUMS, SUMS_SIGNATURE
from release.verify import find_differences, read_contents

pytestmark = pytest.mark.process


@pytest.fixture(scope="session")
def small_release(tmp_path_factory):
    return release_kit.make_release(tmp_path_factory.mktemp("release"), images=True)


@pytest.fixture
def release(small_release, tmp_path):
    return small_release.copy(tmp_path / "copy")


def differences(release, version=release_kit.VERSION):
    return find_differences(release.folder, release.key.public_key(), version)


def artifact(release, repository):
    contents = read_contents(release.folder)
    return next(one for one in contents.artifacts if one.repository == repository)


def test_one_flipped_bit_in_any_file_is_named(release):
    for path in sorted(one for one in release.folder.rglob("*") if one.is_file()):
        data = path.read_bytes()
        path.write_bytes(bytes([data[0] ^ 1]) + data[1:])
        found = differences(release)
        path.write_bytes(data)

        name = path.relative_to(release.folder).as_posix()
        expected = SUMS if name in {SUMS, SUMS_SIGNATURE} else name
        assert any(one.startswith(expected) for one in found), name
    assert differences(release) == []


def test_a_missing_file_is_named(release):
    (wheel,) = (release.folder / "wheels").glob("rollout_operator*")
    wheel.unlink()
    assert differences(release) == [f"wheels/{wheel.name}: is missing"]


def test_a_file_more_is_named(release):
    (release.folder / "wheels" / "torch-9.9-py3-none-any.whl").write_bytes(b"mine")
    (found,) = differences(release)
    assert found == "wheels/torch-9.9-py3-none-any.whl: SHA256SUMS does not name it"


def test_a_link_to_the_file_elsewhere_is_refused_unread(release, tmp_path):
    (wheel,) = (release.folder / "wheels").glob("rollout_operator*")
    shutil.move(wheel, tmp_path / "wheel")
    wheel.symlink_to(tmp_path / "wheel")
    assert differences(release) == [f"wheels/{wheel.name}: neither a file nor a folder"]


def test_a_pipe_in_the_folder_holds_nobody_up(release):
    os.mkfifo(release.folder / "wheels" / "pipe")
    assert differences(release) == ["wheels/pipe: neither a file nor a folder"]


def test_a_release_that_the_attacker_signed_with_their_own_key_is_refused(release):
    mine = release_kit.fixed_key(666)
    text = (release.folder / SUMS).read_bytes()
    (release.folder / SUMS_SIGNATURE).write_text(signatures.sign(mine, text))
    (release.folder / PUBLIC_KEY).write_bytes(signatures.public_pem(mine.public_key()))

    found = differences(release)

    assert found[0].startswith("SHA256SUMS: signed by another key")
    assert found[1:] == [
        f"{PUBLIC_KEY}: its bytes are others (sha256 " + found[1].split("sha256 ")[1]
    ]


def test_a_whole_release_remade_under_another_key_is_refused(release, tmp_path):
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(
            release_kit,
            "fixed_key",
            lambda: release_kit.ec.derive_private_key(9, release_kit.ec.SECP256R1()),
        )
        other = release_kit.make_release(tmp_path / "other")

    found = find_differences(other.folder, release.key.public_key(), other.version)

    assert len(found) == 1
    assert "signed by another key" in found[0]


def test_an_older_release_is_not_the_newer_one(release):
    assert differences(release, "0.4.0") == ["release.json: version 0.3.1, expected 0.4.0"]


def test_an_older_release_that_says_a_newer_version_is_refused(release):
    path = release.folder / CONTENTS
    path.write_bytes(path.read_bytes().replace(b'"version":"0.3.1"', b'"version":"0.4.0"'))
    assert any(one.startswith(CONTENTS) for one in differences(release, "0.4.0"))


def test_a_chart_of_an_older_release_with_its_own_good_signature_is_refused(release, tmp_path):
    older = release_kit.make_release(tmp_path / "older", version="0.3.0")
    shutil.rmtree(release.layout("charts/rollout"))
    shutil.copytree(older.layout("charts/rollout"), release.layout("charts/rollout"))

    found = differences(release)

    assert any("oci/charts/rollout/index.json: its bytes are others" in one for one in found)


def test_the_owner_who_vouches_for_an_older_chart_by_mistake_is_told(release, tmp_path):
    older = release_kit.make_release(tmp_path / "older", version="0.3.0")
    shutil.rmtree(release.layout("charts/rollout"))
    shutil.copytree(older.layout("charts/rollout"), release.layout("charts/rollout"))
    release.reseal()

    (found,) = differences(release)

    assert found.startswith("charts/rollout: tag 0.3.1 is missing, release.json says sha256:")


def retag(root, old, new):
    index = json.loads((root / "index.json").read_text())
    for one in index["manifests"]:
        if one["annotations"][oci.TAG] == old:
            one["annotations"][oci.TAG] = new
    (root / "index.json").write_text(json.dumps(index))


def test_an_older_chart_under_the_newer_tag_is_told_by_what_it_holds(release, tmp_path):
    older = release_kit.make_release(tmp_path / "older", version="0.3.0")
    new, old = artifact(release, "charts/rollout"), artifact(older, "charts/rollout")
    shutil.rmtree(release.layout("charts/rollout"))
    shutil.copytree(older.layout("charts/rollout"), release.layout("charts/rollout"))
    retag(release.layout("charts/rollout"), "0.3.0", "0.3.1")
    text = (release.folder / CONTENTS).read_text()
    text = text.replace(new.digest, old.digest).replace(new.sbom, old.sbom)
    (release.folder / CONTENTS).write_text(text)
    release.reseal()

    found = differences(release)

    assert "charts/rollout: config of the chart: version is '0.3.0', expected 0.3.1" in found
    assert "charts/rollout: Chart.yaml of the chart: appVersion is '0.3.0', expected 0.3.1" in found
    assert sum("what was signed is another" in one for one in found) == 2


def test_a_signature_of_another_artifact_is_refused(release):
    root = release.layout("charts/rollout")
    one = artifact(release, "charts/rollout")
    chart, sbom = signatures.signature_tag(one.digest), signatures.signature_tag(one.sbom)
    retag(root, chart, "held")
    retag(root, sbom, chart)
    retag(root, "held", sbom)
    release.reseal()

    found = differences(release)

    assert len(found) == 2
    assert all("what was signed is another" in one for one in found)


def test_an_artifact_without_a_signature_is_named(release):
    root = release.layout("rollout-operator")
    index = json.loads((root / "index.json").read_text())
    index["manifests"] = [
        one for one in index["manifests"] if not one["annotations"][oci.TAG].endswith(".sig")
    ]
    (root / "index.json").write_text(json.dumps(index))
    release.reseal()

    found = differences(release)

    assert len(found) == 2
    assert all(one.endswith("there is no signature") for one in found)


@pytest.mark.parametrize(
    "path",
    ["../outside", "/etc/passwd", "wheels/../../outside", "oci//x", "wheels\\x", "a b", ""],
)
def test_a_list_of_digests_leads_to_no_file_outside(release, path):
    text = (release.folder / SUMS).read_bytes() + f"{'0' * 64}  {path}\n".encode()
    (release.folder / SUMS).write_bytes(text)
    (release.folder / SUMS_SIGNATURE).write_text(signatures.sign(release.key, text))

    found = differences(release)

    assert len(found) == 1
    assert found[0].startswith("SHA256SUMS")


@pytest.mark.parametrize(
    "said",
    [
        b"[" * 100_000,
        b'{"version": "0.3.1"}',
        b'{"version":"0.3.1","commit":"a","created":"b","made_with":{},"wheels":["../x.whl"],"artifacts":[]}',
        b"\xff\xfe",
        b"null",
        b" " * (5 << 20),
    ],
)
def test_contents_that_cannot_be_read_are_an_answer_and_no_crash(release, said):
    (release.folder / CONTENTS).write_bytes(said)
    release.reseal()
    (found,) = differences(release)
    assert found.startswith("release.json")


def test_a_chart_that_unpacks_to_very_much_is_not_unpacked(release):
    import gzip

    root, one = release.layout("charts/rollout"), artifact(release, "charts/rollout")
    manifest = json.loads(release.blob("charts/rollout", one.digest).read_bytes())
    bomb = gzip.compress(b"\0" * (80 << 20), 9)
    writer = oci.LayoutWriter(root=root)
    layer = writer.add_blob(bomb, manifest["layers"][0]["mediaType"])
    manifest["layers"] = [layer.to_json()]
    top = writer.add_blob(oci.to_bytes(manifest), oci.MANIFEST_TYPE)
    for path in (root / "index.json", release.folder / CONTENTS):
        path.write_text(path.read_text().replace(one.digest, top.digest))
    index = json.loads((root / "index.json").read_text())
    for entry in index["manifests"]:
        if entry["digest"] == top.digest:
            entry["size"] = top.size_bytes
    (root / "index.json").write_text(json.dumps(index))
    retag(root, oci_tag(one.digest, "sbom"), oci_tag(top.digest, "sbom"))
    release.reseal()

    assert any("holds more than" in one for one in differences(release))


def oci_tag(digest, ending):
    return f"{digest.replace(':', '-')}.{ending}"


def test_the_command_names_what_differs_and_fails(release, tmp_path, capsys):
    key = tmp_path / "cosign.pub"
    key.write_bytes(signatures.public_pem(release.key.public_key()))
    arguments = ["verify", str(release.folder), "--key", str(key), "--version", "0.3.1"]
    assert main(arguments) == 0

    (release.folder / "sboms" / "rollout-worker.cdx.json").write_text("{}")

    assert main(arguments) == 1
    assert "sboms/rollout-worker.cdx.json: its bytes are others" in capsys.readouterr().err


def test_openssl_says_the_same_of_the_digests(release, tmp_path):
    import base64

    signature = tmp_path / "signature"
    signature.write_bytes(base64.b64decode((release.folder / SUMS_SIGNATURE).read_text()))
    command = ["openssl", "dgst", "-sha256", "-verify", str(release.folder / PUBLIC_KEY)]
    command += ["-signature", str(signature), str(release.folder / SUMS)]
    assert subprocess.run(command, capture_output=True, text=True).stdout == "Verified OK\n"

    (release.folder / SUMS).write_bytes((release.folder / SUMS).read_bytes() + b"\n")
    assert subprocess.run(command, capture_output=True, text=True).returncode == 1
