"""``environment.tools``: what the policy sees, what its calls give, and what is refused."""

import asyncio
import json
import textwrap
from types import SimpleNamespace

import pytest

from rollout.environments.build import build_environment
from rollout.environments.plugin import RowsSource
from rollout.environments.prompts import measure_prompts
from rollout.environments.with_tools import tools_of
from rollout.errors import DataError, SpecError
from rollout.tools.sources import require_planned, tool_digests
from rollout.turns import Action, Ending, State
from rollout.types import Message, ToolCall
from rollout_api.v1alpha1.environment import Environment

CODE = """
    from rollout.turns import State, ToolSpec

    def area(width: int, height: int = 2) -> int:
        '''The area of a box.'''
        return width * height

    def broken(x: int) -> int:
        '''Fails.'''
        raise RuntimeError("no such shelf")

    def untyped(x):
        return x

    def search(query: str) -> str:
        '''Another search.'''
        return query

    number = 3

    class Talk:
        def __init__(self, row):
            self.row, self.heard = row, []

        def start(self):
            return f"about {self.row['prompt']}"

        def step(self, reply):
            self.heard.append(reply)
            return f"heard {len(self.heard)}", len(self.heard) == 2

    class Own:
        def __init__(self, row):
            pass

        async def start(self):
            tool = ToolSpec(name="mine", description="", parameters={})
            return State(messages=(), tools=(tool,))

        async def step(self, action):
            raise AssertionError

        async def close(self): ...
"""
ROW = {
    "prompt": "2*3?",
    "messages": [{"role": "user", "content": "2*3?"}],
    "documents": ["cats sleep", {"title": "Dogs", "text": "dogs bark at night"}],
}


@pytest.fixture
def make(tmp_path):
    module = f"mine_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{module}.py").write_text(textwrap.dedent(CODE))

    def made(*tools, python=None):
        names = [name.replace("mine.", f"{module}.") for name in tools]
        chosen = (
            {"builtin": {"name": "single-turn"}}
            if python is None
            else {"python": {"module": module, "className": python}}
        )
        environment = Environment.model_validate({**chosen, "tools": names})
        return build_environment(environment, folders=[tmp_path])

    return made


def calling(*calls, turn=0):
    parts = tuple(
        ToolCall(
            call_id=f"{turn}-{place}",
            name=name,
            arguments_text=json.dumps(arguments),
            arguments=arguments,
            status="ok" if arguments is not None else "invalid-json",
        )
        for place, (name, arguments) in enumerate(calls)
    )
    return Action(message=Message(role="assistant", content=parts), text="<call>", turn=turn)


def saying(text, turn=0):
    return Action(message=Message(role="assistant", content=text), text=text, turn=turn)


def heard(builder, *actions, row=ROW):
    """What the environment says from its start on."""

    async def play():
        environment = builder.build(row)
        try:
            said = [await environment.start()]
            said += [await environment.step(action) for action in actions]
        finally:
            await environment.close()
        return said

    return asyncio.run(play())


def results(state):
    return [part.text for part in state.messages[0].parts]


def test_the_policy_sees_them_from_the_start_and_an_answer_without_a_call_is_the_last():
    builder = build_environment(
        Environment.model_validate({"builtin": {"name": "single-turn"}, "tools": ["calculator"]})
    )
    begun, answered, ended = heard(
        builder, calling(("calculator", {"expression": "2*3"})), saying("6", turn=1)
    )
    assert [tool.name for tool in begun.tools] == ["calculator"]
    assert (answered.messages[0].role, results(answered)) == ("tool", ["6"])
    assert isinstance(ended, Ending)
    assert ended.signals["tool_calls"] == 1


def test_typed_functions_of_the_users_are_tools_and_what_they_raise_is_told_to_the_policy(make):
    builder = make("mine.area", "mine.broken")
    assert [tool.name for tool in tools_of(builder)] == ["area", "broken"]
    assert tools_of(builder)[0].description == "The area of a box."
    _, said = heard(
        builder,
        calling(
            ("area", {"width": 4}),
            ("area", {"width": "x"}),
            ("broken", {"x": 1}),
            ("other", {}),
            ("area", None),
        ),
    )
    first, wrong, failed, unknown, unread = results(said)
    assert first == "8"
    assert "width" in wrong
    assert failed == "error: RuntimeError: no such shelf"
    assert "no tool 'other'; there are area, broken" in unknown
    assert "not valid JSON" in unread
    assert said.signals["tool_invalid"] == 2


