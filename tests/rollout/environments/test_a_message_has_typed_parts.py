import msgspec
import pytest

from rollout.turns import ROWS_MAX, Action, Budgets, ToolSpec
from rollout.types import Message, ReasoningPart, TextPart, ToolCall, ToolResult

CALL = ToolCall(call_id="0-0", name="add", arguments_text='{"a": 1}', arguments={"a": 1})


def test_text_is_text_however_it_is_written():
    assert Message(role="user", content="hi") == Message(
        role="user", content=(TextPart(text="hi"),)
    )


def test_reasoning_and_calls_are_not_said_aloud():
    thought = ReasoningPart(text="hm")
    message = Message(role="assistant", content=(thought, TextPart(text="so:"), CALL))
    assert message.text == "so:"
    assert Action(message=message, text="raw").calls == (CALL,)


def test_a_result_is_the_text_of_a_tools_message():
    result = ToolResult(call_id="0-0", name="add", text="3")
    assert Message(role="tool", content=(result,)).text == "3"


@pytest.mark.parametrize(
    ("role", "part"),
    [
        ("user", CALL),
        ("system", ReasoningPart(text="hm")),
        ("assistant", ToolResult(call_id="", name="", text="")),
    ],
)
def test_a_part_that_a_role_cannot_have_is_refused(role, part):
    with pytest.raises(ValueError, match=f"role {role} .* got {type(part).__name__}"):
        Message(role=role, content=(part,))


def test_a_tool_is_another_tool_as_soon_as_its_description_is():
    tool = ToolSpec(name="add", description="Adds.", parameters={"type": "object", "b": 1, "a": 2})
    same = ToolSpec(name="add", description="Adds.", parameters={"a": 2, "b": 1, "type": "object"})
    other = ToolSpec(name="add", description="Adds!", parameters=tool.parameters)
    assert tool.digest == same.digest
    assert tool.digest != other.digest


@pytest.mark.parametrize("field", ["turns", "tokens", "tool_calls", "seconds", "rows"])
def test_a_budget_of_nothing_is_refused(field):
    with pytest.raises(ValueError, match=f"{field}: expected more than 0, got 0"):
        Budgets(**{field: 0})


def test_more_rows_than_any_trajectory_has_are_no_budget():
    with pytest.raises(ValueError, match=f"rows: expected at most {ROWS_MAX}, got {ROWS_MAX + 1}"):
        Budgets(rows=ROWS_MAX + 1)


def test_a_message_with_parts_arrives_in_a_child_as_it_was():
    message = Message(role="assistant", content=(ReasoningPart(text="hm"), CALL))
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=Message) == message
