"""The seconds of each test folder are counted from JUnit files, and held against its budget."""

import importlib.util
import sys
from pathlib import Path

import pytest

SPEC = importlib.util.spec_from_file_location("timing", Path(__file__).parents[1] / "timing.py")
timing = importlib.util.module_from_spec(SPEC)
sys.modules["timing"] = timing
SPEC.loader.exec_module(timing)

REPORT = """<testsuites><testsuite>
<testcase classname="tests.ledger.test_a" name="one" time="30.5"/>
<testcase classname="tests.ledger.test_a" name="two" time="0.5"/>
<testcase classname="tests.ledger.test_b.TestIt" name="three" time="4"/>
<testcase classname="tests.ledger.test_b" name="four" time="900">
  <properties><property name="slow" value="true"/></properties></testcase>
<testcase classname="e2e.test_c" name="five" time="2"/>
</testsuite></testsuites>"""


@pytest.fixture
def report(tmp_path):
    path = tmp_path / "unit.xml"
    path.write_text(REPORT)
    return path


def test_seconds_are_summed_by_file_and_by_folder(report):
    cases = timing.read([report])
    assert timing.find_slowest(cases, 2) == [
        ("tests/ledger/test_b.py", 904.0),
        ("tests/ledger/test_a.py", 31.0),
    ]
    assert timing.sum_by_folder(c for c in cases if not c.slow) == {
        "e2e": 2.0,
        "tests/ledger": 35.0,
    }


def test_a_folder_over_its_budget_is_named():
    (line,) = timing.find_overdrawn({"tests/ledger": 111.0}, {"tests/ledger": 100.0})
    assert line.startswith("tests/ledger: 111 s of 100 s")
    assert timing.find_overdrawn({"tests/ledger": 109.0}, {"tests/ledger": 100.0}) == []


def test_a_folder_of_seconds_may_take_some_more():
    assert timing.find_overdrawn({"e2e/faults": 9.0}, {"e2e/faults": 2.0}) == []


def test_a_folder_without_a_budget_is_named():
    (line,) = timing.find_overdrawn({"tests/new": 5.0}, {})
    assert "no budget" in line


def test_budgets_are_held_only_when_that_is_asked_for(report, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(timing, "load_budgets", lambda: {"tests/ledger": 10.0, "e2e": 2.0})
    assert timing.main([str(report)]) == 0
    assert timing.main([str(report), "--enforce"]) == 1
    assert "tests/ledger: 35 s of 10 s" in capsys.readouterr().err


def test_nothing_is_held_while_no_budget_is_written(report, monkeypatch):
    monkeypatch.setattr(timing, "load_budgets", dict)
    assert timing.main([str(report), "--enforce"]) == 0


def test_budgets_that_are_written_keep_the_words_above_and_the_other_folders(tmp_path):
    path = tmp_path / "budgets.toml"
    path.write_text('# why\n\n[seconds]\n"e2e" = 7\n"tests/ledger" = 9\n')
    timing.write_budgets({"tests/ledger": 35.4}, path)
    assert path.read_text() == '# why\n\n[seconds]\n"e2e" = 7\n"tests/ledger" = 35\n'
    assert timing.load_budgets(path) == {"e2e": 7.0, "tests/ledger": 35.0}
