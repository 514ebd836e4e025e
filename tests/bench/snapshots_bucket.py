"""One object to an S3 server and back beside boto3's transfer manager, in turns; the server is versitygw over a folder.

Ours names the object by its content first, sends it with checksums that the server holds it to, and hands it out again
only after its content is what its name says.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from figures import Figure, level, ratio

REPOSITORY = Path(__file__).parents[2]
sys.path[:0] = [str(REPOSITORY / "e2e"), str(REPOSITORY / "tests/rollout/objects")]
sys.path.append(str(REPOSITORY / "tests"))

import pytest
from objects_kit import bucket_store, s3_client, set_credentials, versity_server

ROUNDS = int(os.environ.get("BENCH_ROUNDS", "7"))
BLOCK = 1 << 20


def measure(num_bytes: int) -> Iterator[Figure]:
    """Seconds of this process's wait, up and down; the first round warms up and does not count."""
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_DIR")) as name, _server(name) as url:
        folder, costs = Path(name), {}
        for number in range(ROUNDS + 1):
            for key, cost in _round(folder / f"round-{number}", url, num_bytes, number).items():
                if number:
                    costs.setdefault(key, []).append(cost)
    for way in ("up", "down"):
        ours, theirs = (
            [c[0] for c in costs[f"{side} {way}"]] for side in ("ours", "transfer manager")
        )
        yield ratio(f"object {way} against boto3's transfer manager", ours, theirs, ">= 0.9")
    for key, found in costs.items():
        yield level(f"CPU: {key}", [c[1] / num_bytes * 2**30 for c in found], "s/GiB", "info")


def _round(folder: Path, url: str, num_bytes: int, number: int) -> dict[str, tuple[float, float]]:
    """Wall and CPU seconds of each, on bytes that nobody has seen; who begins alternates."""
    folder.mkdir()
    source, client = folder / "source", s3_client(url)
    _write(source, num_bytes)
    client.create_bucket(Bucket=(bucket := f"bench-{number}"))
    there = bucket_store(f"s3://{bucket}/ours", url, folder / "sender")
    back = bucket_store(f"s3://{bucket}/ours", url, folder / "receiver")
    costs: dict[str, tuple[float, float]] = {}
    kept: dict[str, Any] = {}

    def ours() -> None:
        costs["ours up"], kept["name"] = _timed(lambda: there.put_file(source))
        costs["ours down"], _ = _timed(lambda: back.path(kept["name"]))

    def theirs() -> None:
        up, _ = _timed(lambda: client.upload_file(str(source), bucket, "theirs"))
        down, _ = _timed(lambda: client.download_file(bucket, "theirs", str(folder / "theirs")))
        costs["transfer manager up"], costs["transfer manager down"] = up, down

    for side in (ours, theirs) if number % 2 else (theirs, ours):
        side()
    _remove(folder)
    for one in client.list_objects_v2(Bucket=bucket).get("Contents", []):
        client.delete_object(Bucket=bucket, Key=one["Key"])
    return costs


def _timed(work: Any) -> tuple[tuple[float, float], Any]:
    os.sync()
    began, cpu = time.perf_counter(), time.process_time()
    result = work()
    return (time.perf_counter() - began, time.process_time() - cpu), result


def _write(path: Path, num_bytes: int) -> None:
    with path.open("wb") as stream:
        for _ in range(num_bytes // BLOCK):
            stream.write(os.urandom(BLOCK))


def _remove(folder: Path) -> None:
    for path in sorted(folder.rglob("*"), reverse=True):
        path.chmod(0o700)
        path.rmdir() if path.is_dir() else path.unlink()


@contextmanager
def _server(folder: str) -> Iterator[str]:
    with pytest.MonkeyPatch.context() as patch:
        set_credentials(patch)
        with versity_server(Path(folder)) as url:
            yield url
