import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollout.rendering.tool_calls import CALLS_MAX, call_id, parse_reply
from rollout.turns import ToolSpec
from rollout.types import ReasoningPart, TextPart, ToolCall

FIND = ToolSpec(
    name="find",
    description="Finds.",
    parameters={"type": "object", "properties": {"q": {"type": "string"}, "k": {}}},
)
FORMS = ("hermes", "function", "llama3", "mistral")


def calls(text, form="hermes", **more):
    parts = parse_reply(text, form, [FIND], 0, **more)
    return [part for part in parts if isinstance(part, ToolCall)]


def tagged(inside):
    return f"<tool_call>\n{inside}\n</tool_call>"


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("hermes", tagged('{"name": "find", "arguments": {"q": "true", "k": 3}}')),
        (
            "function",
            tagged(
                "<function=find>\n<parameter=q>\ntrue\n</parameter>\n<parameter=k>\n3\n</parameter>\n</function>"
            ),
        ),
        ("llama3", '{"name": "find", "parameters": {"q": "true", "k": 3}}'),
        ("mistral", '[TOOL_CALLS] [{"name": "find", "arguments": {"q": "true", "k": 3}}]'),
    ],
)
def test_each_family_has_its_form(form, text):
    (call,) = calls(text, form)
    assert (call.name, call.arguments, call.status) == ("find", {"q": "true", "k": 3}, "ok")


@pytest.mark.parametrize(
    ("text", "status"),
    [
        (tagged("{"), "invalid-json"),
        (tagged("[1]"), "malformed"),
        (tagged('{"arguments": {}}'), "missing-name"),
        (tagged('{"name": 3, "arguments": {}}'), "missing-name"),
        (tagged('{"name": "find", "arguments": [1]}'), "malformed"),
        (tagged('{"name": "lose", "arguments": {}}'), "unknown-tool"),
        ('<tool_call>{"name": "find"', "unclosed"),
        (tagged("[" * 100_000), "invalid-json"),
    ],
)
def test_a_wrong_call_is_a_call_with_what_is_wrong(text, status):
    (call,) = calls(text)
    assert (call.status, call.arguments) == (status, None)


def test_no_call_is_read_out_of_reasoning():
    call = tagged('{"name": "find", "arguments": {}}')
    thought, said = parse_reply(f"<think>\n{call}\n</think>\n\nno", "hermes", [FIND], 0)
    assert thought == ReasoningPart(text=call)
    assert said == TextPart(text="no")
    (open_,) = parse_reply(f"<think>\n{call}", "hermes", [FIND], 0)
    assert open_ == ReasoningPart(text=call, complete=False)
    (begun,) = parse_reply(call, "hermes", [FIND], 0, thinking=True)
    assert begun == ReasoningPart(text=call, complete=False)


def test_without_tools_a_call_is_text():
    text = tagged('{"name": "find", "arguments": {}}')
    assert parse_reply(text, "hermes", [], 0) == (TextPart(text=text),)


def test_a_flood_of_calls_is_bounded_and_ids_are_those_of_their_places():
    found = calls(tagged('{"name": "find", "arguments": {}}') * 500)
    assert [one.call_id for one in found] == [call_id(0, place) for place in range(CALLS_MAX)]
    assert {len(one.call_id) for one in found} == {9}


@pytest.mark.parametrize("form", FORMS)
@given(text=st.text(max_size=60), order=st.permutations(range(6)))
def test_any_reply_has_parts_and_nothing_raises(form, text, order):
    marks = ["<tool_call>", "</tool_call>", "<think>", "[TOOL_CALLS]", '{"name": "find"', text]
    parts = parse_reply("".join(marks[place] for place in order), form, [FIND], 0)
    assert all(isinstance(one, TextPart | ReasoningPart | ToolCall) for one in parts)


@given(
    arguments=st.dictionaries(st.text(max_size=8), st.integers() | st.text(max_size=8), max_size=4)
)
def test_arguments_are_what_was_written(arguments):
    written = json.dumps({"name": "find", "arguments": arguments})
    (call,) = calls(tagged(written.replace("</tool_call>", "")))
    assert call.arguments == arguments
    assert json.loads(call.arguments_text) == arguments
