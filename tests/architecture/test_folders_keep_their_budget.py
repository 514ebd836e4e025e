"""The seconds of each test folder are counted from JUnit files, and held against its budget."""

import importlib.util
import os
import subprocess
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
    monkeypatch.setattr(
        timing, "load_budgets", lambda: {"unit": {"tests/ledger": 10.0, "e2e": 2.0}}
    )
    assert timing.main([str(report)]) == 0
    assert timing.main([str(report), "--enforce"]) == 1
    assert "tests/ledger: 35 s of 10 s" in capsys.readouterr().err


@pytest.mark.parametrize("budgets", [{}, {"processes": {"tests/ledger": 10.0}}])
def test_nothing_is_held_while_a_tier_has_no_budgets_and_that_is_said(
    budgets, report, monkeypatch, capsys
):
    monkeypatch.setattr(timing, "load_budgets", lambda: budgets)
    assert timing.main([str(report), "--enforce"]) == 0
    assert "no folder has a budget in tier unit of budgets.toml: `python" in capsys.readouterr().err
    assert timing.main([str(report)]) == 0
    assert capsys.readouterr().err == ""


BUDGETS = {"tests/a": 100.0, "tests/b": 40.0, "tests/c": 60.0, "tests/d": 30.0}


def test_a_machine_on_which_every_folder_takes_twice_as_long_overdraws_none():
    assert timing.find_overdrawn({name: 2 * one for name, one in BUDGETS.items()}, BUDGETS) == []


def test_on_a_slow_machine_the_folder_that_takes_longer_than_the_others_is_named():
    slow = {name: 2 * one for name, one in BUDGETS.items()} | {"tests/c": 180.0}
    (line,) = timing.find_overdrawn(slow, BUDGETS)
    assert line.startswith("tests/c: 180 s of 120 s")


def test_a_quick_machine_excuses_nobody():
    quick = {name: one / 2 for name, one in BUDGETS.items()} | {"tests/c": 80.0}
    (line,) = timing.find_overdrawn(quick, BUDGETS)
    assert line.startswith("tests/c: 80 s of 60 s")


def test_two_folders_say_nothing_about_the_machine():
    (line,) = timing.find_overdrawn({"tests/a": 300.0, "tests/b": 40.0}, BUDGETS)
    assert line.startswith("tests/a: 300 s of 100 s")


def test_what_a_session_shares_is_no_folders(tmp_path):
    path = tmp_path / "e2e.xml"
    path.write_text(
        """<testsuites><testsuite><testcase classname="e2e.runs.test_a" name="one" time="70.5">
        <properties><property name="shared" value="60.0"/><property name="shared" value="6.0"/></properties>
        </testcase></testsuite></testsuites>"""
    )
    (case,) = timing.read([path])
    assert (case.seconds, case.shared_seconds) == (4.5, 66.0)
    assert "    66.0  what the session shares" in timing.render([case], {})


SHARING = """
import time, pytest
@pytest.fixture(scope="session")
def inner():
    time.sleep(0.02)
@pytest.fixture(scope="session")
def outer(request):
    request.getfixturevalue("inner")
    time.sleep(0.02)
def test_first(outer):
    pass
def test_second(outer):
    pass
"""


def test_the_seconds_of_what_is_shared_are_told_once_of_the_test_that_set_it_up(tmp_path):
    (tmp_path / "test_sharing.py").write_text(SHARING)
    root = Path(__file__).parents[2]
    (tmp_path / "conftest.py").write_text(
        (root / "conftest.py").read_text().replace("__file__", repr(str(root / "conftest.py")))
    )
    report = tmp_path / "junit.xml"

    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        f"--junitxml={report}",
        str(tmp_path),
    ]
    subprocess.run(
        command, check=True, cwd=tmp_path, env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    )

    first, second = timing.read([report])
    assert first.shared_seconds >= 0.04
    assert second.shared_seconds == 0.0
    assert report.read_text().count('name="shared"') == 1


def test_budgets_that_are_written_keep_the_words_above_the_other_folders_and_the_other_tiers(
    tmp_path,
):
    path = tmp_path / "budgets.toml"
    path.write_text(
        '# why\n\n[processes]\n"tests/ledger" = 60\n\n[unit]\n"e2e" = 7\n"tests/ledger" = 9\n'
    )
    timing.write_budgets({"unit": {"tests/ledger": 35.4}}, path)
    assert path.read_text() == (
        '# why\n\n[processes]\n"tests/ledger" = 60\n\n[unit]\n"e2e" = 7\n"tests/ledger" = 35\n'
    )
    assert timing.load_budgets(path) == {
        "processes": {"tests/ledger": 60},
        "unit": {"e2e": 7, "tests/ledger": 35},
    }


def test_amended_budgets_hold_for_the_run_that_amended_them_and_leave_the_others():
    """On a machine of twice the seconds: a folder that took more and one without a budget get what they take on a quiet one."""
    budgets = {"tests/a": 100.0, "tests/b": 50.0, "tests/c": 30.0, "tests/slower": 20.0}
    sums = {"tests/a": 200.0, "tests/b": 104.0, "tests/c": 60.0, "tests/slower": 90.0, "e2e": 8.0}

    amended = timing.find_amended(sums, budgets)

    pace = timing.find_pace(sums, budgets)
    assert amended == {"tests/slower": 90.0 / pace, "e2e": 8.0 / pace}
    assert timing.find_overdrawn(sums, budgets | amended) == []
    assert timing.find_overdrawn(sums, budgets) != []


def test_a_folders_tiers_have_budgets_of_their_own(tmp_path, monkeypatch, capsys):
    """Seconds of unit tests are not excused by what the folder may take for processes."""
    monkeypatch.setattr(
        timing,
        "load_budgets",
        lambda: {
            "processes": {"tests/ledger": 60.0, "e2e": 20.0},
            "unit": {"tests/ledger": 20.0, "e2e": 2.0},
        },
    )
    reports = [tmp_path / "unit.xml", tmp_path / "processes.xml"]
    for path in reports:
        path.write_text(REPORT)
    assert timing.main([str(reports[1]), "--enforce"]) == 0
    assert timing.main([str(one) for one in reports] + ["--enforce"]) == 1
    assert capsys.readouterr().err.splitlines() == [
        "tests/ledger: 35 s of 20 s: make tests quicker, or say in budgets.toml why it takes more"
    ]


def test_the_budgets_that_there_are_name_folders_that_there_are():
    root = Path(__file__).parents[2]
    found = timing.load_budgets()
    assert found.keys() <= {"unit", "processes", "clusters"}
    assert [one for folders in found.values() for one in folders if not (root / one).is_dir()] == []
    assert all(seconds >= 1 for folders in found.values() for seconds in folders.values())
