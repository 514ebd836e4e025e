"""The calculator: numbers, four operations and brackets, exactly; anything else is a mistake that is told."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollout.tools.calculator import calculator
from rollout.tools.contract import ToolMistake

integers = st.integers(min_value=-(10**9), max_value=10**9)


@given(integers, integers, integers)
def test_integers_are_exact(a, b, c):
    assert calculator(f"({a}) + ({b}) * ({c})") == str(a + b * c)


@given(integers, integers.filter(bool))
def test_quotients_have_ten_digits(a, b):
    said = Fraction(calculator(f"({a}) / ({b})"))
    assert abs(said - Fraction(a, b)) <= abs(Fraction(a, b)) * Fraction(1, 10**9)


@given(st.text(max_size=60))
def test_any_text_is_a_number_or_a_mistake(text):
    try:
        float(calculator(text))
    except ToolMistake as mistake:
        assert str(mistake)


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("0.1 + 0.2", "0.3"),
        ("7 // 2", "3"),
        ("-7 % 3", "2"),
        ("1/3", "0.3333333333"),
        (" 2*-3 ", "-6"),
    ],
)
def test_table(expression, value):
    assert calculator(expression) == value


@pytest.mark.parametrize(
    "expression",
    [
        *("", "2**3", "__import__('os')", "a+1", "1/0", "1 if 1 else 2", "9" * 100, "-" * 90 + "1"),
        *("*".join(["99999999999999999999"] * 8), "True + 1", "1e400", "'a'*9", "1" + "+1" * 200),
        *("nan", "1j", "f()", "[1]", "1, 2", "1;2", "(" * 199),
    ],
)
def test_anything_else_is_a_mistake(expression):
    with pytest.raises(ToolMistake):
        calculator(expression)
