"""A function's signature is what the policy sees of it; one that says too little is refused by name."""

from __future__ import annotations

from typing import Annotated, Literal

import pytest
from pydantic import Field
from tool_calls import answer_of, box_of, tool_call

from rollout.errors import SpecError
from rollout.tools.functions import FunctionTool


def weather(
    city: Annotated[str, Field(description="Where.", max_length=20)],
    unit: Literal["C", "F"] = "C",
    days: int | None = None,
) -> dict[str, object]:
    """The weather of a city."""
    return {"city": city, "unit": unit, "days": days}


def test_types_defaults_and_descriptions_are_in_the_schema():
    assert FunctionTool(weather).spec.parameters == {
        "type": "object",
        "additionalProperties": False,
        "required": ["city"],
        "properties": {
            "city": {"type": "string", "maxLength": 20, "description": "Where."},
            "unit": {"type": "string", "enum": ["C", "F"], "default": "C"},
            "days": {"anyOf": [{"type": "integer"}, {"type": "null"}], "default": None},
        },
    }


async def test_what_it_returns_is_written_as_json():
    said = await answer_of(box_of(weather), tool_call("weather", city="Zürich"))
    assert said == ['{"city": "Zürich", "unit": "C", "days": null}']


@pytest.mark.parametrize(
    "arguments", [{"city": "x" * 21}, {"city": "a", "unit": "K"}, {"city": None}]
)
async def test_arguments_of_other_types_never_reach_it(arguments):
    (said,) = await answer_of(box_of(weather), tool_call("weather", **arguments))
    assert said.startswith("error: wrong arguments: ")


def test_the_digest_changes_with_the_description_alone():
    def other(city: str) -> str:
        """The weather."""
        return city

    def same(city: str) -> str:
        """The weather!"""
        return city

    assert FunctionTool(other, name="a").spec.digest != FunctionTool(same, name="a").spec.digest
    assert FunctionTool(other, name="a").spec.digest == FunctionTool(other, name="a").spec.digest


def test_what_a_method_says_is_read_once_for_all_episodes_and_is_not_that_of_another():
    class Weather:
        def at(self, city: str) -> str:
            """The weather."""
            return city

        def on(self, /, day: int) -> str:
            """The day's."""
            return str(day)

    one, other = (FunctionTool(Weather().at).spec for _ in range(2))
    assert one.parameters is other.parameters
    assert set(one.parameters["properties"]) == {"city"}
    assert set(FunctionTool(Weather().on).spec.parameters["properties"]) == {"day"}
    with pytest.raises(SpecError, match="parameter 'self' has no type"):
        FunctionTool(Weather.at)


def untyped(city) -> str:
    return city


def rest(*cities: str) -> str:
    return cities[0]


def named(**cities: str) -> str:
    return str(cities)


def strange(one: object.__new__) -> str:  # pyrefly: ignore
    return str(one)


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (untyped, "parameter 'city' has no type; write one, such as city: str"),
        (rest, "cannot be given by name"),
        (named, "cannot be given by name"),
        (strange, "cannot be (written|read)"),
    ],
)
def test_a_signature_that_says_too_little_is_refused(function, said):
    with pytest.raises(SpecError, match=said):
        FunctionTool(function)


async def test_an_answer_that_json_cannot_say_is_the_tools_fault():
    def strange_answer() -> object:
        return object()

    with pytest.raises(SpecError, match="tool 'strange_answer': a tool returned object"):
        await box_of(strange_answer).answer([tool_call("strange_answer")])
