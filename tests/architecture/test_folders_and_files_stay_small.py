"""A folder is one idea and a file is one, too: at most fourteen modules of its own, at most four hundred lines; a function fits a screen."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MODULES_MAX, LINES_MAX = 14, 400
FUNCTION_MAX, FUNCTION_MEDIAN, FUNCTION_NINTH = 60, 10, 25
"""Lines of a function; of the ninth of ten."""


@pytest.mark.parametrize(
    "place", ["workers/src", "operator/src", "operator/release", "crds/src", "e2e"]
)
def test_no_folder_has_more_than_fourteen_modules_of_its_own(place):
    modules = [
        file
        for file in (ROOT / place).rglob("*.py")
        if file.name != "__init__.py" and not file.name.startswith("test_")
    ]
    assert modules, "nothing was looked at"
    count = Counter(str(file.parent.relative_to(ROOT)) for file in modules)
    assert {folder: num for folder, num in count.items() if num > MODULES_MAX} == {}


@pytest.mark.parametrize(
    "place", ["workers/src", "operator/src", "operator/release", "crds/src", "e2e"]
)
def test_no_file_is_longer_than_four_hundred_lines(place):
    lengths = {
        str(file.relative_to(ROOT)): len(file.read_text().splitlines())
        for file in (ROOT / place).rglob("*.py")
    }
    assert {file: num for file, num in lengths.items() if num > LINES_MAX} == {}


@pytest.mark.parametrize(
    "place", ["workers/src", "operator/src", "operator/release", "crds/src", "e2e"]
)
def test_functions_fit_a_screen_and_most_are_a_few_lines(place):
    lengths = sorted(
        (node.end_lineno - node.lineno + 1, f"{file.relative_to(ROOT)}:{node.name}")
        for file in (ROOT / place).rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )
    median, ninth = lengths[len(lengths) // 2], lengths[len(lengths) * 9 // 10]
    assert (median[0] <= FUNCTION_MEDIAN, ninth[0] <= FUNCTION_NINTH) == (True, True), (
        median,
        ninth,
    )
    assert [one for one in lengths if one[0] > FUNCTION_MAX] == []
