import gzip
import json

import pytest
from zstandard import ZstdCompressor

from rollout.data.files import find_files
from rollout.data.jsonl import open_jsonl
from rollout.data.rows.mapping import BadRecord, FieldMapping, map_record, training_messages
from rollout.errors import DataError

QA = FieldMapping(prompt_field="question", answer_field="answer")


@pytest.fixture
def write(tmp_path):
    def write_lines(*lines, name="train.jsonl"):
        path = tmp_path / name
        content = b"\n".join(x if isinstance(x, bytes) else json.dumps(x).encode() for x in lines)
        path.write_bytes(content + b"\n")
        return path

    return write_lines


GOOD = {"question": "1+1?", "answer": "2"}
BROKEN = {
    "not JSON: Expecting property name": b'{"question": "x", }',
    "expected an object": b"[1, 2]",
    "not UTF-8": b'{"question": "\xff"}',
    "NaN is no JSON number": b'{"question": "x", "answer": NaN}',
    "nested too deeply": b"[" * 100_000,
    "field 'question' is missing .the record has 'q'": {"q": "x", "answer": "2"},
    "field 'question': expected text, got int": {"question": 3, "answer": "2"},
    "field 'question' is empty": {"question": "  ", "answer": "2"},
    "field 'answer' is missing": {"question": "x"},
    "field 'answer': expected text or a number, got null": {"question": "x", "answer": None},
    "field 'answer': expected text or a number, got list": {"question": "x", "answer": ["2"]},
}


@pytest.mark.parametrize("reason", BROKEN)
def test_a_broken_line_is_named_with_file_line_and_reason(write, reason):
    path = write(GOOD, b"", BROKEN[reason], GOOD)

    with pytest.raises(DataError, match=f"1 of 3 records(.|\n)*train.jsonl:3: .*{reason}"):
        open_jsonl([path], QA)


@pytest.mark.parametrize("reason", BROKEN)
def test_a_broken_line_may_be_skipped_and_is_counted(write, reason):
    source = open_jsonl([write(GOOD, BROKEN[reason], GOOD)], QA, on_bad="Skip")

    assert len(source) == 2
    assert source.bad.num_records == 1
    assert source.bad.first[0].where.endswith("train.jsonl:2")
    assert [row["answer"] for row in source.rows([1, 0])] == ["2", "2"]


def test_many_broken_lines_are_counted_and_the_first_ten_shown(write):
    path = write(GOOD, *[b"oops"] * 25)

    with pytest.raises(DataError) as caught:
        open_jsonl([path], QA)

    message = str(caught.value)
    assert "25 of 26 records" in message
    assert message.count("not JSON") == 10
    assert "and 15 more" in message
    assert "onBadRecord: Skip" in message


@pytest.mark.parametrize("on_bad", ["Fail", "Skip"])
def test_an_empty_file_is_refused(write, on_bad):
    with pytest.raises(DataError, match="no usable record: it is empty"):
        open_jsonl([write(b"")], QA, on_bad=on_bad)


def test_skipping_every_line_is_refused(write):
    with pytest.raises(DataError, match=r"no usable record:(.|\n)*train.jsonl:1"):
        open_jsonl([write(b"oops")], QA, on_bad="Skip")


