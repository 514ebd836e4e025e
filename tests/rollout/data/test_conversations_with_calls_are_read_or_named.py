"""Conversations of a data set that call tools, in OpenAI's form: what is learned of them, and what is refused."""

import json

import pytest

from rollout.data.rows.mapping import (
    BadRecord,
    FieldMapping,
    map_record,
    row_messages,
    training_messages,
    training_tools,
)

CHAT = FieldMapping(messages_field="messages", target="answer")
ASKED = {"role": "user", "content": "1+2?"}
CALL = {
    "role": "assistant",
    "content": None,
    "tool_calls": [
        {"id": "call_x", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}},
        {"id": "call_y", "type": "function", "function": {"name": "add", "arguments": {"a": 2}}},
    ],
}
RESULTS = [
    {"role": "tool", "tool_call_id": "call_y", "content": "two"},
    {"role": "tool", "tool_call_id": "call_x", "content": ""},
]
ANSWER = {"role": "assistant", "content": "3"}
TOOL = {
    "type": "function",
    "function": {"name": "add", "description": "Adds.", "parameters": {"type": "object"}},
}


def row(*messages, **fields):
    return map_record(CHAT, {"messages": list(messages), **fields})


def test_calls_and_results_are_read_and_find_each_other():
    found = training_messages(row(ASKED, CALL, *RESULTS, ANSWER))

    first, second = found[1].calls
    assert (first.name, first.arguments, second.arguments) == ("add", {"a": 1}, {"a": 2})
    assert [one.parts[0].call_id for one in found[2:4]] == [second.call_id, first.call_id]
    assert [one.text for one in found[2:]] == ["two", "", "3"]


def test_a_conversation_may_end_in_a_call():
    found = training_messages(row(ASKED, CALL))

    assert [call.arguments for call in found[-1].calls] == [{"a": 1}, {"a": 2}]


@pytest.mark.parametrize("tools", [[TOOL], json.dumps([TOOL]), [TOOL["function"]]])
def test_tools_are_those_that_the_record_lists(tools):
    (tool,) = training_tools(row(ASKED, CALL, *RESULTS, ANSWER, tools=tools))

    assert (tool.name, tool.description, tool.parameters) == ("add", "Adds.", {"type": "object"})


def test_a_prompt_may_hold_calls_too():
    mapping = FieldMapping(messages_field="messages")

    found = row_messages(map_record(mapping, {"messages": [ASKED, CALL, *RESULTS]}))

    assert len(found[1].calls) == 2


def broken(**changes):
    return {**CALL, "tool_calls": [{"function": {"name": "add", "arguments": {}, **changes}}]}


@pytest.mark.parametrize(
    ("messages", "fields", "says"),
    [
        ([ASKED, broken(name="")], {}, r"messages\[1\].tool_calls\[0\]: expected {function"),
        ([ASKED, broken(arguments="{")], {}, r"tool_calls\[0\].arguments: expected JSON, got '{'"),
        ([ASKED, broken(arguments=[1])], {}, r"arguments: expected an object, got list"),
        ([ASKED, {**CALL, "tool_calls": "x"}], {}, r"tool_calls: expected a list of at most 64"),
        ([{**CALL, "role": "user"}], {}, "'user' calls tools; only the assistant does"),
        ([ASKED, {**CALL, "content": 3}], {}, r"messages\[1\].content: expected text, got int"),
        (
            [ASKED, CALL, {"role": "tool", "content": None}],
            {},
            "expected the tool's answer as text",
        ),
        ([ASKED, ANSWER], {"tools": "x"}, "tools: expected JSON, got 'x'"),
        ([ASKED, ANSWER], {"tools": [{}]}, r"tools\[0\]: expected {function: {name"),
        ([ASKED, ANSWER], {"tools": [{"name": "a", "parameters": 3}]}, "parameters: expected an"),
    ],
)
def test_what_is_malformed_is_named_with_its_place(messages, fields, says):
    with pytest.raises(BadRecord, match=says):
        row(*messages, **fields)
