"""An export to an S3 server: a model that others can load, or files that nobody takes for one; a repeat finishes."""

import json
import uuid
from contextlib import nullcontext

import objects_kit
import pytest
from export_kit import LORA, VLLM, FakeRun, make_run, moved, train
from typer.testing import CliRunner

from rollout.cli.main import app
from rollout.errors import PlaceUnreachable, RolloutError, SpecError
from rollout.objects.bucket_files import BucketFiles, open_bucket_files
from rollout.objects.retry import Patience, Refused
from rollout.runs.export.choose import VersionSelector
from rollout.runs.export.export import Export
from rollout.runs.export.show import show_model
from rollout.runs.export.upload import HEADS, MARKER, export_to_bucket
from rollout.runs.pipeline import LINEAGE_FILE

NEWEST = Export(selector=VersionSelector())
SHARDED = Export(selector=VersionSelector(), shard_bytes=20_000)


class FilesInMemory:
    """A place as a bucket is: whole files by key, none replaced. ``left`` writes and deletions, then it dies."""

    place = "s3://models/tiny"

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.left = 10**6
        self.refuses = False

    def size(self, key):
        return len(self.files[key]) if key in self.files else None

    def read(self, key, start, stop):
        return nullcontext(iter([self.files[key][start:stop]]))

    def write(self, key, source):
        self._change()
        with source.open() as file:
            self.files.setdefault(key, file.read())

    def delete(self, key):
        self._change()
        self.files.pop(key, None)

    def keys(self, prefix):
        return [key for key in self.files if key.startswith(prefix)]

    def _change(self):
        if self.refuses:
            raise Refused("HTTP 403 AccessDenied", "see the bucket's policy")
        self.left -= 1
        if self.left < 0:
            raise Killed


class Killed(BaseException):
    """Stands for SIGKILL."""


@pytest.fixture
def run(tmp_path, base_model):
    weights = train(base_model).weights
    return make_run(tmp_path, base_model, [moved(weights, 0.1), weights])


@pytest.fixture
def remote():
    return FilesInMemory()


def opened(remote):
    return BucketFiles(remote, Patience(tries_max=1))


def download(remote, folder):
    folder.mkdir()
    for name, data in remote.files.items():
        (folder / name).write_bytes(data)
    return folder


def test_killed_at_every_call_nothing_there_looks_like_a_model_and_a_repeat_finishes(
    run, tmp_path, remote
):
    kills = 0
    while True:
        remote.left = 2 + kills
        try:
            export_to_bucket(run.folder, opened(remote), SHARDED)
            break
        except Killed:
            kills += 1
            loadable = any(name in remote.files for name in HEADS)
            weights = [name for name in remote.files if name.endswith(".safetensors")]
            assert not loadable or len(weights) > 3, "the head goes up after all weights"
            assert LINEAGE_FILE not in remote.files or MARKER in remote.files
        assert kills < 100
    remote.left = 10**6
    again = export_to_bucket(run.folder, opened(remote), SHARDED)

    assert kills > 2
    assert again.was_there
    assert MARKER not in remote.files
    assert show_model(download(remote, tmp_path / "down")).damage == ()


def test_what_is_staged_here_goes_when_it_has_gone_up(run, tmp_path, remote):
    export_to_bucket(run.folder, opened(remote), NEWEST)
    assert not list((tmp_path / "scratch").rglob("*.safetensors"))


def test_what_somebody_else_has_there_is_refused_and_left(run, remote):
    remote.files["thesis.txt"] = b"mine"
    with pytest.raises(SpecError, match=r"something else is there \(thesis\.txt\)"):
        export_to_bucket(run.folder, opened(remote), NEWEST)
    assert remote.files == {"thesis.txt": b"mine"}


def test_other_weights_are_not_mixed_with_those_that_are_there(run, remote):
    export_to_bucket(run.folder, opened(remote), NEWEST)
    before = dict(remote.files)
    with pytest.raises(SpecError, match="holds the full weights of run tiny, step 1"):
        export_to_bucket(run.folder, opened(remote), Export(selector=VersionSelector(step=0)))
    assert remote.files == before


def test_an_export_that_was_begun_with_other_weights_is_not_gone_on_with(run, remote):
    remote.left = 5
    with pytest.raises(Killed):
        export_to_bucket(run.folder, opened(remote), SHARDED)
    remote.left = 10**6
    with pytest.raises(SpecError, match="an export of something else was begun there"):
        export_to_bucket(run.folder, opened(remote), Export(selector=VersionSelector(step=0)))


def test_a_file_that_is_missing_is_named(run, remote):
    export_to_bucket(run.folder, opened(remote), NEWEST)
    del remote.files["model.safetensors"]
    with pytest.raises(SpecError, match=r"but model\.safetensors is missing"):
        export_to_bucket(run.folder, opened(remote), NEWEST)


def test_a_place_that_may_not_be_written_is_told_before_anything_is_read(tmp_path, remote):
    remote.refuses = True
    with pytest.raises(PlaceUnreachable, match=r"s3://models/tiny.*AccessDenied.*policy") as caught:
        export_to_bucket(tmp_path / "no run", opened(remote), NEWEST)
    assert caught.value.exit_code == 4


def test_a_bucket_without_a_prefix_is_refused():
    with pytest.raises(SpecError, match="expected a prefix after the bucket"):
        open_bucket_files("s3://bucket", endpoint="http://127.0.0.1:1", region=None)


@pytest.mark.process
def test_the_command_line_writes_an_adapter_to_a_server(tmp_path, base_model, monkeypatch):
    objects_kit.set_credentials(monkeypatch)
    trained = train(base_model, lora=True, served=True)
    spec = {**make_run(tmp_path, base_model).spec, "model": {"lora": LORA}, "actors": VLLM}
    run = FakeRun(tmp_path / "runs" / "adapted-1", base_model, spec=spec)
    run.begin(trained.weights)
    run.commit(trained.weights)
    with objects_kit.s3_server(tmp_path) as endpoint:
        client = objects_kit.s3_client(endpoint)
        bucket = f"b-{uuid.uuid4().hex[:16]}"
        client.create_bucket(Bucket=bucket)
        place = f"s3://{bucket}/models/tiny"
        words = ["model", "export", "adapted", "--to", place, "--endpoint", endpoint]
        told = [CliRunner().invoke(app, [*words, "--output", "json"]) for _ in range(2)]
        listed = client.list_objects_v2(Bucket=bucket)["Contents"]
        lost = CliRunner().invoke(app, [*words[:4], "s3://nobodys/x", *words[5:]])

    assert [one.exit_code for one in told] == [0, 0], told
    first, again = (json.loads(one.stdout) for one in told)
    assert (first["was_there"], again["was_there"]) == (False, True)
    names = {one["Key"].removeprefix("models/tiny/") for one in listed}
    assert names == {*first["files"], "README.md", LINEAGE_FILE}
    assert "adapter_model.safetensors" in names
    assert isinstance(lost.exception, RolloutError)
    assert lost.exception.exit_code == 4
    assert "NoSuchBucket" in str(lost.exception)
