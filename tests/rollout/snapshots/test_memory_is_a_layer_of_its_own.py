"""What environments keep is saved as it was at the step, found by its kind, read back whole, and nobody else's."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from ledger_kit import IDENTITY, Clock, claim_request, finished, started, step_commit
from restore_kit import another, config_at, write_config
from snapshot_kit import admit, open_at, ordinals, save_state
from test_a_run_goes_back_to_its_own_snapshot import restore_of, state_of

from rollout.errors import SnapshotRefused, StoreError
from rollout.ledger.cuts import LedgerCut
from rollout.ledger.records import Limits, MemoryRow
from rollout.ledger.sql.memory.rows import BEGINNING
from rollout.ledger.sqlite.ledger import SqliteLedger
from rollout.memory import ENTRIES_MAX
from rollout.objects.filesystem import FilesystemStore
from rollout.objects.reading import ObjectFiles
from rollout.runs.run_dir import RunDir
from rollout.runs.snapshots.catalogue import compare, list_catalogue
from rollout.runs.snapshots.creating import create_snapshot
from rollout.runs.snapshots.places import WhereToLook, find_snapshot
from rollout.runs.snapshots.restoring import restore_into
from rollout.runs.snapshots.returning import return_to
from rollout.snapshots.layers.contract import Moment
from rollout.snapshots.layers.memory import HEAD, PAGE, EpisodicMemory
from rollout.snapshots.layers.registry import require_kind
from rollout.snapshots.layers.rows import pack_page
from rollout.snapshots.manifest import LayerRecord, Part
from rollout.snapshots.verifying import find_snapshot_damage

KIND = "episodic_memory"
NOTE = MemoryRow(step=1, ordinal=0, sample=0, key="note", value='{"n":1}', vector=b"\1" * 16)


async def make_remembering(folder: Path, *, writes: bool = True) -> None:
    """Four steps, an anchor each, of which each writes its number over that of the one before, and a key of its own."""
    store = FilesystemStore(folder / "objects")
    ledger = SqliteLedger(folder / "ledger.db", IDENTITY, Limits(), Clock())
    learner, actor = await started(ledger, 0)
    for step in range(1, 5):
        await admit(ledger, step)
        leases = (await ledger.claim(claim_request("actor-0", actor, step=step - 1))).leases
        await ledger.submit("actor-0", actor, [finished(lease) for lease in leases])
        anchor = save_state(store, step)
        rows = (
            msgspec.structs.replace(NOTE, step=step, key="last", value=str(step)),
            msgspec.structs.replace(NOTE, step=step, key=f"of step {step}"),
        )
        commit = step_commit(step, ordinals(step), learner, memory=rows if writes else ())
        await ledger.commit(msgspec.structs.replace(commit, version=anchor.version))
        await ledger.save_anchor(learner, anchor)
    await ledger.close()


@pytest.fixture
async def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("ROLLOUT_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config-of-nobody"))
    await make_remembering(tmp_path / "run")
    write_config(config_at(tmp_path / "run"))
    (tmp_path / "run" / "snapshots").mkdir(exist_ok=True)
    return tmp_path / "run"


async def values(config, lineage, step):
    from rollout.runs.snapshots.restoring import open_ledger_of

    ledger = open_ledger_of(config)
    part = await ledger.memory_of(lineage, step, BEGINNING)
    await ledger.close()
    return {row.key: row.value for row in part.rows}


def read_values(config, lineage, step):
    import asyncio

    return asyncio.run(values(config, lineage, step))


def test_it_holds_what_was_there_at_the_step_and_the_buffer_does_not(folder, signer):
    made = create_snapshot(RunDir(path=folder), signer, step=2).manifest
    layer = made.layer(KIND)
    assert (layer.facts, layer.grade) == ({"entries": 3, "rows": 3}, made.header.grade)
    rows = EpisodicMemory().read(layer, ObjectFiles(folder / "objects"))
    assert [(row[1], row[4], row[5]) for row in rows] == [
        (1, "of step 1", NOTE.value),
        (2, "last", "2"),
        (2, "of step 2", NOTE.value),
    ]
    assert {row[6] for row in rows} == {NOTE.vector}
    buffer = made.layer("buffer")
    assert not any("memory" in part.name for part in buffer.parts)


def test_it_is_listed_by_its_kind_and_told_apart_from_a_later_one(folder, signer):
    first = create_snapshot(RunDir(path=folder), signer, step=2).manifest
    second = create_snapshot(RunDir(path=folder), signer, step=4).manifest
    where = WhereToLook(object_path=str(folder / "objects"))
    found = list_catalogue(where, kind=require_kind(KIND)).found
    assert {one.manifest.id for one in found} == {first.id, second.id}
    told = compare(find_snapshot(first.id, where), find_snapshot(second.id, where))
    assert told["layers"][KIND]["changed"]


async def test_a_run_whose_environments_keep_nothing_has_no_such_layer(tmp_path, signer):
    await make_remembering(tmp_path / "plain", writes=False)
    write_config(config_at(tmp_path / "plain"))
    made = create_snapshot(RunDir(path=tmp_path / "plain"), signer).manifest
    assert [layer.kind for layer in made.layers] == ["buffer", "train_state"]


def test_every_byte_of_it_counts(folder, signer):
    made = create_snapshot(RunDir(path=folder), signer).manifest
    files = ObjectFiles(folder / "objects")
    for part in made.layer(KIND).parts:
        path = files.locate(part.object)
        path.chmod(0o644)
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(data)
    named = {(one.layer, one.part) for one in find_snapshot_damage(made, files)}
    assert {(KIND, part.name) for part in made.layer(KIND).parts} <= named
    with pytest.raises(StoreError):
        restore_of(folder, made, signer)


def test_another_run_begins_with_it(folder, tmp_path, signer):
    made = create_snapshot(RunDir(path=folder), signer, step=2).manifest
    config = another(config_at(folder), tmp_path / "second", made)
    (tmp_path / "second" / "snapshots").mkdir()
    restore_into(restore_of(folder, made, signer), config)
    wanted = {"of step 1": NOTE.value, "last": "2", "of step 2": NOTE.value}
    assert read_values(config, 0, 2) == wanted


def test_a_run_goes_back_to_it_in_place(folder, signer):
    made = create_snapshot(RunDir(path=folder), signer, step=2).manifest
    config = config_at(folder)
    lineage = return_to(restore_of(folder, made, signer), config)
    assert state_of(folder).lineage == lineage == 1
    kept = read_values(config, lineage, 2)
    assert (kept["last"], "of step 3" in kept) == ("2", False)


def layer_of(store, pages, head=None):
    """A layer that somebody else has written."""
    num = sum(len(page) for page in pages)
    parts = {HEAD: pack_page({"format": 1, "num_rows": num} if head is None else head)}
    parts |= {f"{PAGE}{n:06d}": pack_page(page) for n, page in enumerate(pages)}
    return LayerRecord(
        kind=KIND,
        grade="exact",
        restore_scope="anywhere",
        facts={},
        parts=tuple(
            Part(name=name, object=store.put(data), size_bytes=len(data))
            for name, data in parts.items()
        ),
    )


GOOD = (0, 1, 0, 0, "a", "1", b"")
HOSTILE = {
    "another format": ([[GOOD]], {"format": 2, "num_rows": 1}),
    "no head": ([[GOOD]], [1, 2]),
    "fewer rows than it says": ([[GOOD]], {"format": 1, "num_rows": 2}),
    "more columns": ([[(*GOOD, 1)]], None),
    "text for a step": ([[(0, "1; DROP TABLE tasks", 0, 0, "a", "1", b"")]], None),
    "no key": ([[(0, 1, 0, 0, "", "1", b"")]], None),
    "a deep value": ([[(0, 1, 0, 0, "a", "[" * 2000 + "]" * 2000, b"")]], None),
    "no number": ([[(0, 1, 0, 0, "a", "NaN", b"")]], None),
    "a large value": ([[(0, 1, 0, 0, "a", '"' + "x" * 5000 + '"', b"")]], None),
    "half a vector": ([[(0, 1, 0, 0, "a", "1", b"\0" * 4)]], None),
    "rows that are none": ([["x", 7]], None),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_no_run_has_written_is_refused(tmp_path, name):
    store = open_at(tmp_path / "objects").store
    pages, head = HOSTILE[name]
    with pytest.raises(StoreError, match="layer episodic_memory"):
        EpisodicMemory().read(layer_of(store, pages, head), store)


def test_what_a_run_has_written_is_read(tmp_path):
    store = open_at(tmp_path / "objects").store
    assert EpisodicMemory().read(layer_of(store, [[GOOD]]), store) == (GOOD,)


def test_the_next_one_stores_the_pages_that_are_new():
    def pages(steps):
        rows = tuple((0, step, 0, 0, f"k{step}", "1", b"") for step in steps)
        cut = LedgerCut(
            lineage=0,
            step=steps[-1],
            first_waiting=0,
            next_admitted=0,
            exhausted=False,
            rewound=False,
            num_leased=0,
            versions={},
            tables={"memory": rows},
        )
        moment = Moment(anchor=None, cut=cut, grade="exact", source=None)
        return EpisodicMemory().take(moment)

    first, second = pages(range(1, 320)), pages(range(1, 321))
    new = set(second.made.values()) - set(first.made.values())
    assert (len(new), len(first.made)) == (2, 11)
    assert ENTRIES_MAX > second.facts["entries"] == 320


def test_a_kind_that_there_is_not_is_named():
    assert require_kind(KIND) == KIND
    with pytest.raises(SnapshotRefused, match="episodic_memory"):
        require_kind("memories")
