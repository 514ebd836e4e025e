"""What any place of named objects promises, held against each of them: a folder, an S3 bucket, a Google bucket."""

import threading
import uuid
from concurrent.futures import ThreadPoolExecutor

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings
from objects_kit import CONDITIONAL

from rollout.errors import PlaceUnreachable, PreconditionFailed, StoreError
from rollout.objects import gcs, s3
from rollout.objects.named.contract import NAMED_BYTES_MAX
from rollout.objects.places import open_named

MAX = 1 << 20


@pytest.fixture(params=["folder", *CONDITIONAL])
def opened(request, new_bucket, tmp_path):
    """Opens another process's view of the place."""
    if request.param == "folder":
        return lambda: open_named((tmp_path / "named").as_uri())
    made = new_bucket(request.param)
    return lambda: open_named(f"{made.uri}/team/runs", endpoint=made.endpoint)


@pytest.fixture
def objects(opened):
    return opened()


def names(objects, prefix=""):
    return [entry.name for entry in objects.entries(prefix)]


def test_an_object_is_made_where_none_is_and_read_by_anyone(objects, opened):
    assert objects.get("a/b.json", MAX) is None
    tag = objects.create("a/b.json", b"one")
    found = opened().get("a/b.json", MAX)
    assert (found.data, found.tag) == (b"one", tag)
    with pytest.raises(PreconditionFailed, match=r"a/b\.json: expected none of the name"):
        opened().create("a/b.json", b"two")
    assert objects.get("a/b.json", MAX).data == b"one"


def test_an_object_is_replaced_only_while_it_is_the_one_that_was_read(objects, opened):
    first = objects.create("x", b"one")
    second = opened().replace("x", b"two", first)
    assert second != first
    with pytest.raises(PreconditionFailed, match="x: expected the one that was read"):
        objects.replace("x", b"three", first)
    assert objects.get("x", MAX).data == b"two"
    with pytest.raises(PreconditionFailed):
        objects.replace("never", b"x", first)
    assert objects.get("never", MAX) is None


def test_an_object_is_deleted_only_while_it_is_the_one_that_was_read(objects, opened):
    first = objects.create("x", b"one")
    second = objects.replace("x", b"two", first)
    with pytest.raises(PreconditionFailed):
        opened().delete("x", first)
    assert objects.get("x", MAX).data == b"two"
    opened().delete("x", second)
    assert objects.get("x", MAX) is None
    objects.delete("x", second)
    objects.create("x", b"again")


def test_a_list_has_names_tags_sizes_and_times_in_order(objects):
    for name in ("b/2", "a", "b/10", "b-1", "c/d/e"):
        objects.create(name, name.encode())
    found = list(objects.entries())
    assert [one.name for one in found] == ["a", "b-1", "b/10", "b/2", "c/d/e"]
    assert [one.size_bytes for one in found] == [1, 3, 4, 3, 5]
    assert all(objects.get(one.name, MAX).tag == one.tag for one in found)
    assert all(one.modified_seconds > 1_600_000_000 for one in found)
    assert names(objects, "b") == ["b-1", "b/10", "b/2"]
    assert names(objects, "b/") == ["b/10", "b/2"]
    assert names(objects, "nothing/here") == []


def test_a_list_of_many_pages_is_whole(objects, monkeypatch):
    for module in (gcs, s3):
        monkeypatch.setattr(module, "PAGE_MAX", 2)
    for number in range(5):
        objects.create(f"a/{number}", b"")
    assert names(objects) == [f"a/{number}" for number in range(5)]


def test_an_object_larger_than_its_reader_takes_is_refused(objects):
    objects.create("x", bytes(1000))
    assert len(objects.get("x", 1000).data) == 1000
    with pytest.raises(StoreError, match=r"x has 1,000 bytes, expected 999 at most"):
        objects.get("x", 999)


def test_an_object_may_be_empty(objects):
    tag = objects.create("x", b"")
    assert objects.get("x", 0).data == b""
    objects.replace("x", b"1", tag)


@pytest.mark.parametrize(
    "name",
    [
        *("", "/x", "x/", "a//b", "../x", "a/../b", ".x", "-x", "a b", "x\n", "ä", "a\\b", "a\0b"),
        *("a?b", "x" * 600, "blake3/ab/c", "staging/x"),
    ],
)
def test_a_name_that_is_no_plain_path_is_refused(objects, name):
    for act in (
        lambda: objects.create(name, b""),
        lambda: objects.replace(name, b"", "tag"),
        lambda: objects.get(name, 1),
        lambda: objects.delete(name, "tag"),
    ):
        with pytest.raises(ValueError, match="expected a name such as"):
            act()


def test_an_object_that_is_too_large_for_a_name_is_refused(objects):
    with pytest.raises(ValueError, match="at most"):
        objects.create("x", bytes(NAMED_BYTES_MAX + 1))


def test_of_many_that_make_an_object_one_wins(opened):
    barrier = threading.Barrier(8)

    def make(number):
        objects = opened()
        barrier.wait(60)
        try:
            return objects.create("x", f"writer {number}".encode())
        except PreconditionFailed:
            return None

    with ThreadPoolExecutor(8) as pool:
        tags = [tag for tag in pool.map(make, range(8)) if tag]
    assert len(tags) == 1
    assert opened().get("x", MAX).tag == tags[0]


def test_no_increment_of_a_shared_counter_is_lost(opened):
    opened().create("count", b"0")

    def count(_):
        objects, done = opened(), 0
        while done < 5:
            found = objects.get("count", MAX)
            try:
                objects.replace("count", str(int(found.data) + 1).encode(), found.tag)
                done += 1
            except PreconditionFailed:
                continue

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(count, range(3)))
    assert opened().get("count", MAX).data == b"15"


ACTS = st.tuples(st.sampled_from("crdg"), st.sampled_from(["a", "b/c"]), st.binary(max_size=8))


@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(ACTS, max_size=14))
def test_any_history_is_that_of_a_table_with_compare_and_swap(objects, history):
    prefix, table, tags = uuid.uuid4().hex, {}, {}
    for act, short, data in history:
        name = f"{prefix}/{short}"
        if act == "c" and name not in table:
            table[name], tags[name] = data, objects.create(name, data)
        elif act == "c":
            with pytest.raises(PreconditionFailed):
                objects.create(name, data)
        elif act == "r" and name in table:
            table[name], tags[name] = data, objects.replace(name, data, tags[name])
        elif act == "d" and name in table:
            objects.delete(name, tags[name])
            del table[name]
        found = objects.get(name, MAX)
        assert (found and found.data) == table.get(name)
    assert names(objects, f"{prefix}/") == sorted(table)


def test_a_place_that_keeps_its_conditions_passes_and_nothing_is_left(objects):
    objects.require()
    assert names(objects) == []


@pytest.mark.slow
@pytest.mark.process
def test_a_server_that_keeps_some_conditions_only_is_refused(new_bucket):
    made = new_bucket("fake-gcs-server")
    with pytest.raises(PlaceUnreachable, match="does not keep the conditions of writes"):
        open_named(f"{made.uri}/team", endpoint=made.endpoint).require()
