"""The attacker's wish: a folder in a shared cache that another run uses because it is there."""

import gzip

import pytest
import zstandard

from rollout.data import files as data_files
from rollout.data.files import find_files
from rollout.errors import DataError, StoreError
from rollout.models.files import build_cached
from rollout.models.packed import PackedModel, pack
from rollout.objects.filesystem import FilesystemStore
from rollout.runs.model_transfer import unfold


def build_model(folder):
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"\x01" * 100)
    return folder


@pytest.fixture
def packed(tmp_path, monkeypatch):
    """A packed model and the folder of the cache where it would lie."""
    monkeypatch.setenv("ROLLOUT_CACHE", str(tmp_path / "cache"))
    store = FilesystemStore(tmp_path / "store")
    digest = store.put_parts(pack(build_model(tmp_path / "model")))
    place = tmp_path / "cache" / "models" / digest.replace(":", "-")
    place.parent.mkdir(parents=True)
    return store.path(digest), PackedModel(place="s3://b/r", digest=digest), place


def content(folder):
    return {p.name: p.read_bytes() for p in folder.iterdir() if not p.name.startswith(".")}


def test_a_folder_of_the_models_name_is_there_before_it(packed, tmp_path):
    archive, model, place = packed
    place.mkdir()
    (place / "config.json").write_text("poisoned by another tenant")
    assert content(unfold(lambda: archive, model)) == content(tmp_path / "model")


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_file_of_an_unpacked_model_is_changed(packed, tmp_path, name):
    archive, model, _ = packed
    folder = unfold(lambda: archive, model)
    (folder / name).chmod(0o644)
    (folder / name).write_bytes(b"\x02" * (folder / name).stat().st_size)
    assert content(unfold(lambda: archive, model)) == content(tmp_path / "model")


@pytest.mark.parametrize("name", ["modeling_evil.py", "pytorch_model.bin", "extra.json"])
def test_a_file_is_laid_beside_an_unpacked_model(packed, tmp_path, name):
    archive, model, _ = packed
    (unfold(lambda: archive, model) / name).write_text("evil")
    assert content(unfold(lambda: archive, model)) == content(tmp_path / "model")


def test_a_marker_is_forged_with_the_files(packed, tmp_path):
    archive, model, place = packed

    def forge(folder):
        (folder / "config.json").write_text("poisoned")
        (folder / "model.safetensors").write_bytes(b"")

    build_cached(tmp_path / "cache", place.name, forge)
    assert content(unfold(lambda: archive, model)) == content(tmp_path / "model")


def test_a_link_stands_where_the_folder_belongs(packed, tmp_path):
    archive, model, place = packed
    place.symlink_to(build_model(tmp_path / "other"))
    (tmp_path / "other" / "config.json").write_text("poisoned")
    assert content(unfold(lambda: archive, model)) == content(tmp_path / "model")
    assert (tmp_path / "other" / "config.json").read_text() == "poisoned", "not ours to change"


def test_a_good_folder_is_not_made_again(packed):
    archive, model, place = packed
    first = unfold(lambda: archive, model)
    inode = first.stat().st_ino
    assert unfold(lambda: archive, model).stat().st_ino == inode
    assert not any(p.stat().st_mode & 0o222 for p in place.iterdir())


def test_a_built_model_lost_a_file_and_is_built_again(tmp_path):
    def build(folder):
        (folder / "config.json").write_text("{}")
        (folder / "model.safetensors").write_bytes(b"\x01")

    folder = build_cached(tmp_path, "name", build)
    (folder / "model.safetensors").unlink()
    assert content(build_cached(tmp_path, "name", build)) == {
        "config.json": b"{}",
        "model.safetensors": b"\x01",
    }


def test_a_builder_that_loses_the_race_to_a_liar_says_so(packed):
    _, _, folder = packed

    def win(work):
        folder.mkdir()
        (folder / "config.json").write_text("poisoned")
        (work / "config.json").write_text("{}")

    with pytest.raises(StoreError, match="does not hold what it should"):
        build_cached(folder.parent.parent, folder.name, win)


def test_unpacked_data_in_the_cache_is_changed(tmp_path):
    path = tmp_path / "rows.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"prompt": "1"}\n'))
    (plain,) = find_files(str(path), tmp_path, tmp_path / "cache")
    plain.chmod(0o644)
    plain.write_text('{"prompt": "poisoned"}\n')
    (again,) = find_files(str(path), tmp_path, tmp_path / "cache")
    assert again.read_text() == '{"prompt": "1"}\n'


@pytest.mark.parametrize("ending", [".gz", ".zst"])
def test_a_small_file_fills_the_disk(tmp_path, monkeypatch, ending):
    monkeypatch.setattr(data_files, "UNPACKED_BYTES_MAX", 1 << 20)
    plain = b"\0" * (2 << 20)
    path = tmp_path / f"rows.jsonl{ending}"
    path.write_bytes(gzip.compress(plain) if ending == ".gz" else zstandard.compress(plain))
    with pytest.raises(DataError, match="unpacks to more than 1 MiB"):
        find_files(str(path), tmp_path, tmp_path / "cache")
    assert list((tmp_path / "cache" / "data").iterdir()) == []
