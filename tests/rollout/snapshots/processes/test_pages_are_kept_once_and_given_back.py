"""Pages of a dump: what is written again is what was packed, zeros and equal pages cost nothing, and a second image stores what is new."""

from __future__ import annotations

import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from rollout.errors import StoreError
from rollout.snapshots.processes import pages, reading
from rollout.snapshots.processes.pages import PAGE_BYTES, Pack, PagePacking, PagesFile
from rollout.snapshots.processes.reading import PageReading
from rollout.snapshots.processes.sealing import Sealer

SEALER = Sealer(bytes(range(32)))
PAGE = st.integers(0, 12).map(lambda number: bytes([number]) * PAGE_BYTES)
FILES = st.lists(st.lists(PAGE, max_size=9).map(b"".join), max_size=4)


class Objects(dict):
    """Objects by name."""

    def keep(self, data: bytes) -> str:
        name = f"blake3:{blake3(data).hexdigest()}"
        self[name] = data
        return name


def pack(files: list[bytes], folder: Path, objects: Objects, known: tuple[Pack, ...] = ()):
    packing = PagePacking(SEALER, objects.keep, known, objects.__getitem__)
    added = []
    for number, data in enumerate(files):
        path = folder / f"pages-{number}.img"
        path.write_bytes(data)
        added.append(packing.add(path))
    return packing, *packing.finish(added)


def unpack(packs, found, objects) -> list[bytes]:
    """Every file, all read at the same time."""
    with (
        PageReading(found, packs, SEALER, objects.__getitem__) as made,
        ThreadPoolExecutor(max(len(found), 1)) as pool,
    ):
        return list(pool.map(lambda one: joined(made, one.name), found))


def joined(made: PageReading, name: str) -> bytes:
    return b"".join([bytes(one) for batch in made.batches(name) for one in batch])


@given(FILES, FILES, st.integers(1, 4), st.integers(1, 4))
def test_any_dump_comes_back_and_a_second_one_stores_only_new_pages(
    before, after, pack_pages, later_pack_pages
):
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as name:
        patch.setattr(pages, "NEW_PACK_PAGES", pack_pages)
        folders = [Path(name) / part for part in ("a", "b")]
        for one in folders:
            one.mkdir()
        objects = Objects()
        packing, packs, found = pack(before, folders[0], objects)
        assert unpack(packs, found, objects) == before
        whole = [
            data[at : at + PAGE_BYTES] for data in before for at in range(0, len(data), PAGE_BYTES)
        ]
        assert packing.new_pages == len({page for page in whole if any(page)})
        assert packing.zero_pages == sum(not any(page) for page in whole)

        patch.setattr(pages, "NEW_PACK_PAGES", later_pack_pages)
        second, packs, found = pack(after, folders[1], objects, packs)
        assert unpack(packs, found, objects) == after
        later = {
            data[at : at + PAGE_BYTES] for data in after for at in range(0, len(data), PAGE_BYTES)
        }
        assert second.new_pages == len({page for page in later if any(page)} - set(whole))
        needed = {
            place // pages.PACK_PAGES for one in found for place in places_of(one) if place >= 0
        }
        assert needed == set(range(len(packs))), (
            "a pack that no page is in is not kept for this image"
        )


def test_equal_content_is_one_object_so_that_a_repeat_stores_nothing(tmp_path):
    objects = Objects()
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    pack([b"x" * PAGE_BYTES * 3], tmp_path / "a", objects)
    before = set(objects)
    pack([b"x" * PAGE_BYTES * 3], tmp_path / "b", objects)
    assert set(objects) == before


@pytest.mark.parametrize(
    ("place", "words"), [(1, "past the end"), (7 * pages.PACK_PAGES, "does not name")]
)
def test_a_page_that_lies_nowhere_is_refused(tmp_path, place, words):
    objects = Objects()
    _, packs, _ = pack([b"x" * PAGE_BYTES], tmp_path, objects)
    broken = PagesFile(name="pages-1.img", places=place.to_bytes(4, "little"))
    with pytest.raises(StoreError, match=words):
        PageReading([broken], packs, SEALER, objects.__getitem__)


def test_a_file_that_is_not_of_whole_pages_is_refused(tmp_path):
    with pytest.raises(StoreError, match="no whole pages"):
        pack([b"x" * 100], tmp_path, Objects())


def test_a_pack_of_another_size_is_refused(tmp_path):
    objects = Objects()
    _, (one,), found = pack([b"x" * PAGE_BYTES], tmp_path, objects)
    longer = Pack(object=one.object, table=one.table, pages=2)
    with (
        PageReading(found, [longer], SEALER, objects.__getitem__) as broken,
        pytest.raises(StoreError, match="another size"),
    ):
        joined(broken, found[0].name)
    none = Pack(object=one.object, table=one.table, pages=0)
    with pytest.raises(StoreError, match="from 1 to"):
        PageReading(found, [none], SEALER, objects.__getitem__)
    with pytest.raises(StoreError, match="another number of pages"):
        PagePacking(SEALER, objects.keep, [longer], objects.__getitem__)


def test_a_file_that_is_read_again_and_those_of_many_small_runs_come_back(tmp_path, monkeypatch):
    for name in ("BATCH_RUNS_MAX", "BATCH_PAGES_MAX"):
        monkeypatch.setattr(reading, name, 2)
    monkeypatch.setattr(pages, "NEW_PACK_PAGES", 3)
    objects = Objects()
    page = [bytes([number]) * PAGE_BYTES for number in range(9)]
    files = [b"".join(page[n] for n in (1, 2, 3, 4, 8, 0, 0, 0, 2, 1)), b"".join(page[::-1])]
    _, packs, found = pack(files, tmp_path, objects)
    with PageReading(found, packs, SEALER, objects.__getitem__) as made:
        for _ in range(3):
            assert [joined(made, one.name) for one in found] == files


def places_of(file: PagesFile) -> list[int]:
    raw = file.places
    return [int.from_bytes(raw[at : at + 4], "little", signed=True) for at in range(0, len(raw), 4)]
