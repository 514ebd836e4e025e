"""A toolbox answers every call of a reply: wrong ones with what is wrong, repeated ones without doing them again."""

from __future__ import annotations

import asyncio

import pytest
from tool_calls import answer_of, box_of, tool_call

from rollout.errors import EngineError, InfrastructureError
from rollout.tools.contract import ToolTraits
from rollout.tools.functions import FunctionTool
from rollout.tools.toolbox import ToolboxLimits
from rollout.types import ToolCall


def add(left: int, right: int) -> int:
    """Add two numbers.

    Nobody sees this.
    """
    return left + right


async def test_calls_of_one_reply_are_answered_in_order_each_with_its_id():
    toolbox = box_of(add)
    made = await toolbox.answer([tool_call("add", n, left=n, right=1) for n in range(3)])
    assert [(one.call_id, one.text, one.is_error) for one in made.results] == [
        ("0-0", "1", False),
        ("0-1", "2", False),
        ("0-2", "3", False),
    ]
    assert made.signals["tool_calls"] == 3


async def test_the_policy_sees_the_name_the_first_paragraph_and_the_types():
    (spec,) = box_of(add).specs
    assert (spec.name, spec.description) == ("add", "Add two numbers.")
    assert spec.parameters == {
        "type": "object",
        "additionalProperties": False,
        "properties": {"left": {"type": "integer"}, "right": {"type": "integer"}},
        "required": ["left", "right"],
    }


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (ToolCall(call_id="a", name="add", arguments_text="{", status="invalid-json"), "not valid JSON"),
        (ToolCall(call_id="a", name="add", arguments_text="{", status="unclosed"), "not closed"),
        (ToolCall(call_id="a", name="", arguments_text="{}", status="missing-name"), "names no tool"),
        (ToolCall(call_id="a", name="x", arguments_text="?", status="malformed"), "malformed"),
        (ToolCall(call_id="a", name="sub", arguments_text="{}", status="unknown-tool"), "no tool 'sub'; there are add"),
        (ToolCall(call_id="a", name="add", arguments_text="[]"), "no JSON object"),
        (tool_call("add", left=1), "right: field required"),
        (tool_call("add", left="1", right=2), "left: input should be a valid integer"),
        (tool_call("add", left=1, right=2, more=3), "more: extra inputs are not permitted"),
        (tool_call("add", left=float("nan"), right=2), "left"),
    ],
)  # fmt: skip
async def test_a_wrong_call_is_answered_with_what_is_wrong(call, said):
    made = await box_of(add).answer([call])
    assert made.results[0].is_error
    assert said in made.results[0].text


async def test_a_tool_that_raises_is_told_to_the_policy():
    def broken(text: str) -> str:
        return str(int(text))

    made = await box_of(broken).answer([tool_call("broken", text="x")])
    assert made.results[0].is_error
    assert "ValueError: invalid literal for int()" in made.results[0].text
    assert made.signals["tool_errors"] == 1


async def test_a_tool_that_exits_ends_no_process_of_ours():
    def leave() -> str:
        raise SystemExit(3)

    assert await answer_of(box_of(leave), tool_call("leave")) == [
        "error: RuntimeError: SystemExit: 3"
    ]


@pytest.mark.parametrize("kind", [InfrastructureError, EngineError])
async def test_what_is_nobodys_doing_is_not_told_to_the_policy(kind):
    def down() -> str:
        raise kind("the service is down")

    with pytest.raises(kind, match="tool 'down': the service is down"):
        await box_of(down).answer([tool_call("down")])


async def test_a_tool_that_hangs_is_given_up_and_the_next_call_is_answered():
    import threading

    release = threading.Event()

    def hang() -> str:
        release.wait()
        return "late"

    toolbox = box_of(FunctionTool(hang, traits=ToolTraits(seconds=0.05)), add)
    made = await toolbox.answer([tool_call("hang"), tool_call("add", 1, left=1, right=1)])
    release.set()
    assert [one.text for one in made.results] == ["error: no answer within 0.05 s", "2"]
    assert made.signals["tool_timeouts"] == 1


