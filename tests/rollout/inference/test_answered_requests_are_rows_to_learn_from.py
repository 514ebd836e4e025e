"""The request log with bodies becomes rows of conversations: what was answered whole, streamed or not, and nothing else."""

import asyncio
import json
import stat

import msgspec
import pytest
from gateway_kit import chat, until
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from rollout.cli.main import app
from rollout.data.rows.mapping import FieldMapping, map_record
from rollout.errors import SpecError
from rollout.inference.gateway.request_log import RequestLine
from rollout.inference.request_rows import LeftOut, build_rows, read_line

CHAT = "/v1/chat/completions"
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
SFT = FieldMapping(messages_field="messages", target="answer")
ASKED = {"messages": [{"role": "user", "content": "hi"}]}


def line(asked=ASKED, answered=None, **fields):
    base = {"time": 5.0, "id": "r", "key": "k", "path": CHAT, "asked": "m", "version": "m@1"}
    base |= {"digest": "blake3:d", "engine": "e", "code": 200, "input": json.dumps(asked)}
    base["output"] = answered if isinstance(answered, str) else json.dumps(answered)
    return RequestLine(**{**base, **fields})


def choice(text, finish="stop", **more):
    return {
        "index": 0,
        "message": {"role": "assistant", "content": text},
        "finish_reason": finish,
        **more,
    }


def whole(*choices):
    return {"choices": list(choices)}


def stream(*deltas, end="data: [DONE]\n\n", finish="stop"):
    parts = [{"choices": [{"index": 0, "delta": one}]} for one in deltas]
    parts.append({"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]})
    parts.append({"choices": [], "usage": {"prompt_tokens": 1}})
    return "".join(f"data: {json.dumps(one)}\n\n" for one in parts) + end


def test_an_answer_is_the_last_message_and_says_where_it_is_from():
    [row] = build_rows(line(answered=whole(choice("there"))))
    assert row == {
        "messages": [*ASKED["messages"], {"role": "assistant", "content": "there"}],
        "id": "r",
        "version": "m@1",
        "digest": "blake3:d",
        "time": 5.0,
    }


def test_several_samples_are_several_rows_and_those_cut_off_are_none():
    rows = build_rows(line(answered=whole(choice("a"), choice("b", "length"), choice("c"))))
    assert [one["messages"][-1]["content"] for one in rows] == ["a", "c"]


def test_a_stream_is_put_together_by_its_events():
    call = {"index": 0, "id": "c1", "function": {"name": "add", "arguments": ""}}
    more = [{"index": 0, "function": {"arguments": part}} for part in ('{"a": ', "3}")]
    other = {"index": 1, "id": "c2", "function": {"name": "add", "arguments": "{}"}}
    deltas = [{"role": "assistant", "content": "I "}, {"content": "add"}]
    deltas += [{"tool_calls": [one]} for one in (call, more[0], other, more[1])]
    asked = {**ASKED, "tools": [TOOL]}
    [row] = build_rows(line(asked, stream(*deltas, finish="tool_calls"), stream=True))
    assert row["tools"] == [TOOL]
    said = row["messages"][-1]
    assert said["content"] == "I add"
    assert [(one["id"], one["function"]["arguments"]) for one in said["tool_calls"]] == [
        ("c1", '{"a": 3}'),
        ("c2", "{}"),
    ]


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (line(answered=whole(choice("x")), code=502), LeftOut.not_answered),
        (line(answered=whole(choice("x")), path="/v1/completions"), LeftOut.no_chat),
        (line(answered=whole(choice("x")), input="", input_cut=True), LeftOut.no_bodies),
        (line(answered="", output_cut=True), LeftOut.no_bodies),
        (line(answered=whole(choice("x", "length"))), LeftOut.cut_off),
        (line(answered=whole(choice(""))), LeftOut.cut_off),
        (line(answered=stream({"content": "x"}, end=""), stream=True), LeftOut.cut_off),
        (
            line(answered='data: {"error": {"message": "lost"}}\n\ndata: [DONE]\n\n', stream=True),
            LeftOut.cut_off,
        ),
        (
            line(
                {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
                whole(choice("x")),
            ),
            LeftOut.no_text,
        ),
    ],
)
def test_what_cannot_be_learned_from_is_left_out_by_its_reason(found, why):
    assert build_rows(found) is why


def test_parts_that_are_texts_are_one_text():
    parts = [{"type": "text", "text": "h"}, {"type": "text", "text": "i"}]
    [row] = build_rows(line({"messages": [{"role": "user", "content": parts}]}, whole(choice("x"))))
    assert row["messages"][0] == {"role": "user", "content": "hi"}


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(0, 9) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["messages", "content", "choices", "delta", "message", "tool_calls"]),
            inner,
            max_size=3,
        )
    ),
    max_leaves=12,
)


