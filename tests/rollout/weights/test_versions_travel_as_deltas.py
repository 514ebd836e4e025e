"""From the learner's publisher through a store to an actor's files: every version, in whatever order, bit for bit."""

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings

from rollout.errors import StoreError
from rollout.objects.filesystem import FilesystemStore
from rollout.weights import publisher as publication
from rollout.weights.digest import digest_tensors, load_weights
from rollout.weights.mirror import WeightFiles, read_bases
from rollout.weights.publisher import CHAIN_MAX, PATIENCE, Publisher


def first_weights(seed=0):
    torch.manual_seed(seed)
    shapes = {"embed": (300, 64), "norm": (64,), "up": (256, 64)}
    return {name: (torch.randn(shape) * 0.02).bfloat16() for name, shape in shapes.items()}


def step(weights, share, seed):
    """The next version: a share of the elements is another."""
    torch.manual_seed(seed)
    changed = {}
    for name, tensor in weights.items():
        places = torch.rand(tensor.shape) < share
        fresh = (torch.randn(tensor.shape) * 0.02).bfloat16()
        changed[name] = torch.where(places, fresh, tensor)
    return changed


@pytest.fixture
def store(tmp_path):
    return FilesystemStore(tmp_path / "objects")


@pytest.fixture
def publisher(store):
    return Publisher(store, size_bytes_min=0)


def publish(publisher, count, share=0.01):
    """Versions and where they are stored."""
    weights, found = first_weights(), []
    for number in range(count):
        found.append((digest_tensors(weights), publisher.store(weights)))
        weights = step(weights, share, seed=number + 1)
    return found


def digest_at(path):
    return digest_tensors(load_weights(path))


@settings(max_examples=12)
@given(st.lists(st.integers(0, 24), min_size=1, max_size=8))
def test_an_actor_may_ask_for_versions_in_any_order(tmp_path_factory, wanted):
    folder = tmp_path_factory.mktemp("bus")
    store = FilesystemStore(folder / "objects")
    versions = publish(Publisher(store, size_bytes_min=0), 25)
    files = WeightFiles(store, folder / "mirror")
    for number in wanted:
        digest, stored = versions[number]
        assert digest_at(files.path(stored.object)) == digest
    assert files.num_rebuilt == 0


def test_chains_are_short_and_end_in_a_dense_base(publisher, store):
    versions = [stored for _, stored in publish(publisher, 2 * CHAIN_MAX + 3)]
    lengths = [len(stored.bases) for stored in versions]
    assert lengths == [*range(CHAIN_MAX + 1), *range(CHAIN_MAX + 1), 0]
    for stored in versions:
        assert read_bases(store.path(stored.object)) == stored.bases
        if stored.bases:
            assert read_bases(store.path(stored.bases[-1])) == ()


def test_a_delta_is_much_smaller_than_the_weights(publisher, store):
    versions = [stored for _, stored in publish(publisher, 2)]
    dense, delta = (store.size(stored.object) for stored in versions)
    assert delta * 25 < dense


def test_versions_that_change_much_are_whole_and_looked_into_seldom(store, monkeypatch):
    looks = []
    encode = publication.encode_delta
    monkeypatch.setattr(
        publication, "encode_delta", lambda *given: looks.append(1) or encode(*given)
    )
    found = publish(Publisher(store, size_bytes_min=0), PATIENCE + 4, share=0.9)
    assert all(stored.bases == () for _, stored in found)
    assert len(looks) == 2


def test_small_models_are_whole(store):
    assert all(stored.bases == () for _, stored in publish(Publisher(store), 3))


def test_a_new_learner_starts_with_a_dense_base(store):
    publish(Publisher(store, size_bytes_min=0), 3)
    assert Publisher(store, size_bytes_min=0).store(first_weights()).bases == ()


def test_the_publisher_keeps_its_own_copy(publisher, store, tmp_path):
    weights = first_weights()
    publisher.store(weights)
    weights["up"].view(torch.int16)[0, 0] ^= 1  # the optimizer changes weights in place
    stored = publisher.store(weights)
    assert len(stored.bases) == 1
    path = WeightFiles(store, tmp_path / "mirror").path(stored.object)
    assert digest_at(path) == digest_tensors(weights)


