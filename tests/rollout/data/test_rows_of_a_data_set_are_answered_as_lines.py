"""A batch over a data set of the hub, or a folder that `datasets` saved: its rows are lines, in order, each answered or named."""

from __future__ import annotations

import json

import pytest

from rollout.data import batch
from rollout.data.batch import open_batch
from rollout.errors import DataError, DataNotFound
from rollout_api.v1alpha1.inference.infer import Infer


@pytest.fixture(autouse=True)
def caches(tmp_path, monkeypatch):
    import datasets

    monkeypatch.setenv("ROLLOUT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hf")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)


@pytest.fixture
def saved(tmp_path):
    def save(rows, name="saved"):
        import datasets

        datasets.Dataset.from_list(rows).save_to_disk(tmp_path / name)
        return str(tmp_path / name)

    return save


def opened(path, fields=None, **infer):
    data = {"huggingFace": {"path": path, **(fields or {})}}
    return open_batch(Infer.model_validate({"data": data, **infer}))


def test_every_row_is_answered_in_its_order(saved):
    rows = [{"question": f"{n}+1="} for n in range(40)]
    source = opened(saved(rows), {"promptField": "question"})
    found = source.rows(range(len(source)))
    assert [one["messages"][-1]["content"] for one in found] == [one["question"] for one in rows]
    assert source.where(3).endswith(":4")
    assert source.refused == ()


def test_a_folder_of_files_is_a_data_set_and_its_rows_are_those_of_the_file(tmp_path):
    folder = tmp_path / "set"
    folder.mkdir()
    lines = [{"prompt": "3+4="}, {"prompt": "1+1="}]
    (folder / "train.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))
    of_lines = Infer.model_validate({"data": {"jsonl": {"uri": str(folder / "train.jsonl")}}})
    found, known = opened(str(folder)), open_batch(of_lines)
    assert found.rows(range(2)) == known.rows(range(2))


def test_openais_lines_may_lie_in_a_data_set(saved):
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}
    line = {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": body}
    [row] = opened(saved([line])).rows([0])
    assert (row["custom_id"], row["sampling"]["max_new_tokens"]) == ("a", 3)


def test_a_row_that_is_no_json_costs_itself_only(saved):
    rows = [{"prompt": "a", "score": 1.0}, {"prompt": "b", "score": float("nan")}]
    rows += [{"prompt": "", "score": 2.0}]
    source = opened(saved(rows))
    assert len(source) == 1
    assert [(one.number, one.code) for one in source.refused] == [
        (1, "invalid_row"),
        (2, "invalid_row"),
    ]


def test_the_digest_is_of_the_rows_and_the_same_each_time(saved):
    rows = [{"prompt": "a"}, {"prompt": "b"}]
    first, again = opened(saved(rows)), opened(saved(rows, "again"))
    assert first.digest == again.digest
    assert opened(saved(rows[::-1], "other")).digest != first.digest


def test_no_more_rows_are_written_than_are_asked_for(saved, tmp_path, monkeypatch):
    path = saved([{"prompt": f"{n}"} for n in range(50)])
    source = opened(path, maxPrompts=4)
    assert (len(source), source.num_rows) == (4, 4)
    [file] = (tmp_path / "cache" / "data").iterdir()
    assert len(file.read_text().splitlines()) == 4
    monkeypatch.setattr(batch, "ROWS_MAX", 20)
    with pytest.raises(DataError, match="more than 20 rows"):
        opened(path)


def test_a_set_that_is_not_there_is_named(tmp_path):
    with pytest.raises(DataNotFound, match="nobody/nothing"):
        opened("nobody/nothing")
