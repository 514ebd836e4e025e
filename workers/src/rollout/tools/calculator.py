"""A calculator: exact rational arithmetic over ``+ - * / // %`` and brackets. No names, no calls, no powers."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from fractions import Fraction

from rollout.tools.contract import ToolMistake

CHARACTERS_MAX = 200
DIGITS_MAX = 60
DEPTH_MAX = 40

_BINARY: Mapping[type[ast.operator], Callable[[Fraction, Fraction], Fraction | int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}


def calculator(expression: str) -> str:
    """Work out an expression of numbers, + - * / // % and brackets, exactly."""
    if len(expression) > CHARACTERS_MAX:
        raise ToolMistake(f"expected at most {CHARACTERS_MAX} characters, got {len(expression)}")
    try:
        tree = ast.parse(expression.strip(), mode="eval")
        value = _value(tree.body, 0)
    except ZeroDivisionError as error:
        raise ToolMistake("division by zero") from error
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        raise ToolMistake(f"not an expression of numbers: {expression!r}") from error
    return _written(value)


def _value(node: ast.expr, depth: int) -> Fraction:
    if depth > DEPTH_MAX:
        raise ToolMistake(f"brackets are nested deeper than {DEPTH_MAX}")
    if isinstance(node, ast.Constant) and type(node.value) in {int, float}:
        return _bounded(Fraction(str(node.value)))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
        value = _value(node.operand, depth + 1)
        return -value if isinstance(node.op, ast.USub) else value
    if isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
        left, right = _value(node.left, depth + 1), _value(node.right, depth + 1)
        return _bounded(Fraction(_BINARY[type(node.op)](left, right)))
    raise ToolMistake("expected numbers, + - * / // % and brackets only")


def _bounded(value: Fraction) -> Fraction:
    if max(abs(value.numerator), value.denominator) >= 10**DIGITS_MAX:
        raise ToolMistake(f"a number has more than {DIGITS_MAX} digits")
    return value


def _written(value: Fraction) -> str:
    if value.denominator == 1:
        return str(value.numerator)
    return f"{float(value):.10g}"
