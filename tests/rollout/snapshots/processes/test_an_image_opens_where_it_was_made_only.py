"""What an image holds cannot be read without the installation's key, nor as another program's, nor after a bit was flipped."""

from __future__ import annotations

import secrets

import msgspec
import pytest
from process_images import SECRET, dump_folder, facts_of, opened_place, read_whole, save_dump

from rollout.errors import ObjectDamaged, SnapshotRefused, StoreError
from rollout.objects.filesystem import FilesystemStore
from rollout.runs.processes.restoring import require_own
from rollout.snapshots.processes.image import FILES, INDEX, open_image, read_facts
from rollout.snapshots.processes.sealing import Sealer, open_sealer
from rollout.snapshots.signing import key_path, open_signer
from rollout.snapshots.verifying import find_snapshot_damage


@pytest.fixture
def key(tmp_path):
    return tmp_path / "config" / "rollout" / "snapshot.key"


@pytest.fixture
def saved(tmp_path, key):
    place = opened_place(tmp_path)
    dump = dump_folder(tmp_path / "dump")
    manifest = save_dump(place, dump, open_sealer(key, "", "uid"), open_signer(key))
    return place, manifest, dump


def test_a_dump_comes_back_whole(saved, key):
    place, manifest, dump = saved
    layer, sealer = manifest.layer("process"), open_sealer(key, "", "uid")
    assert read_facts(layer, sealer, place.store) == facts_of(dump)
    wanted = {one.name: one.read_bytes() for one in dump.iterdir() if one.suffix == ".img"}
    assert read_whole(open_image(layer, sealer, place.store)) == wanted


def test_nothing_that_is_stored_holds_what_was_in_memory(saved):
    place, manifest, _ = saved
    for name in manifest.objects:
        assert SECRET not in place.store.path(name).read_bytes()
    assert manifest.layer("process").restore_scope == "sameNode"


@pytest.mark.parametrize("other", [("", "another"), ("team", "uid")])
def test_another_program_or_namespace_cannot_open_it(saved, key, other):
    place, manifest, _ = saved
    with pytest.raises(SnapshotRefused, match="another installation's or program's"):
        open_image(manifest.layer("process"), open_sealer(key, *other), place.store)


def test_another_installation_cannot_open_it(saved, tmp_path):
    place, manifest, _ = saved
    stranger = open_sealer(tmp_path / "other" / "snapshot.key", "", "uid")
    with pytest.raises(SnapshotRefused, match="never taken across installations"):
        open_image(manifest.layer("process"), stranger, place.store)


def test_one_that_another_installation_has_signed_is_refused_before_it_is_read(
    saved, tmp_path, monkeypatch
):
    _, manifest, _ = saved
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "mine"))
    open_signer(key_path({"XDG_CONFIG_HOME": str(tmp_path / "mine")}))
    with pytest.raises(SnapshotRefused, match="does not trust"):
        require_own(manifest)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    assert require_own(manifest).kind == "process"


@pytest.mark.parametrize("part", [INDEX, FILES, "pack/00000", "table/00000"])
def test_a_flipped_bit_is_found_and_named(saved, key, part):
    place, manifest, _ = saved
    layer = manifest.layer("process")
    name = next(one.object for one in layer.parts if one.name == part)
    path = place.store.locate(name)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.chmod(0o600)
    path.write_bytes(data)
    source = FilesystemStore(path.parents[2])
    damage = list(find_snapshot_damage(manifest, source))
    assert [(one.layer, one.part) for one in damage] == [("process", part)]
    if not part.startswith("table"):
        with pytest.raises(ObjectDamaged):
            read_whole(open_image(layer, open_sealer(key, "", "uid"), source))


def test_a_flipped_bit_that_a_store_would_not_find_is_found_by_the_seal():
    sealer = Sealer(secrets.token_bytes(32))
    sealed = bytearray(sealer.seal("pack", b"content"))
    for place in (0, 5, len(sealed) - 1):
        broken = bytearray(sealed)
        broken[place] ^= 1
        with pytest.raises((SnapshotRefused, StoreError)):
            sealer.open("pack", bytes(broken), 100)
    with pytest.raises(SnapshotRefused):
        sealer.open("index", bytes(sealed), 100)
    with pytest.raises(StoreError, match="at most 3"):
        sealer.open("pack", bytes(sealed), 3)


@pytest.mark.parametrize("name", ["../../etc/cron.d/x", "/etc/passwd", ".hidden", "a/b", ""])
def test_a_name_that_leaves_the_folder_is_refused(tmp_path, key, name):
    sealer = open_sealer(key, "", "uid")
    place = opened_place(tmp_path)
    manifest = save_dump(place, dump_folder(tmp_path / "dump"), sealer, open_signer(key))
    layer = manifest.layer("process")
    hostile = place.store.put(sealer.seal(FILES, msgspec.msgpack.encode({name: b"bytes"})))
    parts = tuple(
        msgspec.structs.replace(one, object=hostile) if one.name == FILES else one
        for one in layer.parts
    )
    with pytest.raises(SnapshotRefused, match="no file of an image"):
        open_image(msgspec.structs.replace(layer, parts=parts), sealer, place.store)
