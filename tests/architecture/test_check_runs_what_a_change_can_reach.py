"""`make check` runs the tests that the import graph says a change can reach."""

import re
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1]))

from reached import Change, reached_processes, reached_units, read_tests

TESTS = read_tests()


def change(*paths: str, modules: tuple[str, ...] = (), downstream: tuple[str, ...] = ()) -> Change:
    return Change(
        paths=frozenset(paths),
        modules=frozenset(modules),
        downstream=frozenset((*modules, *downstream)),
    )


def test_a_test_that_imports_what_changed_is_run_however_far_away_the_change_is():
    near = reached_units(TESTS, change(modules=("rollout.supervisor.fork_server",)))
    far = reached_units(
        TESTS, change(modules=("x",), downstream=("rollout.supervisor.fork_server",))
    )

    assert near == far
    assert (
        "tests/rollout/supervisor/test_a_forked_process_is_what_a_started_one_would_be.py" in near
    )


def test_a_changed_kit_runs_every_test_that_uses_it_by_way_of_another_kit_too():
    files = reached_units(TESTS, change("tests/rollout/ledger/ledger_kit.py"))

    users = {test.path for test in TESTS if "tests/rollout/ledger/ledger_kit.py" in test.kits}
    assert users <= set(files)
    assert len(users) > 10


def test_a_changed_conftest_runs_every_test_below_it():
    files = reached_units(TESTS, change("tests/security/conftest.py"))

    assert set(files) == {test.path for test in TESTS if test.path.startswith("tests/security/")}


@pytest.mark.parametrize(
    ("path", "folder"),
    [
        ("docs/how-to/use-vllm.md", "tests/docs/"),
        ("README.md", "tests/docs/"),
        ("charts/rollout/values.yaml", "tests/rollout_operator/charts/"),
    ],
)
def test_pages_and_charts_run_the_tests_that_read_them(path, folder):
    files = reached_units(TESTS, change(path))

    assert files
    assert all(file.startswith(folder) for file in files)


def test_processes_are_started_only_by_tests_that_stand_near_to_the_change():
    files = reached_processes(
        TESTS,
        change(modules=("rollout.ledger.contract",), downstream=("rollout.supervisor.supervisor",)),
    )

    near = [test for test in TESTS if "rollout.ledger.contract" in test.own_names]
    assert files
    assert all(
        file.startswith("tests/rollout/ledger/") or file in {t.path for t in near} for file in files
    )


def test_the_tier_of_processes_has_every_file_that_may_start_one_also_by_a_fixture_of_its_folder():
    every = {test.path for test in TESTS if test.may_start_processes}

    assert {test.path for test in TESTS if test.starts_processes} < every
    assert "tests/rollout/objects/test_every_store_keeps_one_contract.py" in every
    assert len(every) < len(TESTS) / 2


def test_marks_of_processes_are_written_so_that_they_are_found():
    other = re.compile(r"(?<!pytest\.)\bmark\.(process|vllm)\b")

    assert [
        one for one in Path(__file__).parents[1].rglob("*.py") if other.search(one.read_text())
    ] == []


def test_a_change_of_nothing_that_is_tested_runs_nothing():
    assert reached_units(TESTS, change("LICENSE")) == []
    assert reached_processes(TESTS, change("LICENSE")) == []
