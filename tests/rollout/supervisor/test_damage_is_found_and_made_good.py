"""Clocks that lie, disks that are full, bytes that change: found, named, and made good, or gone on with later."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from local_jobs import MANIFEST, start_job
from mirror_memory import flip_in_memory, mirror_addresses
from ruins import check_same

sys.path.append(str(Path(__file__).parents[1] / "objects"))

import objects_kit as kit

pytestmark = [pytest.mark.process, pytest.mark.timeout(900)]

DAY_SECONDS = 86_400.0
LARGE = (
    MANIFEST.replace("hidden=64", "hidden=256")
    .replace("intermediate=64", "intermediate=1024")
    .replace('context=64"}', 'context=64", dtype: BFloat16}')
    .replace("1e-3", "3e-6")
)
"""Large enough, and learning slowly enough, to travel as deltas."""


def test_clocks_that_jump_change_nothing(undisturbed, tmp_path):
    """A day ahead, a day behind, and the clock that judges leases an hour to either side."""
    job = start_job(tmp_path / "runs", slow_rewards=0.1, plain=True)
    job.set_clock("actor-0", -DAY_SECONDS)
    job.set_clock("learner", DAY_SECONDS)
    job.wait_until(lambda status: status.step >= 3)
    job.set_clock("coordinator", 3600.0)
    job.wait_until(lambda status: status.step >= 6)
    job.set_clock("coordinator", -3600.0)
    job.wait_until(lambda status: status.step >= 8)
    job.kill("actor-0")

    check_same(job, job.finish(), undisturbed)


@contextmanager
def small_disk(place: Path, size: str) -> Iterator[None]:
    """A file system of so many bytes."""
    place.mkdir(parents=True, exist_ok=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place)]
    if subprocess.run(mount, check=False, capture_output=True).returncode != 0:
        pytest.skip("this user may not mount a small file system")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def fill(place: Path) -> Path:
    """Leave no room; returns the file that takes it."""
    ballast = place / "ballast"
    with ballast.open("wb", buffering=0) as file:
        for size in (1 << 20, 1 << 12, 1):
            try:
                while True:
                    file.write(b"x" * size)
            except OSError:
                continue
    return ballast


def check_stops_and_goes_on(job, undisturbed, free, manifest=MANIFEST):
    """The run says what is full and ends; with room again it goes on to the same chain."""
    assert job.wait() == 1
    assert "no space left" in job.said().lower()
    assert "nothing committed is lost" in job.said()
    free()
    resumed = start_job(job.home, manifest=manifest, resume="Latest")
    check_same(resumed, resumed.finish(), undisturbed)


@pytest.mark.slow
def test_a_full_disk_of_the_ledger_stops_the_run_until_there_is_room(undisturbed, tmp_path):
    manifest = MANIFEST.replace("  train:\n", "  limits: {noProgressSeconds: 30}\n  train:\n", 1)
    with small_disk(tmp_path / "runs", "64m"):
        job = start_job(tmp_path / "runs", manifest=manifest, slow_rewards=0.2)
        job.wait_until(lambda status: status.step >= 3)
        ballast = fill(job.home)
        check_stops_and_goes_on(job, undisturbed, ballast.unlink, manifest)


@pytest.mark.slow
def test_a_full_disk_of_the_objects_stops_the_run_until_there_is_room(undisturbed, tmp_path):
    disk = tmp_path / "disk"
    manifest = MANIFEST.replace("  train:\n", f'  storage: {{uri: "file://{disk}"}}\n  train:\n', 1)
    with small_disk(disk, "32m"):
        job = start_job(tmp_path / "runs", manifest=manifest, slow_rewards=0.2)
        job.wait_until(lambda status: status.step >= 3)
        ballast = fill(disk)
        check_stops_and_goes_on(job, undisturbed, ballast.unlink, manifest)


@pytest.fixture
def bucket_manifest(tmp_path, monkeypatch):
    """The small job with its objects in a bucket of a server of its own."""
    kit.set_credentials(monkeypatch)
    (tmp_path / "s3").mkdir()
    with kit.s3_server(tmp_path / "s3") as endpoint:
        kit.s3_client(endpoint).create_bucket(Bucket="full")
        storage = f'  storage: {{uri: "s3://full/team", endpoint: "{endpoint}"}}\n'
        yield MANIFEST.replace("  train:\n", f"{storage}  train:\n", 1)


@pytest.mark.slow
def test_a_full_cache_stops_the_run_until_there_is_room(bucket_manifest, undisturbed, tmp_path):
    job = start_job(tmp_path / "runs", manifest=bucket_manifest, slow_rewards=0.2)
    job.wait_until(lambda status: status.step >= 3)
    with small_disk(job.run_dir / "objects", "64k"):
        assert job.wait() == 1
    assert "does not fit into the cache" in job.said() + job.logs()
    check_stops_and_goes_on(job, undisturbed, lambda: None, bucket_manifest)


@pytest.fixture(scope="module")
def calm(tmp_path_factory):
    """What the larger job comes to when nobody disturbs it."""
    job = start_job(tmp_path_factory.mktemp("calm") / "runs", manifest=LARGE)
    return job.finish()


def newest_objects(job) -> list[Path]:
    """The files of the newest version: its own, then those that it builds on."""
    with sqlite3.connect(f"file:{job.run_dir}/ledger.db?mode=ro", uri=True) as tx:
        wanted = "SELECT object FROM versions ORDER BY step DESC LIMIT 1"
        names = tx.execute(wanted).fetchone()[0].split()
    folder = job.run_dir / "objects" / "blake3"
    return [folder / name[7:9] / name[7:] for name in names]


def flip(path: Path, place: int) -> None:
    """One bit of a file is another."""
    path.chmod(0o644)
    with path.open("r+b") as file:
        file.seek(place, 2 if place < 0 else 0)
        byte = file.read(1)
        file.seek(-1, 1)
        file.write(bytes([byte[0] ^ 4]))


@pytest.mark.slow
def test_an_actor_with_one_flipped_weight_is_quarantined_and_mended(calm, tmp_path):
    job = start_job(tmp_path / "runs", manifest=LARGE, slow_rewards=0.3)
    job.wait_until(lambda status: status.step >= 3)
    (process,) = job.processes("actor-0")
    job.wait_until(lambda _: mirror_addresses(process.pid) is not None)
    flip_in_memory(process.pid, -5)
    status = job.wait_until(lambda status: any(w.num_rebuilt for w in status.workers))
    actor = next(w for w in status.workers if w.worker == "actor-0")
    result = job.finish()

    assert actor.num_rebuilt == 1
    with sqlite3.connect(f"file:{job.run_dir}/ledger.db?mode=ro", uri=True) as tx:
        found = tx.execute("SELECT message FROM events WHERE kind = 'activation-failed'").fetchall()
    assert "not this version's weights" in found[0][0]
    check_same(job, result, calm)


@pytest.mark.slow
def test_a_corrupted_delta_is_replaced_by_whole_weights(calm, tmp_path):
    job = start_job(tmp_path / "runs", manifest=LARGE, slow_rewards=0.3, plain=True)
    job.wait_until(lambda status: status.step >= 3)
    job.hold("actor-0")
    job.kill("actor-0")
    job.wait_until(lambda status: status.bottleneck is not None and _is_waiting(status))
    files = newest_objects(job)
    assert len(files) > 1, "the newest version is whole"
    flip(files[0], -5)
    job.release("actor-0")
    result = job.finish()

    with sqlite3.connect(f"file:{job.run_dir}/ledger.db?mode=ro", uri=True) as tx:
        found = tx.execute("SELECT message FROM events WHERE kind = 'version-damaged'").fetchall()
    assert len(found) == 1
    assert "learner died" not in job.said()
    check_same(job, result, calm)


def _is_waiting(status) -> bool:
    return any(one.who == "learner" and one.seconds > 1.0 for one in status.waiting)
