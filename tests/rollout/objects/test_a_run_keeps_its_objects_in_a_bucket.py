"""``storage.uri: s3://...``: a local run's weights and train states lie in the bucket, and nothing else changes."""

import itertools
import json
import shutil
import sys
import time
from pathlib import Path

import objects_kit as kit
import pytest

sys.path.append(str(Path(__file__).parents[1] / "supervisor"))

from local_jobs import MANIFEST, start_job

from rollout.weights.delta import MAGIC

pytestmark = [pytest.mark.process, pytest.mark.timeout(900)]

SHORT = MANIFEST.replace("maxSteps: 12", "maxSteps: 7")


def in_bucket(endpoint: str, bucket: str, manifest: str = SHORT) -> str:
    storage = f'  storage: {{uri: "s3://{bucket}/team", endpoint: "{endpoint}"}}\n'
    return manifest.replace("  train:\n", f"{storage}  train:\n", 1)


def objects_of(run_dir: Path) -> set[str]:
    return {path.name for path in (run_dir / "objects" / "blake3").glob("*/*")}


def keys_of(endpoint: str, bucket: str) -> set[str]:
    found = kit.s3_client(endpoint).list_objects_v2(Bucket=bucket).get("Contents", [])
    return {item["Key"] for item in found}


class Weather:
    """Every seventh request meets one kind of trouble after the other."""

    def __init__(self) -> None:
        self._count = itertools.count(1)
        self._kinds = itertools.cycle(
            [
                kit.cut,
                kit.answer_lost,
                kit.says(503, "SlowDown"),
                kit.says(500, "InternalError"),
                kit.truncated,
                kit.slow,
            ]
        )

    def take(self, asked):
        return next(self._kinds) if next(self._count) % 7 == 0 else None


class Outage:
    """From the fortieth request on, nothing answers for a while."""

    SECONDS = 8.0

    def __init__(self) -> None:
        self._count = itertools.count(1)
        self._since: float | None = None

    def take(self, asked):
        if next(self._count) < 40:
            return None
        self._since = self._since or time.monotonic()
        return kit.cut if time.monotonic() - self._since < self.SECONDS else None


@pytest.mark.slow
def test_a_bucket_that_is_away_for_a_while_is_waited_for(s3_endpoint, bucket, tmp_path):
    expected = start_job(tmp_path / "plain", manifest=SHORT).finish()
    with kit.proxy_before(s3_endpoint) as proxy:
        outage = Outage()
        proxy.take = outage.take
        job = start_job(tmp_path / "far", manifest=in_bucket(proxy.url, bucket))
        result = job.finish()

    assert outage._since is not None
    assert result["chain"] == expected["chain"]
    assert "starting it again" not in job.said()


def test_the_chain_is_that_of_a_run_in_a_folder_through_trouble_and_it_goes_on_from_the_bucket_alone(
    s3_endpoint, bucket, tmp_path
):
    plain = start_job(tmp_path / "plain", manifest=SHORT)
    expected = plain.finish()
    with kit.proxy_before(s3_endpoint) as proxy:
        proxy.take = Weather().take
        job = start_job(tmp_path / "far", manifest=in_bucket(proxy.url, bucket))
        result = job.finish()

        assert result["step"] == 7
        assert result["chain"] == expected["chain"]
        uid = json.loads((job.run_dir / "worker.json").read_text())["run"]["uid"]
        keys = keys_of(s3_endpoint, bucket)
        assert all(key.startswith(f"team/{uid}/blake3/") for key in keys)
        assert {key.rpartition("/")[2] for key in keys} == objects_of(plain.run_dir)

        shutil.rmtree(job.run_dir / "objects")
        more = in_bucket(proxy.url, bucket).replace("maxSteps: 7", "maxSteps: 9")
        resumed = start_job(tmp_path / "far", manifest=more, resume="Latest").finish()

    assert resumed["step"] == 9
    assert resumed["anchor"] is not None
    logs = "".join(path.read_text() for path in (job.run_dir / "logs").glob("*.log"))
    assert "a-secret-nobody-may-read" not in logs + job.said()


@pytest.mark.slow
def test_deltas_travel_through_a_bucket(s3_endpoint, bucket, tmp_path):
    large = SHORT.replace("hidden=64", "hidden=256").replace("intermediate=64", "intermediate=1024")
    large = large.replace('context=64"}', 'context=64", dtype: BFloat16}').replace("1e-3", "3e-6")
    expected = start_job(tmp_path / "plain", manifest=large).finish()
    job = start_job(tmp_path / "far", manifest=in_bucket(s3_endpoint, bucket, large))
    result = job.finish()

    client = kit.s3_client(s3_endpoint)
    heads = [
        client.get_object(Bucket=bucket, Key=key, Range="bytes=0-7")["Body"].read()
        for key in keys_of(s3_endpoint, bucket)
    ]
    assert heads.count(MAGIC) > 0
    assert result["chain"] == expected["chain"]


def test_a_bucket_that_is_not_there_is_told_before_anything_starts(
    s3_endpoint, credentials, tmp_path
):
    job = start_job(tmp_path / "runs", manifest=in_bucket(s3_endpoint, "nobody-made-me"))
    assert job.wait() == 4
    assert "s3://nobody-made-me/team" in job.said()
    assert "make the bucket" in job.said()
    assert not list((tmp_path / "runs").glob("*/worker.json"))
