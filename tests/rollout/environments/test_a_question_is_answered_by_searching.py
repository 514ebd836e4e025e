"""``musique-search``: what the policy is shown, what its searches and answers are worth, and how an episode ends."""

import asyncio

import pytest

from rollout.environments.build import build_environment
from rollout.environments.sample_data.two_hops import PEOPLE, questions, searched
from rollout.environments.with_tools import tools_of
from rollout.errors import DataError, SpecError
from rollout.rendering.tool_calls import call_id
from rollout.turns import Action, Ending, State
from rollout.types import Message, ToolCall
from rollout_api.v1alpha1.environment import Environment

ROW = {
    "messages": [{"role": "user", "content": "Where was the maker of the clock born?"}],
    "prompt": "Where was the maker of the clock born?",
    "answer": "the port of Delft",
    "answer_aliases": ["Delft"],
    "paragraphs": [
        {"idx": 0, "title": "Clock", "paragraph_text": "The clock was made by Anna Berg."},
        {"idx": 1, "title": "Anna Berg", "paragraph_text": "Anna Berg was born in Delft."},
    ],
}


def build(**parameters):
    listed = [{"name": name, "value": str(value)} for name, value in parameters.items()]
    named = {"builtin": {"name": "musique-search", "parameters": listed}}
    return build_environment(Environment.model_validate(named))


def said(content, turn=0):
    message = Message(role="assistant", content=content)
    return Action(message=message, text=message.text, turn=turn)


def search(query, turn=0):
    arguments = {"query": query}
    call = ToolCall(call_id=call_id(turn, 0), name="search", arguments_text="", arguments=arguments)
    return said((call,), turn)


def play(actions, row=ROW, **parameters):
    async def episode():
        made = build(**parameters).build(row)
        start = await made.start()
        heard = [await made.step(action) for action in actions]
        await made.close()
        return [start, *heard]

    return asyncio.run(episode())


def test_the_question_is_shown_and_its_documents_are_not():
    (state,) = play([])

    text = state.messages[-1].text
    assert text.endswith("Question: Where was the maker of the clock born?")
    assert "Anna Berg" not in text
    assert [tool.name for tool in state.tools] == ["read", "search"]
    assert [tool.name for tool in tools_of(build())] == ["read", "search"]


def test_without_an_instruction_the_row_is_asked_as_it_is():
    (state,) = play([], instruction="")

    assert [one.text for one in state.messages] == [ROW["prompt"]]


@pytest.mark.parametrize(
    ("reply", "f1", "em"),
    [("Answer: Delft", 1.0, 1.0), ("I think.\nAnswer: Delft harbour", 2 / 3, 0.0), ("Rome", 0, 0)],
)
def test_an_answer_is_worth_its_best_token_f1(reply, f1, em):
    *_, ending = play([said(reply)])

    assert isinstance(ending, Ending)
    assert (ending.kind, ending.turn_reward) == ("answered", pytest.approx(f1))
    assert (ending.signals["f1"], ending.signals["em"]) == (pytest.approx(f1), em)


def test_a_search_shows_documents_hop_by_hop():
    _, first, second, ending = play(
        [search("clock"), search("Anna Berg born", 1), said("Answer: Delft")]
    )

    assert "made by Anna Berg" in first.messages[0].text
    assert "born in Delft" in second.messages[0].text
    assert ending.signals["tool_calls"] == 2


def test_what_is_asked_again_costs_and_ends_as_a_loop():
    *states, ending = play([search("clock", turn) for turn in range(4)], repeatPenalty="0.15")

    assert [state.turn_reward for state in states[1:]] == [0, -0.15, -0.15]
    assert (ending.kind, ending.owner, ending.turn_reward) == ("tool-loop", "policy", 0)
    assert ending.signals["f1"] == 0


def test_a_policy_that_only_searches_runs_out_of_turns():
    *_, state, ending = play([search(f"clock {n}", n) for n in range(3)], maxTurns="2")

    assert isinstance(state, State)
    assert (ending.kind, ending.signals["em"]) == ("turn-limit", 0)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"paragraphs": "text"}, "expected a list of documents"),
        ({"paragraphs": [{"title": 1}]}, "document 1: expected text, or title and text"),
        ({"answer": " "}, "the row has no answer"),
    ],
)
def test_a_row_that_cannot_be_searched_is_named(changes, says):
    with pytest.raises(DataError, match=says):
        build().build({**ROW, **changes})


def test_a_row_without_paragraphs_is_named_with_what_it_has():
    row = {name: value for name, value in ROW.items() if name != "paragraphs"}

    with pytest.raises(DataError, match="the row has no field 'paragraphs' to search in"):
        build().build(row)


@pytest.mark.parametrize("bad", [{"maxTurns": 0}, {"repeatPenalty": 2}, {"hops": 3}])
def test_a_bad_parameter_is_named(bad):
    with pytest.raises(SpecError, match=f"environment musique-search: .*{next(iter(bad))}"):
        build(**bad)


def test_the_sample_questions_take_two_documents_and_the_pupils_are_others():
    rows = list(questions(200))

    for row in rows:
        supporting = [p["paragraph_text"] for p in row["paragraphs"] if p["is_supporting"]]
        assert len(row["paragraphs"]) == PEOPLE
        assert len(supporting) == 2
        assert sum(text.endswith(f" home {row['answer']}") for text in supporting) == 1
    asked = {(row["question"], row["answer"]) for row in rows}
    worked = {(messages[0].text, messages[-1].text) for messages, _ in searched(2000)}
    assert len(asked & worked) < len(asked) / 50