async def test_a_coroutine_that_hangs_is_cancelled():
    ended = asyncio.Event()

    async def hang() -> str:
        try:
            await asyncio.sleep(600)
        finally:
            ended.set()
        return ""

    await box_of(FunctionTool(hang, traits=ToolTraits(seconds=0.05))).answer([tool_call("hang")])
    assert ended.is_set()


async def test_a_call_that_comes_again_under_its_id_is_not_done_again():
    done = []

    def note(text: str) -> str:
        done.append(text)
        return f"{len(done)}"

    toolbox = box_of(note)
    first = await answer_of(toolbox, tool_call("note", text="a"))
    again = await answer_of(toolbox, tool_call("note", text="a"))
    other = await answer_of(toolbox, tool_call("note", turn=1, text="a"))
    assert (first, again, other, done) == (["1"], ["1"], ["2"], ["a", "a"])


async def test_recorded_answers_are_fed_back_as_they_were():
    from tool_calls import Given

    from rollout.tools.toolbox import Toolbox
    from rollout.types import ToolResult

    done = []

    def note(text: str) -> str:
        done.append(text)
        return "new"

    was = ToolResult(call_id="0-0", name="note", text="as it was")
    toolbox = Toolbox([Given(FunctionTool(note))], {}, recorded={"0-0": was})
    made = await toolbox.answer([tool_call("note", text="a")])
    assert made.results == (was,)
    assert done == []


async def test_an_equal_call_of_a_pure_tool_shows_the_earlier_answer_and_in_the_end_is_a_loop():
    done = []

    def look(query: str) -> str:
        done.append(query)
        return "found"

    toolbox = box_of(FunctionTool(look, traits=ToolTraits(pure=True)))
    rounds = [
        await toolbox.answer([tool_call("look", turn=turn, query=query)])
        for turn, query in enumerate(["An Apple", "an  apple", "AN APPLE", "pear", "an apple"])
    ]
    assert done == ["An Apple", "pear"]
    assert rounds[1].results[0].text == "(you have asked this before; the answer was)\nfound"
    assert [bool(one.loop) for one in rounds] == [False, False, False, False, True]
    assert rounds[-1].loop == "look was called 4 times with the same arguments"


async def test_wrong_calls_in_a_row_are_a_loop_and_a_good_one_begins_anew():
    toolbox = box_of(add)
    wrong = [tool_call("sub", turn=turn) for turn in range(3)]
    good = tool_call("add", turn=3, left=1, right=1)
    more = [tool_call("sub", turn=turn) for turn in range(4, 8)]
    rounds = [await toolbox.answer([call]) for call in [*wrong, good, *more]]
    assert [one.loop for one in rounds] == [""] * 7 + ["4 calls in a row were wrong"]


async def test_calls_beyond_the_limit_are_answered_as_not_executed():
    toolbox = box_of(add, limits=ToolboxLimits(calls_per_turn=1))
    made = await toolbox.answer([tool_call("add", n, left=n, right=1) for n in range(3)])
    assert [one.text for one in made.results] == [
        "1",
        *["not executed: a reply may hold 1 calls"] * 2,
    ]


async def test_an_answer_is_cut_and_holds_nothing_that_a_terminal_obeys():
    def flood() -> str:
        return "\x1b[2J\x1b]0;title\x07a\0b\u202e" + "x" * 100_000 + "end"

    (text,) = await answer_of(box_of(flood), tool_call("flood"))
    assert text.startswith("abxxx")
    assert text.endswith("xxend")
    assert "[... 92005 characters left out ...]" in text
    assert len(text) < 8100


async def test_every_tool_is_closed_though_one_raises():
    closed = []

    def tell(name: str) -> str:
        return name

    def fail() -> None:
        raise RuntimeError("not closed")

    tools = [
        FunctionTool(tell, name="a", close=fail),
        FunctionTool(tell, name="b", close=lambda: closed.append("b")),
    ]
    toolbox = box_of(*tools)
    await toolbox.close()
    await toolbox.close()
    assert closed == ["b"]