def test_search_looks_in_the_documents_of_the_row_and_names_a_row_without(make):
    builder = make("search")
    _, said = heard(builder, calling(("search", {"query": "dogs"}), ("read", {"number": 1})))
    assert results(said) == ["[2] Dogs\ndogs bark at night", "[1]\ncats sleep"]
    with pytest.raises(DataError, match="no field 'documents'"):
        builder.build({"prompt": "x", "messages": ROW["messages"]})


def test_an_environment_of_the_users_hears_replies_without_calls_only(make):
    builder = make("calculator", python="Talk")
    begun, said, answered, ended = heard(
        builder,
        saying("hello"),
        calling(("calculator", {"expression": "1+1"}), turn=1),
        saying("bye", turn=2),
    )
    assert begun.messages[0].content == "about 2*3?"
    assert said.messages[0].content == "heard 1"
    assert results(answered) == ["2"]
    assert isinstance(ended, Ending)


def test_a_policy_that_asks_the_same_over_and_over_ends_as_a_tool_loop(make):
    again = [calling(("calculator", {"expression": "1+1"}), turn=turn) for turn in range(4)]
    *_, before, last = heard(make("calculator"), *again)
    assert isinstance(before, State)
    assert (last.kind, last.owner) == ("tool-loop", "policy")
    assert "same arguments" in last.detail


def test_an_environment_with_tools_of_its_own_is_refused_beside_them(make):
    with pytest.raises(SpecError, match=r"environment.tools: .*tools of its own \(mine\)"):
        heard(make("calculator", python="Own"))


@pytest.mark.parametrize(
    ("tools", "why"),
    [
        (["mine.untyped"], "parameter 'x' has no type"),
        (["mine.nothing"], "has no 'nothing'"),
        (["mine.number"], "expected a function, got int"),
        (["search", "mine.search"], "two tools are called 'search'"),
        (["telephone"], "no tool 'telephone'; there are calculator"),
    ],
)
def test_what_is_no_tool_is_named_before_anything_runs(make, tools, why):
    with pytest.raises(SpecError, match=why):
        make(*tools)


def test_what_the_policy_sees_is_held_to_what_was_planned(make):
    seen = tools_of(make("calculator", "mine.area"))
    planned = tool_digests(seen)
    require_planned(planned, seen)
    with pytest.raises(SpecError, match="area is not what the run was planned with"):
        require_planned({**planned, "area": "blake3:00"}, seen)
    with pytest.raises(SpecError, match="calculator"):
        require_planned({}, seen)


def test_the_hosts_that_it_may_ask_are_part_of_what_it_sees():
    def seen(*hosts):
        named = {"builtin": {"name": "arithmetic"}, "http": {"hosts": hosts}}
        return tools_of(build_environment(Environment.model_validate(named)))

    [http] = seen("docs.example.org")
    assert http.name == "http"
    assert "docs.example.org" in http.description
    with pytest.raises(SpecError, match="http is not what the run was planned with"):
        require_planned(tool_digests([http]), seen("docs.example.org", "evil.org"))


@pytest.mark.usefixtures("sandbox_host")
def test_what_the_policy_writes_runs_in_one_sandbox_an_episode(make):
    builder = make("python_exec", "shell", "file")
    assert [tool.name for tool in tools_of(builder)] == ["file", "python_exec", "shell"]
    write = "open('a.txt', 'w').write('seven'); print(3 * 4)"
    _, first, second = heard(
        builder,
        calling(("python_exec", {"code": write})),
        calling(("shell", {"command": "cat a.txt; exit 3"}), turn=1),
    )
    assert results(first) == ["12"]
    assert results(second) == ["seven\n[exit code 3]"]
    _, fresh = heard(builder, calling(("file", {"action": "read", "path": "a.txt"})))
    assert results(fresh) == ["error: no such file"]


def test_a_row_that_a_tool_cannot_use_is_named_by_its_position(make):
    rows = RowsSource([ROW, {"prompt": "who?", "answer": "cats"}], "rows")
    renderer = SimpleNamespace(render_prompt=lambda messages, tools: (1, 2))

    with pytest.raises(DataError, match=r"row 1 of 'train': the row has no field 'documents'"):
        list(measure_prompts("train", rows, make("search"), renderer))
