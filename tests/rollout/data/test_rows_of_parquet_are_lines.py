"""A Parquet file is read as JSON lines: each row one, in order; what is no JSON costs its own row only."""

from __future__ import annotations

import datetime as dt
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rollout.data.batch import open_batch
from rollout.data.files import find_files
from rollout.data.packed.parquet import BATCH_ROWS, read_lines
from rollout.errors import DataError
from rollout_api.v1alpha1.inference.infer import Infer

QUICK = settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def write(path, rows, **options):
    pq.write_table(pa.Table.from_pylist(rows), path, **options)
    return path


def opened(path):
    return open_batch(Infer.model_validate({"data": {"jsonl": {"uri": str(path)}}}))


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ROLLOUT_CACHE", str(tmp_path / "cache"))


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


@QUICK
@given(
    rows=st.lists(
        st.fixed_dictionaries(
            {"prompt": TEXT, "n": st.integers(-(2**53), 2**53), "tags": st.lists(TEXT, max_size=3)}
        ),
        min_size=1,
        max_size=12,
    )
)
def test_each_row_is_a_line_that_says_the_same(rows, tmp_path):
    path = write(tmp_path / "rows.parquet", rows)
    assert [json.loads(line) for line in read_lines(path)] == rows


def test_rows_keep_their_order_over_groups_and_batches(tmp_path):
    rows = [{"prompt": f"{n}+1="} for n in range(2 * BATCH_ROWS + 3)]
    source = opened(write(tmp_path / "rows.parquet", rows, row_group_size=100))
    assert [row["prompt"] for row in source.rows(range(len(source)))] == [r["prompt"] for r in rows]


def test_a_row_that_is_no_json_costs_no_other(tmp_path):
    rows = [
        {"prompt": "a", "x": 1.0},
        {"prompt": "b", "x": float("nan")},
        {"prompt": "c", "x": 2.0},
    ]
    source = opened(write(tmp_path / "rows.parquet", rows))
    assert [row["prompt"] for row in source.rows(range(len(source)))] == ["a", "c"]
    (refused,) = source.refused
    assert (refused.number, refused.code) == (1, "invalid_row")


def test_bytes_that_are_no_text_cost_their_row_only(tmp_path):
    good = pa.array([b"a", b"\xff\xfe", b"c"], pa.binary()).cast(pa.string(), safe=False)
    pq.write_table(pa.table({"prompt": good}), tmp_path / "rows.parquet")
    source = opened(tmp_path / "rows.parquet")
    assert [row["prompt"] for row in source.rows(range(len(source)))] == ["a", "c"]
    assert [one.number for one in source.refused] == [1]


def test_dates_are_text_and_other_values_are_named(tmp_path):
    day = dt.date(2026, 1, 2)
    (line,) = read_lines(write(tmp_path / "one.parquet", [{"prompt": "a", "day": day}]))
    assert json.loads(line)["day"] == "2026-01-02"
    (bad,) = read_lines(write(tmp_path / "two.parquet", [{"prompt": "a", "raw": b"1"}]))
    assert "bytes values are not supported" in json.loads(bad)


def test_custom_ids_are_unique_here_too(tmp_path):
    line = {
        "custom_id": "a",
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": {"messages": [{"role": "user", "content": "hi"}]},
    }
    source = opened(write(tmp_path / "rows.parquet", [line, line]))
    assert (len(source), [one.code for one in source.refused]) == (1, ["duplicate_custom_id"])


def test_a_file_without_rows_is_refused(tmp_path):
    pq.write_table(pa.table({"prompt": pa.array([], pa.string())}), tmp_path / "rows.parquet")
    with pytest.raises(DataError, match="has no rows"):
        opened(tmp_path / "rows.parquet")


@QUICK
@given(cut=st.integers(0, 400), flip=st.integers(0, 400), by=st.integers(0, 255))
def test_a_damaged_file_is_refused_or_says_rows(cut, flip, by, tmp_path):
    """Whatever its bytes are: a DataError that names the file, or lines; nothing else comes out."""
    whole = write(tmp_path / "whole.parquet", [{"prompt": "q" * 30}] * 40).read_bytes()
    bad = bytearray(whole[: len(whole) - cut])
    if flip < len(bad):
        bad[flip] ^= by
    path = tmp_path / "bad.parquet"
    path.write_bytes(bad)
    try:
        found = list(read_lines(path))
    except DataError as error:
        assert "bad.parquet" in str(error)
    else:
        assert all(json.loads(line) is not None for line in found)


def test_what_is_no_parquet_file_is_named(tmp_path):
    (tmp_path / "rows.parquet").write_bytes(b"PAR1 not really PAR1")
    with pytest.raises(DataError, match=r"rows.parquet is no Parquet file"):
        find_files(str(tmp_path / "rows.parquet"), tmp_path, tmp_path / "cache")
