"""Whatever happens to an export, there is a whole folder or none, and a repeat finishes."""

import errno
import fcntl
import os
import shutil
import subprocess
import sys

import pytest
import torch
from export_kit import flip, make_run, moved, train

from rollout.errors import NoSpace, ObjectDamaged, PlaceUnreachable, SpecError, StoreError
from rollout.runs.export import writing
from rollout.runs.export.choose import VersionSelector
from rollout.runs.export.export import Export, export_model
from rollout.runs.export.lineage import read_lineage
from rollout.runs.export.show import show_model

NEWEST = Export(selector=VersionSelector())
KILLS = """
import os, sys
from pathlib import Path
from rollout.runs.export.choose import VersionSelector
from rollout.runs.export.export import Export, export_model
from rollout.runs.export.show import show_model
from rollout.weights import shards

run, target = map(Path, sys.argv[1:])
KINDS = ("os.rename", "os.mkdir", "os.remove", "os.chmod", "shutil.copyfile", "fcntl.flock", "tensor")

def export(kill_at):
    left = kill_at
    def meet(event, args):
        nonlocal left
        writes = event == "open" and isinstance(args[2], int) and args[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        if event in KINDS or writes:
            left -= 1
            if left == 0:
                os._exit(9)
    sys.addaudithook(meet)
    digest = shards.digest_raw
    shards.digest_raw = lambda info, bits: (sys.audit("tensor"), digest(info, bits))[1]
    export_model(run, target, Export(selector=VersionSelector(), shard_bytes=20_000))

def is_whole():
    return show_model(target).damage == ()

kills = 0
while True:
    pid = os.fork()
    if pid == 0:
        export(kills + 1)
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert code in (0, 9), code
    assert not target.exists() or is_whole(), kills
    if code == 0:
        break
    if target.exists():
        export_model(run, target, Export(selector=VersionSelector()))
    kills += 1
    if target.exists():
        for path in target.iterdir():
            path.unlink()
        target.rmdir()
assert is_whole()
assert [path.name for path in target.parent.iterdir()] == [target.name], "nothing is left beside it"
print(kills)
"""


@pytest.fixture
def run(tmp_path, base_model):
    weights = train(base_model).weights
    return make_run(tmp_path, base_model, [moved(weights, 0.1), weights])


@pytest.mark.process
def test_a_killed_export_leaves_no_folder_and_a_repeat_finishes(tmp_path, base_model):
    """Killed at every file that it opens, every tensor, rename, copy and change of mode."""
    weights = {f"layer.{n}.weight": torch.full((64, 64), float(n)) for n in range(3)}
    run = make_run(tmp_path, base_model, [weights, moved(weights, 1.0)])
    run.close()
    command = [sys.executable, "-c", KILLS, str(run.folder), str(tmp_path / "models" / "out")]

    done = subprocess.run(command, capture_output=True, text=True, timeout=300)

    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 30


def test_a_repeat_of_an_export_that_has_ended_finds_it_whole(run, tmp_path):
    first = export_model(run.folder, tmp_path / "out", NEWEST)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").iterdir()}

    again = export_model(run.folder, tmp_path / "out", NEWEST)

    assert (first.was_there, again.was_there) == (False, True)
    assert again.lineage == first.lineage
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "out").iterdir()} == before


def test_what_somebody_else_has_there_is_refused_by_name_and_left(run, tmp_path):
    target = tmp_path / "out"
    target.mkdir()
    (target / "thesis.txt").write_text("mine")

    with pytest.raises(SpecError, match=rf"--to {target}: something else is there"):
        export_model(run.folder, target, NEWEST)

    assert [path.name for path in target.iterdir()] == ["thesis.txt"]
    file = tmp_path / "file"
    file.write_text("mine")
    with pytest.raises(SpecError, match="something else is there"):
        export_model(run.folder, file, NEWEST)


def test_an_empty_folder_is_filled(run, tmp_path):
    (tmp_path / "out").mkdir()
    export_model(run.folder, tmp_path / "out", NEWEST)
    assert show_model(tmp_path / "out").damage == ()


def test_other_weights_are_not_written_over(run, tmp_path):
    export_model(run.folder, tmp_path / "out", NEWEST)

    with pytest.raises(SpecError, match="holds the full weights of run tiny, step 1, in Float32"):
        export_model(run.folder, tmp_path / "out", Export(selector=VersionSelector(step=0)))
    with pytest.raises(SpecError, match="name another folder"):
        export_model(
            run.folder, tmp_path / "out", Export(selector=VersionSelector(), dtype="BFloat16")
        )


