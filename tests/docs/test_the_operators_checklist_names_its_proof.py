"""The page of what the operator does counts right, and each test that it calls a proof is there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "reference" / "operator-checklist.md").read_text()
ROWS = re.findall(r"^\| (\d+) \| (.+?) \| (pass|part|no) \| (.+) \|$", PAGE, re.MULTILINE)
NUM_LINES = 55


def test_every_line_stands_there_once_and_the_count_is_right():
    num_passed = sum(verdict == "pass" for _, _, verdict, _ in ROWS)

    assert [int(number) for number, *_ in ROWS] == list(range(1, NUM_LINES + 1))
    assert f"{num_passed} of {NUM_LINES} pass." in PAGE


def test_a_line_that_passes_names_a_test_that_exists():
    for number, _, verdict, shown in ROWS:
        files = re.findall(r"`((?:tests|e2e)/\S+\.py)`", shown)
        assert files or verdict != "pass", f"line {number}"
        for file in files:
            assert (ROOT / file).is_file(), f"line {number}: {file}"
