"""The id of a snapshot is the Merkle root of what it holds: equal state has an equal id, and any change another one."""

import copy
import json

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from snapshot_kit import header_of, make_run, save_state, snapshot

from rollout.errors import RolloutError, SnapshotRefused
from rollout.objects.filesystem import FilesystemStore
from rollout.snapshots.manifest import (
    LayerRecord,
    Part,
    build_manifest,
    encode_manifest,
    is_snapshot_id,
    parse_manifest,
)

DIGEST = "blake3:" + "ab" * 32


def layer(kind="train_state", parts=((("weights"), DIGEST, 3),)):
    return LayerRecord(
        kind=kind,
        grade="exact",
        restore_scope="anywhere",
        facts={"tensors": 1},
        parts=tuple(Part(name=n, object=o, size_bytes=s) for n, o, s in parts),
    )


@pytest.fixture
def header(tmp_path):
    return header_of(save_state(FilesystemStore(tmp_path), 3))


def test_it_is_64_hex_digits_and_reads_back_as_written(header):
    made = build_manifest(header, [layer()])

    assert is_snapshot_id(made.id)
    assert parse_manifest(encode_manifest(made), "here") == made


def test_the_order_in_which_parts_are_given_does_not_matter(header):
    parts = [(f"part-{n}", f"blake3:{n:064x}", n) for n in range(7)]

    one = build_manifest(header, [layer(parts=parts), layer("buffer")])
    two = build_manifest(header, [layer("buffer"), layer(parts=parts[::-1])])

    assert one == two


async def test_equal_state_saved_twice_has_one_id(tmp_path, signer):
    await make_run(tmp_path)

    assert snapshot(tmp_path, signer).id == snapshot(tmp_path, signer).id


def leaves(document, path=()):
    if isinstance(document, dict):
        return [found for k, v in document.items() for found in leaves(v, (*path, k))]
    if isinstance(document, list):
        return [found for k, v in enumerate(document) for found in leaves(v, (*path, k))]
    return [path]


def test_a_change_of_any_value_is_found(header):
    made = build_manifest(header, [layer(), layer("buffer")])
    document = json.loads(encode_manifest(made))
    paths = [path for path in leaves(document) if path[0] != "signature"]

    assert len(paths) > 30
    for path in paths:
        other = copy.deepcopy(document)
        place = other
        for key in path[:-1]:
            place = place[key]
        value = place[path[-1]]
        place[path[-1]] = value + 1 if isinstance(value, int | float) else f"{value}x"
        with pytest.raises(RolloutError):
            parse_manifest(json.dumps(other).encode(), "here")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda d: d.update(format=2), "of format 2"),
        (lambda d: d.update(more=1), "unknown field"),
        (lambda d: d.update(layers=[]), "one layer of each kind"),
        (lambda d: d["layers"].append(d["layers"][0]), "one layer of each kind"),
        (lambda d: d["layers"][0]["parts"].append(d["layers"][0]["parts"][0]), "a part twice"),
        (lambda d: d["layers"][0]["parts"][0].update(object="../../etc/passwd"), "blake3:<64 hex"),
        (lambda d: d["layers"][0]["parts"][0].update(size_bytes=-1), "no plain size"),
        (lambda d: d["layers"][0].update(kind="process image"), "Invalid enum value"),
    ],
)
def test_what_is_no_snapshot_is_refused(header, change, says):
    document = json.loads(encode_manifest(build_manifest(header, [layer()])))
    change(document)

    with pytest.raises(RolloutError, match=says):
        parse_manifest(json.dumps(document).encode(), "here")


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200))
def test_bytes_from_anywhere_are_refused(data):
    with pytest.raises(SnapshotRefused):
        parse_manifest(data, "here")


def test_deep_nesting_is_refused():
    with pytest.raises(SnapshotRefused):
        parse_manifest(b'{"format":' + b"[" * 100_000, "here")


def test_a_leaf_is_no_node(header):
    """A tree of other shape over the same bytes has another root."""
    one = build_manifest(header, [layer()])
    two = build_manifest(msgspec.structs.replace(header, label="x"), [layer()])

    assert one.layers == two.layers
    assert one.id != two.id
