import json
import os
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "supervisor"))

from hub_stand_in import place_gsm8k

from rollout.data import hugging_face
from rollout.data.build import build_order, build_source
from rollout.data.cursor import DataCursor, take
from rollout.data.hugging_face import DatasetName, StreamSource, open_dataset, open_stream
from rollout.data.rows.mapping import FieldMapping
from rollout.errors import DataError, DataNotFound, HubUnreachable, SpecError
from rollout_api.v1alpha1.data import Data

QA = FieldMapping(prompt_field="question", answer_field="answer")


@pytest.fixture(autouse=True)
def offline(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hf")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    assert os.environ["HF_HUB_OFFLINE"] == "1"


@pytest.fixture
def folder(tmp_path):
    """A data set of 2,500 rows, the shape of more than two windows."""
    path = tmp_path / "set"
    path.mkdir()
    lines = [json.dumps({"question": f"q{i}", "answer": i}) for i in range(2500)]
    (path / "train.jsonl").write_text("\n".join(lines))
    return path


def name(folder, **more):
    return DatasetName(path=str(folder), **more)


def test_a_data_set_is_read_by_position(folder):
    source = open_dataset(name(folder), QA)

    assert len(source) == 2500
    assert [row["answer"] for row in source.rows([7, 0, 2499])] == ["7", "0", "2499"]


def test_a_stream_gives_the_same_rows_as_the_whole(folder):
    stream = open_stream(name(folder), QA)
    whole = open_dataset(name(folder), QA)

    positions = [0, 1500, 3, 2499, 1023, 1024]
    assert len(stream) == len(whole)
    assert stream.rows(positions) == whole.rows(positions)


def test_a_resumed_stream_goes_on_with_the_same_rows(folder):
    def read(source, cursor, count):
        order = build_order(source, seed=5, epochs=2)
        tasks, cursor = take(order, cursor, count)
        return [row["answer"] for row in source.rows([t.position for t in tasks])], cursor

    whole, end = read(open_stream(name(folder), QA), DataCursor(), 10_000)
    first, cursor = read(open_stream(name(folder), QA), DataCursor(), 1717)
    rest, _ = read(open_stream(name(folder), QA), cursor, 10_000)

    assert end.exhausted
    assert first + rest == whole
    assert sorted(map(int, whole)) == sorted([*range(2500), *range(2500)])
    assert whole[:2500] != whole[2500:]
    assert {int(answer) // 1024 for answer in whole[:1024]} == {0}  # one window in memory


def test_a_bad_record_of_a_stream_is_named_or_skipped(folder):
    with (folder / "train.jsonl").open("a") as file:
        file.write("\n" + json.dumps({"question": "", "answer": 1}))

    skipping = open_stream(name(folder), QA, on_bad="Skip")

    assert len(skipping) == 2500
    assert skipping.rows([2499])[0]["answer"] == "2499"
    with pytest.raises(DataError, match="record 2500: field 'question' is empty"):
        open_stream(name(folder), QA)


def test_a_bad_record_of_a_whole_set_is_found_at_once(folder):
    with (folder / "train.jsonl").open("a") as file:
        file.write("\n" + json.dumps({"question": "", "answer": 1}))

    with pytest.raises(DataError, match="record 2500: field 'question' is empty"):
        open_dataset(name(folder), QA)
    assert open_dataset(name(folder), QA, on_bad="Skip").bad.num_records == 1


@pytest.mark.parametrize("opener", [open_dataset, open_stream])
def test_what_is_not_there_is_named(folder, opener):
    with pytest.raises(DataError, match="split nope cannot be loaded"):
        opener(name(folder, split="nope"), QA)
    with pytest.raises(DataError, match=r"acme/none(.|\n)*no network"):
        opener(DatasetName(path="acme/none"), QA)


def test_a_set_saved_by_datasets_is_read(folder, tmp_path):
    import datasets

    datasets.load_dataset(str(folder), split="train").save_to_disk(tmp_path / "saved")

    assert len(open_dataset(DatasetName(path=str(tmp_path / "saved")), QA)) == 2500


def test_equal_data_has_an_equal_digest(folder, tmp_path):
    moved = tmp_path / "moved"
    moved.mkdir()
    (moved / "train.jsonl").write_bytes((folder / "train.jsonl").read_bytes())

    assert open_dataset(name(folder), QA).digest == open_dataset(name(moved), QA).digest
    assert open_stream(name(folder), QA).digest == open_stream(name(moved), QA).digest


def test_the_api_opens_either(folder):
    def build(**fields):
        fields = {"path": folder.name, "promptField": "question", **fields}
        data = Data.model_validate({"huggingFace": fields})
        return build_source(data, base_dir=folder.parent)

    assert len(build()) == 2500
    assert isinstance(build(streaming=True), StreamSource)


def test_a_stream_cannot_be_split_by_content(folder):
    data = Data.model_validate(
        {
            "huggingFace": {"path": str(folder), "promptField": "question", "streaming": True},
            "evalFraction": "0.1",
        }
    )

    with pytest.raises(SpecError, match="streaming: false"):
        build_source(data)


def test_a_stream_of_the_hub_is_opened_at_one_commit(monkeypatch, folder):
    commits = {None: "a" * 40, "v1": "b" * 40}
    asked = []

    def load(wanted, *, streaming):
        asked.append((wanted.revision, streaming))
        return real(name(folder), streaming=streaming)

    real = hugging_face._load
    monkeypatch.setattr(hugging_face, "_load", load)
    monkeypatch.setattr(hugging_face, "pin_data", lambda path, revision: commits[revision])
    newest = open_stream(DatasetName(path="acme/rows"), QA)
    pinned = open_stream(DatasetName(path="acme/rows", revision="v1"), QA)
    commits[None] = "c" * 40
    moved = open_stream(DatasetName(path="acme/rows"), QA)

    assert asked == [("a" * 40, True), ("b" * 40, True), ("c" * 40, True)]
    assert len({newest.digest, pinned.digest, moved.digest}) == 3


def test_a_stream_that_breaks_off_is_told_as_a_hub_that_went(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)

    def records():
        yield {"question": "q", "answer": "a"}
        raise ConnectionError("Server Disconnected")

    source = StreamSource(records(), 2, QA, on_bad="Fail", digest="blake3:0")
    with pytest.raises(HubUnreachable, match=r"broke off after 1 records \(Server Disconnected"):
        source.rows([0, 1])


def test_a_cache_that_has_another_commit_is_not_taken_for_the_one_that_is_named(
    tmp_path, monkeypatch
):
    import datasets

    place_gsm8k(tmp_path)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "datasets")
    there = DatasetName(path="openai/gsm8k", name="main", split="test", revision="0" * 40)
    other = DatasetName(path="openai/gsm8k", name="main", split="test", revision="1" * 40)

    assert len(open_dataset(there, QA)) == 1319
    with pytest.raises(DataNotFound, match=f"is of commit {'0' * 40}.* did not give {'1' * 40}"):
        open_dataset(other, QA)
