"""A flipped bit anywhere is found, and told by its layer, its part and its tensor."""

import pytest
from snapshot_kit import make_run, open_at, snapshot

from rollout.objects.reading import ObjectFiles
from rollout.snapshots.verifying import find_snapshot_damage


@pytest.fixture
async def made(tmp_path, signer):
    await make_run(tmp_path)
    return snapshot(tmp_path, signer)


def flip(path, at):
    path.chmod(0o644)
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def damage(manifest, tmp_path):
    return list(find_snapshot_damage(manifest, ObjectFiles(tmp_path / "objects")))


def test_every_byte_of_every_object_counts(made, tmp_path):
    files = ObjectFiles(tmp_path / "objects")
    for layer in made.layers:
        for part in layer.parts:
            path = files.locate(part.object)
            for at in {0, part.size_bytes // 2, part.size_bytes - 1}:
                flip(path, at)
                found = damage(made, tmp_path)
                named = {(one.layer, one.part) for one in found}
                assert (layer.kind, part.name) in named
                assert all(
                    made.layer(kind) and files.locate(p.object) == path
                    for kind, name in named
                    for p in made.layer(kind).parts
                    if p.name == name
                )
                flip(path, at)
    assert damage(made, tmp_path) == []


def test_the_tensor_is_named(made, tmp_path):
    files = ObjectFiles(tmp_path / "objects")
    state = made.layer("train_state")
    [weights] = [part for part in state.parts if part.name == "state/weights"]
    path = files.locate(weights.object)
    for at, tensor in [(-1, "second"), (-41, "first"), (9, "(header)")]:
        flip(path, at)
        [found, *same] = [one for one in damage(made, tmp_path) if one.part == "state/weights"]
        assert found.tensors == (tensor,)
        assert f"train_state, part state/weights, tensors {tensor}" in str(found)
        assert same == []
        flip(path, at)


def test_what_is_gone_or_cut_short_is_named(made, tmp_path):
    store = open_at(tmp_path / "objects").store
    [rng] = [part for part in made.layer("train_state").parts if part.name == "state/rng"]
    store.delete(rng.object)

    [found] = damage(made, tmp_path)

    assert (found.layer, found.part, found.tensors) == ("train_state", "state/rng", ())