def test_these_very_weights_with_a_changed_byte_are_not_called_whole(run, tmp_path):
    export_model(run.folder, tmp_path / "out", NEWEST)
    flip(tmp_path / "out" / "model.safetensors", -1)

    with pytest.raises(SpecError, match=r"model\.safetensors.*tensor model\.norm\.weight changed"):
        export_model(run.folder, tmp_path / "out", NEWEST)


def test_a_damaged_object_is_named_and_nothing_is_left(run, tmp_path):
    [name] = [record.object for record in run.versions if record.step == 1]
    flip(run.object(name), -1)

    with pytest.raises(ObjectDamaged, match=name):
        export_model(run.folder, tmp_path / "out", NEWEST)

    assert not list(tmp_path.glob("*out*"))


def test_weights_that_are_not_those_the_run_committed_are_refused(tmp_path, base_model):
    """The object is what its name says, and the ledger says that another version lies there."""
    from dataclasses import replace

    weights = train(base_model).weights
    run = make_run(tmp_path, base_model, [weights])
    run.commit_version(replace(run.version(1, weights), digest="blake3:" + "e" * 64))

    with pytest.raises(
        StoreError, match=r"weights of step 1: expected tensors of digest blake3:eee"
    ):
        export_model(run.folder, tmp_path / "out", NEWEST)

    assert not list(tmp_path.glob("*out*"))


def test_a_base_that_has_changed_is_refused(tmp_path, base_model):
    base = tmp_path / "base"
    shutil.copytree(base_model, base)
    run = make_run(tmp_path, base, [train(base).weights] * 2)
    (base / "tokenizer_config.json").write_text("{}")

    with pytest.raises(SpecError, match=rf"the model at {base} has changed since the run began"):
        export_model(run.folder, tmp_path / "out", NEWEST)
    shutil.rmtree(base)
    with pytest.raises(SpecError, match=rf"the model that it began with is not at {base}"):
        export_model(run.folder, tmp_path / "out", NEWEST)


def test_a_disk_without_room_is_told_before_a_byte_is_written(run, tmp_path, monkeypatch):
    little = shutil._ntuple_diskusage(10**9, 10**9 - 1000, 1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: little)

    with pytest.raises(NoSpace, match=r"has [\d,]+ bytes and the disk has 1,000 left"):
        export_model(run.folder, tmp_path / "out", NEWEST)
    assert not list(tmp_path.glob("*out*"))


def test_a_disk_that_is_full_meanwhile_leaves_nothing(run, tmp_path, monkeypatch):
    def fill(folder, tensors, **_):
        (folder / "model.safetensors").write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(writing, "write_shards", fill)

    with pytest.raises(NoSpace, match="nothing is left there"):
        export_model(run.folder, tmp_path / "out", NEWEST)
    assert not list(tmp_path.glob("*out*"))


def test_a_place_that_cannot_be_written_is_unreachable(run, tmp_path):
    (tmp_path / "file").write_text("no folder")

    with pytest.raises(PlaceUnreachable, match=r"cannot be written.*name a folder") as caught:
        export_model(run.folder, tmp_path / "file" / "out", NEWEST)
    assert caught.value.exit_code == 4


def test_two_exports_do_not_share_a_folder(run, tmp_path):
    work = tmp_path / ".out.exporting"
    work.mkdir()
    handle = os.open(work, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    try:
        with pytest.raises(SpecError, match="another process exports here now"):
            export_model(run.folder, tmp_path / "out", NEWEST)
    finally:
        os.close(handle)
    export_model(run.folder, tmp_path / "out", NEWEST)
    assert not work.exists()


def test_a_folder_of_somebody_elses_in_the_work_folders_place_is_left(run, tmp_path):
    (tmp_path / ".out.exporting" / "mine").mkdir(parents=True)

    with pytest.raises(SpecError, match="is not what an export that was killed has left"):
        export_model(run.folder, tmp_path / "out", NEWEST)
    assert (tmp_path / ".out.exporting" / "mine").is_dir()


def test_one_tensor_is_in_memory_at_a_time(tmp_path, base_model):
    import tracemalloc

    weights = {f"layer.{n}.weight": torch.full((512, 512), float(n)) for n in range(30)}
    run = make_run(tmp_path, base_model, [weights, moved(weights, 1.0)])
    tracemalloc.start()
    try:
        export_model(
            run.folder, tmp_path / "out", Export(selector=VersionSelector(), dtype="BFloat16")
        )
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert read_lineage(tmp_path / "out").num_parameters == 30 * 512 * 512
    assert peak < 12 * 512 * 512 * 4, "30 tensors went through"