def test_a_late_joiner_needs_the_base_and_the_deltas_after_it_only(publisher, store, tmp_path):
    versions = publish(publisher, CHAIN_MAX + 5)
    digest, stored = versions[-1]
    needed = {stored.object, *stored.bases}
    for _, other in versions:
        if other.object not in needed:
            store.delete(other.object)
    assert digest_at(WeightFiles(store, tmp_path / "late").path(stored.object)) == digest


def test_a_mirror_that_was_changed_is_made_again_when_its_reader_says_so(
    publisher, store, tmp_path
):
    versions = publish(publisher, 6)
    files = WeightFiles(store, tmp_path / "mirror")
    path = files.path(versions[3][1].object)
    data = bytearray(path.read_bytes())
    data[-5] ^= 4
    path.write_bytes(data)
    assert digest_at(files.path(versions[4][1].object)) != versions[4][0]
    files.forget()
    assert digest_at(files.path(versions[4][1].object)) == versions[4][0]
    assert files.num_rebuilt == 1


def test_a_mirror_of_another_layout_is_made_again_by_itself(publisher, store, tmp_path):
    versions = publish(publisher, 4)
    files = WeightFiles(store, tmp_path / "mirror")
    path = files.path(versions[1][1].object)
    path.write_bytes(store.path(Publisher(store).store({"x": torch.zeros(3)}).object).read_bytes())
    assert digest_at(files.path(versions[3][1].object)) == versions[3][0]
    assert files.num_rebuilt == 1


def test_a_damaged_delta_in_the_store_is_an_error_that_names_it(publisher, store, tmp_path):
    versions = publish(publisher, 4)
    stored = versions[2][1]
    path = store.path(stored.object)
    path.chmod(0o644)
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    files = WeightFiles(store, tmp_path / "mirror")
    with pytest.raises(StoreError, match=rf"{stored.object} is damaged"):
        files.path(versions[3][1].object)
    assert digest_at(files.path(versions[1][1].object)) == versions[1][0]


def test_who_has_the_old_file_open_keeps_it_when_the_mirror_starts_anew(publisher, store, tmp_path):
    versions = publish(publisher, CHAIN_MAX + 3)
    files = WeightFiles(store, tmp_path / "mirror")
    old = np.memmap(files.path(versions[1][1].object), np.uint8, "r")
    before = old[:].copy()
    files.path(versions[CHAIN_MAX + 2][1].object)
    assert np.array_equal(old, before)


def test_a_store_that_fails_leaves_the_chain_as_it_was(publisher, store, monkeypatch, tmp_path):
    weights = first_weights()
    first = publisher.store(weights)
    second = step(weights, 0.01, 1)

    def full(parts):
        raise StoreError("no space left")

    with monkeypatch.context() as patch:
        patch.setattr(store, "put_parts", full)
        with pytest.raises(StoreError, match="no space"):
            publisher.store(second)
    stored = publisher.store(second)
    assert stored.bases == (first.object,)
    assert digest_at(WeightFiles(store, tmp_path / "m").path(stored.object)) == digest_tensors(
        second
    )


def test_what_changed_between_two_versions_of_a_chain_is_known(publisher, store, tmp_path):
    first = first_weights()
    second = first | {"up": step(first, 0.01, 1)["up"]}
    third = second | {"norm": second["norm"] + 1}
    stored = [publisher.store(weights).object for weights in (first, second, third)]
    files = WeightFiles(store, tmp_path / "mirror")

    assert files.changes(stored[0], stored[1]) == {"up"}
    assert files.changes(stored[1], stored[2]) == {"norm"}
    assert files.changes(stored[0], stored[2]) == {"up", "norm"}
    assert files.changes(stored[2], stored[2]) == frozenset()


def test_what_changed_is_not_known_where_no_deltas_lead(publisher, store, tmp_path):
    stored = [one.object for _, one in publish(publisher, CHAIN_MAX + 2)]
    files = WeightFiles(store, tmp_path / "mirror")

    assert files.changes(stored[2], stored[1]) is None
    assert files.changes(stored[0], stored[CHAIN_MAX + 1]) is None
    assert files.changes("blake3:elsewhere", stored[1]) is None
