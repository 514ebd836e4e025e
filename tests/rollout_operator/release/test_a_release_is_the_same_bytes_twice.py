"""A commit and a key have one release: whoever makes it again, elsewhere and later, gets the same bytes."""

import os
import subprocess

import pytest
import release_kit

from release import oci, sums
from release.build import Order, build
from release.contents import layout_of
from release.errors import ReleaseError
from release.verify import find_differences, read_contents

pytestmark = pytest.mark.process


def read_all(folder):
    """Its files' digests, those of the digests and their signature, too."""
    outer = {name: (folder / name).read_bytes() for name in ("SHA256SUMS", "SHA256SUMS.sig")}
    return sums.read_folder(folder) | outer


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """Another folder, another umask, another time zone and another hash seed."""
    before = os.umask(0o077)
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    monkeypatch.setenv("PYTHONHASHSEED", "3")
    yield tmp_path / "a" / "longer" / "path"
    os.umask(before)


def test_a_release_made_again_elsewhere_has_the_same_bytes(small_release, elsewhere):
    again = release_kit.make_release(elsewhere, images=True)
    assert read_all(again.folder) == read_all(small_release.folder)


def test_a_release_holds_wheels_charts_images_and_what_is_in_them(small_release):
    contents = read_contents(small_release.folder)

    assert [one.repository for one in contents.artifacts] == [
        "charts/rollout",
        "charts/rollout-crds",
        "rollout-operator",
    ]
    assert [one.partition("-")[0] for one in contents.wheels] == [
        "rollout_api",
        "rollout_operator",
        "rollout_rl",
    ]
    assert sorted(one.name for one in (small_release.folder / "sboms").iterdir()) == [
        "chart-rollout-crds.cdx.json",
        "chart-rollout.cdx.json",
        "rollout-operator.cdx.json",
        "rollout-worker.cdx.json",
    ]
    assert find_differences(small_release.folder, small_release.key.public_key(), "0.3.1") == []


def test_digests_are_what_sha256sum_checks(small_release):
    done = subprocess.run(
        ["sha256sum", "--check", "--quiet", "--strict", "SHA256SUMS"],
        cwd=small_release.folder,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_chart_is_packed_without_what_it_ignores(small_release):
    import io
    import tarfile

    root = layout_of(small_release.folder, "charts/rollout")
    top = oci.read_tags(root)["0.3.1"]
    manifest = oci.read_document(oci.read_blob(root, top), "manifest")
    content = oci.blobs_of(manifest, "manifest")[1]

    with tarfile.open(
        fileobj=io.BytesIO(oci.blob_path(root, content.digest).read_bytes())
    ) as chart:
        names = chart.getnames()

    assert names == ["rollout/.helmignore", "rollout/Chart.yaml", "rollout/templates/a.yaml"]


def order_of(release, target, **changed):
    settings = {
        "checkout": release.checkout,
        "version": release.version,
        "key": release.key,
        "images": {},
        "pins_file": "constraints.hashes.txt",
        "target": target,
    }
    return Order(**settings | changed)


def test_a_checkout_that_differs_from_its_commit_is_not_released(tmp_path):
    checkout = release_kit.write_repository(tmp_path / "checkout")
    (checkout / "charts/rollout/templates/a.yaml").write_text("a: 2\n")
    (checkout / "left-behind.txt").write_text("")
    target = tmp_path / "out"
    order = Order(
        checkout=checkout,
        version=release_kit.VERSION,
        key=release_kit.fixed_key(),
        images={},
        pins_file="constraints.hashes.txt",
        target=target,
    )

    with pytest.raises(ReleaseError, match=r"not as committed: .*a\.yaml, left-behind\.txt"):
        build(order)
    assert not target.exists()


def test_a_release_is_not_made_over_another(small_release):
    with pytest.raises(ReleaseError, match="is there already"):
        build(order_of(small_release, small_release.folder))


def test_another_version_than_the_repositorys_is_not_released(small_release, tmp_path):
    with pytest.raises(ReleaseError) as refused:
        build(order_of(small_release, tmp_path / "out", version="0.4.0"))

    text = str(refused.value)
    assert "crds/pyproject.toml: version: 0.3.1, expected 0.4.0" in text
    assert "CHANGELOG.md: no heading `## 0.4.0`" in text
    assert list(tmp_path.iterdir()) == []


def test_an_image_that_the_containerfile_does_not_have_is_refused(small_release, tmp_path):
    with pytest.raises(ReleaseError, match="image debug: expected rollout-operator or"):
        build(order_of(small_release, tmp_path / "out", images={"debug": tmp_path / "a.tar"}))


def test_an_image_of_another_commit_is_refused(small_release, tmp_path):
    labels = release_kit.image_labels("0.3.1", "0" * 40)
    archive = release_kit.write_archive(tmp_path / "old.tar", labels)
    images = {"rollout-operator": archive}

    with pytest.raises(ReleaseError, match=r"old\.tar: label .*revision is '0{40}', expected"):
        build(order_of(small_release, tmp_path / "out", images=images))
    assert not (tmp_path / "out").exists()
