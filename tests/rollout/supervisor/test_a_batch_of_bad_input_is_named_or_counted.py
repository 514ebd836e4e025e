"""Bad input of a batch on the real path: a file that cannot be read stops it before it begins, a bad row costs no other row."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from warm import run_rollout

pytestmark = [pytest.mark.process, pytest.mark.timeout(600)]

MODEL = "rollout://tiny-adder?steps=0"


def later(*cases: tuple[Any, ...]) -> list[Any]:
    """Cases for the long tier: the same path by another name."""
    return [pytest.param(*one, marks=pytest.mark.slow) for one in cases]


class Place:
    """A folder with rows, and what ``rollout`` says to a batch of them."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.runs = folder, folder / "runs"

    def run(self, rows: str, **infer: Any) -> tuple[int, str]:
        """The exit code, and all that was said."""
        sampling = {"maxNewTokens": 4, "temperature": "0"}
        spec = {"data": {"jsonl": {"uri": rows}}, "output": {"uri": "out"}, "sampling": sampling}
        manifest = {
            "apiVersion": "rollout.dev/v1alpha1",
            "kind": "RolloutRun",
            "metadata": {"name": "rows"},
            "spec": {"model": {"uri": MODEL}, "infer": {**spec, **infer}},
        }
        (self.folder / "batch.yaml").write_text(json.dumps(manifest))
        home = {"ROLLOUT_HOME": str(self.runs)}
        done = run_rollout("run", "-f", "batch.yaml", folder=self.folder, environment=home)
        said = done.stdout + done.stderr
        assert "Traceback" not in said
        return done.returncode, said

    def lines(self, *lines: Any) -> str:
        whole = [line if isinstance(line, str) else json.dumps(line) for line in lines]
        (self.folder / "rows.jsonl").write_text("".join(f"{line}\n" for line in whole))
        return "rows.jsonl"

    def read(self, name: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.folder / "out" / name).open()]


@pytest.fixture
def place(tmp_path):
    return Place(tmp_path)


def ask(custom_id: str, url: str, **body: Any) -> dict[str, Any]:
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": body}


CHAT = {"messages": [{"role": "user", "content": "1+2="}]}


def test_bad_rows_are_counted_and_every_other_is_answered_in_its_form(place):
    rows = place.lines(
        {"prompt": "1+2="},
        ask("chat", "/v1/chat/completions", **CHAT),
        ask("text", "/v1/completions", prompt="1+2=", model="mine"),
        ask("chat", "/v1/chat/completions", **CHAT),
        ask("vectors", "/v1/embeddings", input="1+2="),
        ask("short", "/v1/completions", prompt="1+2=", max_tokens=1),
        ask("long", "/v1/completions", prompt="1+" * 400),
        "{broken",
    )

    code, said = place.run(rows, maxFailedRatio="0.5")

    assert code == 0, said
    prompt, chat, text, short = place.read("results.jsonl")
    errors = place.read("errors.jsonl")
    assert [(one.get("custom_id"), one["error"]["code"]) for one in errors] == [
        ("chat", "duplicate_custom_id"),
        ("vectors", "invalid_url"),
        ("long", "context_length_exceeded"),
        (None, "invalid_row"),
    ]
    assert "/v1/chat/completions or /v1/completions" in errors[1]["error"]["message"]
    body = text["response"]["body"]
    (choice,) = body["choices"]
    assert (body["object"], body["model"], body["id"][:5]) == ("text_completion", "mine", "cmpl-")
    assert choice["text"] == prompt["completions"][0]["text"]
    assert choice["text"] == chat["response"]["body"]["choices"][0]["message"]["content"]
    assert choice["finish_reason"] in {"stop", "length"}
    assert short["response"]["body"]["usage"]["completion_tokens"] == 1


def test_more_failed_rows_than_are_borne_fail_the_run_with_its_files_written(place):
    rows = place.lines({"prompt": "1+2="}, "{broken", {"prompt": "2+2="}, {"question": "none"})

    code, said = place.run(rows, maxFailedRatio="0.4")

    assert code == 1
    assert "TooManyFailedRows" in said
    assert "4 rows, 2 failed" in said
    assert "infer.maxFailedRatio is 0.4" in said
    assert [one["row"] for one in place.read("results.jsonl")] == [0, 2]
    assert [one["row"] for one in place.read("errors.jsonl")] == [1, 3]


@pytest.mark.slow
def test_a_batch_in_which_no_row_is_good_fails_and_names_each(place):
    code, said = place.run(place.lines("{broken", {"question": "none"}))

    assert code == 1
    assert "2 rows, 2 failed" in said
    assert place.read("results.jsonl") == []
    assert len(place.read("errors.jsonl")) == 2


def _cut(path: Path) -> None:
    table = pa.table({"prompt": [f"{n}+1=" for n in range(500)]})
    pq.write_table(table, path, compression="zstd")
    path.write_bytes(path.read_bytes()[:-20])


@pytest.mark.parametrize(
    ("name", "write", "words"),
    [
        ("rows.parquet", _cut, ("rows.parquet",)),
        ("rows.jsonl", lambda path: path.write_bytes(b""), ("rows.jsonl", "it is empty")),
        *later(
            ("rows.parquet", lambda path: path.write_bytes(b""), ("rows.parquet",)),
            ("rows.jsonl", lambda path: path.mkdir(), ("rows.jsonl",)),
            ("rows.jsonl.gz", lambda path: path.write_bytes(b"no gzip"), ("rows.jsonl.gz",)),
        ),
    ],
)
def test_a_file_that_cannot_be_read_is_named_and_leaves_no_run(place, name, write, words):
    write(place.folder / name)

    code, said = place.run(name)

    assert code == 2, said
    assert all(word in said for word in words), said
    assert not place.runs.exists() or not list(place.runs.iterdir())
