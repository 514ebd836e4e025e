"""An anchor says its format: one that an earlier release saved is restored bit for bit, one of another format is refused.

``formats/anchor-1`` is what a learner saved after three steps: its manifest and the objects that it names.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from rollout.errors import RunFailed
from rollout.learner.checkpoint import (
    capture,
    restore_anchor,
    state_groups,
    write_anchor,
)
from rollout.ledger.records import ANCHOR_FORMAT, AnchorManifest
from rollout.models.resolve import resolve_model
from rollout.objects.filesystem import FilesystemStore

SAVED = Path(__file__).parent / "formats" / "anchor-1"
MODEL = "rollout://tiny-qwen2?hidden=8&layers=1&heads=1"


@pytest.fixture
def manifest() -> AnchorManifest:
    return msgspec.json.decode((SAVED / "step-000003.json").read_bytes(), type=AnchorManifest)


@pytest.fixture
def parts(world, tmp_path):
    shutil.copytree(SAVED / "objects", tmp_path / "objects")
    model = resolve_model(MODEL, cache_dir=tmp_path / "models").path
    return replace(world, model_path=model).parts(None, FilesystemStore(tmp_path / "objects"))


def test_one_of_an_earlier_release_is_restored_and_saved_again_bit_for_bit(parts, manifest):
    progress = restore_anchor(manifest, parts.store, parts.trainer)

    tensors = state_groups(parts.trainer)
    captured = capture(parts.trainer, progress, tensors, identity={}, created_at=0.0)
    again = write_anchor(parts.place, captured)

    assert (progress.step, progress.chain, progress.cursor.next_ordinal) == (3, manifest.chain, 12)
    assert again.version == manifest.version
    assert again.objects == manifest.objects


@pytest.mark.parametrize("other", [ANCHOR_FORMAT + 1, None])
def test_one_of_another_format_is_refused_with_both_numbers_before_anything_is_read(
    parts, manifest, other
):
    state = {**manifest.state, "format": other}
    changed = msgspec.structs.replace(manifest, objects={}, state=state)

    with pytest.raises(
        RunFailed,
        match=f"anchor step-000003 has format {other}, this version of rollout restores {ANCHOR_FORMAT}: go on",
    ):
        restore_anchor(changed, parts.store, parts.trainer)
