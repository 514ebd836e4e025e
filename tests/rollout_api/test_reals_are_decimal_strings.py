"""Real numbers: strings outside, floats inside, nothing lost between, and no float in a definition."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field, ValidationError

from rollout_api.base import ApiModel, Real, filled


class Knob(ApiModel):
    """A model with reals."""

    plain: Real
    share: Real = filled(0.5, ge=0, lt=1)
    bound: Real | None = Field(default=None, gt=1, le=10)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("0.2", 0.2),
        ("1e-6", 1e-6),
        ("2.0e-5", 2e-5),
        ("1E3", 1000.0),
        (".5", 0.5),
        ("1.", 1.0),
        ("-3", -3.0),
        ("+3", 3.0),
    ],
)
def test_a_decimal_string_is_a_number(text, number):
    assert Knob(plain=text).plain == number


@pytest.mark.parametrize("number", [1, 0.25, -2])
def test_a_local_file_may_write_plain_numbers(number):
    assert Knob(plain=number).plain == float(number)


@pytest.mark.parametrize(
    "wrong",
    ["", "abc", "1,5", "0x10", "1_000", "nan", "inf", " 1", "1 ", "1e", "--1", "1e9999", "9" * 33],
)
def test_other_text_is_refused(wrong):
    with pytest.raises(ValidationError):
        Knob(plain=wrong)


@pytest.mark.parametrize("wrong", [True, None, [], {}, float("nan"), float("inf"), "1e400"])
def test_other_values_are_refused(wrong):
    with pytest.raises(ValidationError):
        Knob(plain=wrong)


@pytest.mark.parametrize(
    "wrong", [{"share": "1.0"}, {"share": "-0.1"}, {"bound": "1"}, {"bound": "10.5"}]
)
def test_a_number_out_of_range_is_refused(wrong):
    with pytest.raises(ValidationError):
        Knob(plain="0", **wrong)


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_every_float_survives_the_round_trip(number):
    text = Knob(plain=number).model_dump_json()

    assert isinstance(json.loads(text)["plain"], str)
    assert Knob.model_validate_json(text).plain == number


def test_an_unset_real_stays_unset():
    assert json.loads(Knob(plain=1).model_dump_json())["bound"] is None