def test_a_file_without_a_last_newline_and_with_a_byte_order_mark_is_read(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_bytes(
        b"\xef\xbb\xbf" + json.dumps(GOOD).encode() + b"\r\n" + json.dumps(GOOD).encode()
    )

    assert len(open_jsonl([path], QA)) == 2


def test_a_file_that_changes_during_a_run_is_noticed(write):
    path = write(GOOD, GOOD)
    source = open_jsonl([path], QA)
    path.write_bytes(b"changed")

    with pytest.raises(DataError, match="the file was changed"):
        source.rows([1])


def test_a_file_that_vanishes_during_a_run_is_noticed(write):
    path = write(GOOD)
    source = open_jsonl([path], QA)
    path.unlink()

    with pytest.raises(DataError, match="cannot be read"):
        source.rows([0])


def test_several_files_are_one_source_in_the_order_of_their_names(write, tmp_path):
    for name, answer in (("b.jsonl", "2"), ("a.jsonl", "1"), ("c.jsonl", "3")):
        write({"question": "x", "answer": answer}, name=name)
    (tmp_path / "notes.txt").write_text("not data")

    for uri in (".", "*.jsonl", f"file://{tmp_path}"):
        source = open_jsonl(find_files(uri, tmp_path, tmp_path / "cache"), QA)
        assert [row["answer"] for row in source.rows(range(3))] == ["1", "2", "3"]


def test_a_broken_line_of_the_second_file_names_that_file(write, tmp_path):
    write(GOOD, name="a.jsonl")
    write(GOOD, b"oops", name="b.jsonl")

    with pytest.raises(DataError, match=r"b\.jsonl:2"):
        open_jsonl(find_files("*.jsonl", tmp_path, tmp_path), QA)


def test_packed_files_hold_the_same_data_as_plain_ones(write, tmp_path):
    plain = write(GOOD, GOOD)
    (tmp_path / "g.jsonl.gz").write_bytes(gzip.compress(plain.read_bytes()))
    (tmp_path / "z.jsonl.zst").write_bytes(ZstdCompressor().compress(plain.read_bytes()))

    digests = {
        open_jsonl(find_files(uri, tmp_path, tmp_path / "cache"), QA).digest
        for uri in ("train.jsonl", "g.jsonl.gz", "z.jsonl.zst")
    }

    assert len(digests) == 1


def test_the_digest_follows_the_content_not_the_place(write):
    first = open_jsonl([write(GOOD, name="a.jsonl")], QA).digest
    moved = open_jsonl([write(GOOD, name="b.jsonl")], QA).digest
    other = open_jsonl([write(GOOD, GOOD, name="c.jsonl")], QA).digest

    assert first == moved != other


@pytest.mark.parametrize("name", ["bad.jsonl.gz", "bad.jsonl.zst"])
def test_a_damaged_packed_file_is_refused(tmp_path, name):
    (tmp_path / name).write_bytes(b"not packed at all")

    with pytest.raises(DataError, match="cannot be unpacked"):
        find_files(name, tmp_path, tmp_path / "cache")


@pytest.mark.parametrize(
    ("uri", "says"),
    [
        ("none.jsonl", "none.jsonl does not exist .relative paths start at the manifest"),
        ("none*.jsonl", "no file matches"),
        ("empty", "holds no .*jsonl file"),
        ("s3://bucket/x.jsonl", "is not in this machine.s cache"),
        ("ftp://host/x.jsonl", "ftp:// cannot be read by a run on this machine"),
        ("hf://datasets/x", "expected hf://datasets/owner/name/file"),
    ],
)
def test_data_that_is_not_there_is_named(tmp_path, uri, says):
    (tmp_path / "empty").mkdir()

    with pytest.raises(DataError, match=says):
        find_files(uri, tmp_path, tmp_path / "cache")


def test_a_row_keeps_its_fields_and_gains_messages_prompt_and_answer():
    row = map_record(
        FieldMapping(prompt_field="q", answer_field="a", system_prompt="Be brief."),
        {"q": "2*3?", "a": 6, "level": 1},
    )

    assert row == {
        "q": "2*3?",
        "a": 6,
        "level": 1,
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "2*3?"},
        ],
        "prompt": "2*3?",
        "answer": "6",
    }


def test_a_template_fills_in_fields_and_keeps_braces():
    mapping = FieldMapping(template="Q: {q} ({level}) {{json}} {")

    row = map_record(mapping, {"q": "2*3?", "level": 2})

    assert row["prompt"] == "Q: 2*3? (2) {json} {"
    with pytest.raises(BadRecord, match="field 'level' is missing"):
        map_record(mapping, {"q": "x"})


def test_a_conversation_ends_with_its_answer():
    messages = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b"},
        {"role": "user", "content": "c"},
        {"role": "assistant", "content": "d"},
    ]
    row = map_record(FieldMapping(messages_field="chat", system_prompt="s"), {"chat": messages})

    assert [m["role"] for m in row["messages"]] == ["system", "user", "assistant", "user"]
    assert row["answer"] == "d"
    assert [m.content for m in training_messages(row)] == ["s", "a", "b", "c", "d"]


@pytest.mark.parametrize(
    ("chat", "says"),
    [
        ([], "expected a list of messages"),
        ("hello", "expected a list of messages, got str"),
        ([{"role": "robot", "content": "x"}], r"chat\[0\]: expected {role: system|user"),
        ([{"role": "user"}], "field 'content' is missing"),
        (
            [
                {
                    "role": "user",
                    "content": [{"type": "text"}, {"type": "image_url"}, {"type": "text"}],
                }
            ],
            r"chat\[0\]: content has parts \(text, image_url\); text alone",
        ),
        ([{"role": "user", "content": []}], r"content has parts \(none\)"),
        (
            [{"role": "assistant", "content": "x", "tool_calls": [{"id": "1"}]}],
            r"chat\[0\].tool_calls\[0\]: expected {function: {name, arguments}}",
        ),
        ([{"role": "assistant", "content": "x"}], "no prompt before it"),
    ],
)
def test_a_malformed_conversation_is_a_bad_record(chat, says):
    with pytest.raises(BadRecord, match=says):
        map_record(FieldMapping(messages_field="chat"), {"chat": chat})


def test_a_row_without_an_answer_cannot_be_trained_on():
    row = map_record(FieldMapping(), {"prompt": "x"})

    assert "answer" not in row
    with pytest.raises(BadRecord, match="answerField"):
        training_messages(row)
    with pytest.raises(BadRecord, match="answerField"):
        map_record(FieldMapping(target="answer"), {"prompt": "x"})
