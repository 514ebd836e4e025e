"""A snapshot says its format, its ledger's and its run's: one that an earlier release saved opens, others are refused.

``formats/snapshot-1`` is what the release that first had snapshots wrote after four steps: its manifest and its objects.
"""

import json
import shutil
from pathlib import Path

import msgspec
import pytest
from ledger_kit import IDENTITY, Clock
from snapshot_kit import changed, open_at

from rollout.errors import LedgerError, SnapshotRefused
from rollout.ledger.cuts import CUT_FORMAT, decode_cut, encode_cut
from rollout.ledger.records import ANCHOR_FORMAT, Limits
from rollout.ledger.sqlite.ledger import SqliteLedger
from rollout.objects.reading import ObjectFiles
from rollout.runs.identity import IDENTITY_FORMAT
from rollout.runs.snapshots.overrides import check_changes
from rollout.snapshots.layers.registry import BUFFER, TRAIN_STATE
from rollout.snapshots.manifest import MANIFEST_FORMAT, build_manifest, parse_manifest
from rollout.snapshots.place import find_manifest
from rollout.snapshots.signing import require_trusted
from rollout.snapshots.verifying import find_snapshot_damage

SAVED = Path(__file__).parent / "formats" / "snapshot-1"
ID = "4f9eecbeeaf401caa104e877cfab52a444b53a2dceaea55c3ceb905f26db9846"
NOT_OURS = [2, 0, None, "1"]


@pytest.fixture
def folder(tmp_path):
    return Path(shutil.copytree(SAVED, tmp_path / "objects"))


@pytest.fixture
def manifest(folder):
    return find_manifest(open_at(folder).named, ID)


@pytest.fixture
def document(folder):
    return json.loads((folder / "snapshots" / "manifests" / f"{ID}.json").read_bytes())


def test_one_of_an_earlier_release_is_whole_and_has_the_id_and_signature_that_it_had(
    manifest, folder
):
    require_trusted(manifest, {manifest.signature.signer})
    assert list(find_snapshot_damage(manifest, ObjectFiles(folder))) == []
    assert build_manifest(manifest.header, manifest.layers).id == manifest.id == ID


async def test_a_run_begins_where_one_of_an_earlier_release_was_saved(manifest, folder, tmp_path):
    files = ObjectFiles(folder)
    anchor = TRAIN_STATE.read(manifest.layer("train_state"), files)
    cut = BUFFER.read(manifest.layer("buffer"), files)
    ledger = SqliteLedger(tmp_path / "ledger.db", IDENTITY, Limits(), Clock())
    await ledger.restore(cut, f"from snapshot {ID}")
    state = await ledger.load()
    await ledger.close()

    assert (anchor.step, anchor.state["format"]) == (4, ANCHOR_FORMAT)
    assert (state.head.step, state.head.chain) == (4, manifest.header.chain)
    assert [one.name for one in state.anchors] == ["step-000004"]
    assert (state.first_waiting, state.next_admitted) == (8, 10)
    assert [one.body is not None for one in state.groups] == [True, False]


def test_its_ledger_is_written_again_bit_for_bit(manifest, folder):
    [part] = [one for one in manifest.layer("buffer").parts if one.name == "ledger"]
    data = ObjectFiles(folder).path(part.object).read_bytes()

    assert encode_cut(decode_cut(data)) == data


@pytest.mark.parametrize("other", NOT_OURS)
def test_one_of_another_format_is_refused_with_both_numbers_whatever_else_it_holds(other):
    data = json.dumps({"format": other, "of_a_later_release": True}).encode()

    with pytest.raises(
        SnapshotRefused,
        match=f"here: a snapshot of format {other!r}, this version of rollout reads {MANIFEST_FORMAT}: use",
    ):
        parse_manifest(data, "here")


@pytest.mark.parametrize("other", NOT_OURS)
def test_a_ledger_of_another_format_in_it_is_refused_with_both_numbers(other):
    data = msgspec.msgpack.encode({"format": other, "of_a_later_release": True})

    with pytest.raises(
        LedgerError,
        match=f"a cut of format {other!r}, this version of rollout reads {CUT_FORMAT}: use",
    ):
        decode_cut(data)


@pytest.mark.parametrize("other", [IDENTITY_FORMAT + 1, None])
def test_one_of_a_run_of_another_identity_format_is_refused_with_both_numbers(manifest, other):
    saved = manifest.header.run
    before = changed(saved, identity={**saved.identity, "format": other})
    after = {**saved.identity, "format": IDENTITY_FORMAT}

    with pytest.raises(
        SnapshotRefused,
        match=f"has identity format {other}, this version of rollout writes {IDENTITY_FORMAT}: restore",
    ):
        check_changes(before, after, saved.contents, saved.dtype)
