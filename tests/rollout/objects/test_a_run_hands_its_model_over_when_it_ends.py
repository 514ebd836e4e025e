"""``train.output``: the model of a run that ended well is where the spec says, and the place is looked at first."""

import json

import gcs_kit
import pytest

from rollout.errors import PlaceUnreachable, SpecError
from rollout.runs.export.output import require_output
from rollout.runs.export.upload import MARKER
from rollout.runs.manifest import Document
from rollout.runs.pipeline import LINEAGE_FILE
from rollout.supervisor.run import run_manifest
from rollout.supervisor.sweeps.book import Sweep
from rollout.supervisor.sweeps.points import Point
from rollout.supervisor.sweeps.running import run_points
from rollout_api.v1alpha1.run import RolloutRunSpec

TINY = {
    "apiVersion": "rollout.dev/v1alpha1",
    "kind": "RolloutRun",
    "metadata": {"name": "handed"},
}


def spec_of(uri, **more):
    train = {
        "algorithm": {"sft": {"batchSize": 4, "maxLength": 16}},
        "data": {"jsonl": {"uri": "/none.jsonl"}},
        "maxSteps": 2,
        "output": {"uri": uri},
    }
    return {"model": {"uri": "rollout://tiny-adder"}, "train": train, **more}


def require(uri, *, resumed=False):
    require_output(RolloutRunSpec.model_validate(spec_of(str(uri))), resumed=resumed)


@pytest.fixture
def bucket(google, google_bucket, monkeypatch):
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", google.url)
    return google_bucket


def put(google, bucket, name):
    google.objects[bucket, name] = gcs_kit.Stored(name, b"x", {})


def generations(google, bucket):
    return {one.generation for (where, _), one in google.objects.items() if where == bucket}


def test_an_empty_place_is_taken_and_left_as_it_is(google, bucket, tmp_path):
    (tmp_path / "empty").mkdir()
    for uri in (tmp_path / "new" / "model", tmp_path / "empty", f"gs://{bucket}/models/first"):
        require(uri)
    assert google.names(bucket) == []
    assert [path.name for path in tmp_path.iterdir()] == ["empty"]


def test_a_folder_with_something_in_it_is_refused_before_the_run(tmp_path):
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(SpecError, match=r"spec\.train\.output\.uri: .*something is there"):
        require(tmp_path)


def test_a_folder_below_a_file_is_refused_before_the_run(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(PlaceUnreachable, match="is no folder that may be written into"):
        require(tmp_path / "file" / "model")


@pytest.mark.parametrize("resumed", [False, True])
@pytest.mark.parametrize("name", [LINEAGE_FILE, "thesis.txt"])
def test_a_prefix_with_something_below_it_is_refused_before_the_run(google, bucket, name, resumed):
    put(google, bucket, f"models/first/{name}")
    with pytest.raises(SpecError, match="something is there"):
        require(f"gs://{bucket}/models/first", resumed=resumed)


def test_an_export_that_was_begun_is_gone_on_with_by_its_run_only(google, bucket):
    put(google, bucket, f"models/first/{MARKER}")
    require(f"gs://{bucket}/models/first", resumed=True)
    with pytest.raises(SpecError, match="something is there"):
        require(f"gs://{bucket}/models/first")


def test_a_bucket_that_is_not_there_is_named_before_the_run(bucket):
    with pytest.raises(PlaceUnreachable, match="make the bucket"):
        require("gs://nobody-made-me/models/first")


def test_points_of_a_sweep_do_not_share_a_place(tmp_path):
    document = Document(
        data={**TINY, "spec": spec_of(str(tmp_path / "model"))}, source="<stdin>", lines={}
    )
    points = [Point(name=name, settings={}, document=document) for name in ("a", "b")]
    with pytest.raises(SpecError, match="2 points of a sweep would write their models to"):
        run_points(Sweep(folder=tmp_path / "sweep", home=tmp_path), points)


@pytest.mark.process
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("warm_starts")
def test_a_run_writes_its_model_and_a_repeat_does_not_train_again(
    google, bucket, tmp_path, monkeypatch
):
    monkeypatch.setenv("ROLLOUT_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("ROLLOUT_CACHE", str(tmp_path / "cache"))
    rows = tmp_path / "rows.jsonl"
    rows.write_text(
        "".join(json.dumps({"prompt": f"{n}+1=", "answer": str(n)}) + "\n" for n in range(9))
    )
    spec = spec_of(f"gs://{bucket}/models/first")
    spec["train"]["data"]["jsonl"]["uri"] = str(rows)
    document = Document(data={**TINY, "spec": spec}, source="<stdin>", lines={})
    place = tmp_path / "runs"

    first = run_manifest([document], run_dir=place, progress=False)
    names = [name.removeprefix("models/first/") for name in google.names(bucket)]
    written = generations(google, bucket)
    again = run_manifest([document], run_dir=place, resume="Latest", progress=False)

    assert (first.exit_code, again.exit_code) == (0, 0)
    assert {"config.json", "model.safetensors", LINEAGE_FILE} <= set(names)
    assert MARKER not in names
    lineage = json.loads(google.objects[bucket, f"models/first/{LINEAGE_FILE}"].data)
    assert lineage["step"] == 2
    assert generations(google, bucket) == written
