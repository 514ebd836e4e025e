"""The page that compares our chart with others: its values are there, and its counts are those of its table."""

import re

import pytest
import yaml
from docs_kit import ROOT

PAGE = ROOT / "docs" / "reference" / "charts.md"
VALUES = yaml.safe_load((ROOT / "charts" / "rollout" / "values.yaml").read_text())
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in PAGE.read_text().splitlines()
    if line.startswith("| ") and not line.startswith(("| point", "| ---"))
]
SHARE_MIN = 0.9


def named(row):
    return re.findall(r"`([^`]+)`", row[1])


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_what_a_row_names_is_there(row):
    point, _, _, _, verdict = row
    assert verdict in {"better", "equal", "less"}, point
    for name in named(row):
        if name.startswith("manifests/"):
            assert (ROOT / name).is_dir()
        elif re.fullmatch(r"[a-z][A-Za-z]*(\.[A-Za-z]+)*", name):
            found = VALUES
            for part in name.split("."):
                assert part in found, name
                found = found[part]


def test_the_counts_are_those_of_the_table():
    good = sum(row[4] != "less" for row in ROWS)
    assert f"**{good} of {len(ROWS)} points are equal or better.**" in PAGE.read_text()
    assert good / len(ROWS) >= SHARE_MIN
    assert len({row[0] for row in ROWS}) == len(ROWS)