@given(json_values, json_values, st.booleans(), st.text(max_size=20))
def test_any_bodies_are_rows_or_a_reason(asked, answered, streams, tail):
    said = f"data: {json.dumps(answered)}\n\n{tail}" if streams else json.dumps(answered)
    found = build_rows(line(asked, said or "x", stream=streams))
    assert isinstance(found, LeftOut | list)


@given(st.binary(max_size=60))
def test_any_bytes_are_a_line_or_none(data):
    assert read_line(data) is None or isinstance(read_line(data), RequestLine)


async def test_what_a_gateway_has_logged_is_learned_from(gateway, tmp_path):
    folder = tmp_path / "logs" / "requests"
    served = await gateway(settings={"log": str(folder), "log_bodies": True})
    await served.post(CHAT, chat("plain"))
    await served.stream(chat("streamed"))
    await served.post(CHAT, {**chat("with a tool"), "tools": [TOOL]})
    await served.stream({**chat("with a tool, streamed"), "tools": [TOOL]})
    await served.post(CHAT, chat("status=400"))
    await served.stream(chat("die"))
    await served.post("/v1/completions", {"model": "m", "prompt": "text"})
    await until(lambda: len(logged(folder)) == 7, "all lines")
    with next(iter(folder.iterdir())).open("ab") as file:
        file.write(b'{"time": 1, "id": "cut o\n')
    rows, told = await asyncio.to_thread(export, tmp_path)
    assert told["rows"] == len(rows) == 4
    assert told["leftOut"] == {"not_answered": 2, "no_chat": 1, "unreadable": 1}
    plain, streamed, called, called_streamed = (one["messages"][-1] for one in rows)
    assert plain["content"].split() == streamed["content"].split() == ["w"] * 4
    assert called["tool_calls"] == called_streamed["tool_calls"]
    for row in rows:
        assert map_record(SFT, row)["messages"][0]["role"] == "user"
    _, none = await asyncio.to_thread(export, tmp_path, "--model", "other")
    assert none["rows"] == 0
    _, later = await asyncio.to_thread(export, tmp_path, "--since", "2099-01-01")
    assert later["rows"] == 0


def logged(folder):
    return [one for file in folder.glob("*.jsonl") for one in file.read_text().splitlines()]


def export(home, *words):
    """Rows that the command has written, and what it says."""
    file = home / "rows.jsonl"
    ask = ["infer", "requests", str(file), "--keys", str(home), "--output", "json", *words]
    told = CliRunner().invoke(app, ask, catch_exceptions=False)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    return [json.loads(one) for one in file.read_text().splitlines()], json.loads(told.stdout)


def test_where_nothing_was_logged_nothing_is_written(tmp_path):
    file = tmp_path / "rows.jsonl"
    told = CliRunner().invoke(app, ["infer", "requests", str(file), "--keys", str(tmp_path)])
    assert isinstance(told.exception, SpecError)
    assert "--log-bodies" in str(told.exception)
    assert not file.exists()


def test_a_line_that_is_written_is_read():
    written = line(answered=whole(choice("x")))
    assert read_line(msgspec.json.encode(written)) == written
