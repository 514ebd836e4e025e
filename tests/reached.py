"""Which tests a change can reach, by the import graph: what `make check` runs.

`reached.py TIER [--since REV]` prints the test files of a tier, one a line; a change is what has come since REV
(default: where this branch left `main`), committed or not. `unit`: every test file that imports what changed, however
far away. `processes`: the files that import what changed themselves, or stand in the folder of its package: a process
imports nearly everything, so distance says nothing there. What only `make test` runs is said on standard error.
`reached.py processes --every`: all files that may have a test that starts processes; the others need not be imported.
"""

from __future__ import annotations

import argparse
import ast
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import grimp

ROOT = Path(__file__).parents[1]
DISTRIBUTIONS = ("rollout_api", "rollout_operator", "rollout", "rollout_vllm")
SOURCES = ("crds/src/", "operator/src/", "workers/src/")
TESTED_BY = {
    "README.md": "tests/docs/",
    "CONTRIBUTING.md": "tests/docs/",
    "docs/": "tests/docs/",
    "manifests/": "tests/docs/",
    "charts/": "tests/rollout_operator/charts/",
    "operator/release/": "tests/rollout_operator/release/",
    "crds/": "tests/rollout_api/",
}
"""What is no Python and has tests all the same."""
STARTS_PROCESSES = ("pytest.mark.process", "pytest.mark.vllm")


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What changed, as paths from the root and as modules; ``downstream`` imports one of these, however far away."""

    paths: frozenset[str]
    modules: frozenset[str]
    downstream: frozenset[str]


def read_change(since: str) -> Change:
    paths = frozenset(
        _git("diff", "--name-only", since) + _git("ls-files", "--others", "--exclude-standard")
    )
    graph = grimp.build_graph(*DISTRIBUTIONS)
    modules = frozenset(module for path in paths if (module := module_of(path)) in graph.modules)
    further = (graph.find_downstream_modules(module) for module in modules)
    return Change(paths=paths, modules=modules, downstream=modules.union(*further))


def module_of(path: str) -> str:
    """The module in a source file; empty for any other."""
    for source in SOURCES:
        if path.startswith(source) and path.endswith(".py"):
            return (
                path.removeprefix(source)
                .removesuffix(".py")
                .replace("/", ".")
                .removesuffix(".__init__")
            )
    return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadTest:
    """A test file, the test kits it imports, and the names that it and they import."""

    path: str
    kits: frozenset[str]
    own_names: frozenset[str]
    names: frozenset[str]
    starts_processes: bool
    may_start_processes: bool
    """By a mark of its own, of a kit's or of a `conftest.py`'s."""


def read_tests() -> list[ReadTest]:
    """All test files below tests/."""
    kits = {
        path.stem: path
        for path in (ROOT / "tests").rglob("*.py")
        if not path.name.startswith(("test_", "conftest."))
    }
    return [_read_test(path, kits) for path in sorted((ROOT / "tests").rglob("test_*.py"))]


def _read_test(path: Path, kits: Mapping[str, Path]) -> ReadTest:
    own, found, seen = imported(path), set[str](), {path}
    waiting = [
        path,
        *(one / "conftest.py" for one in path.parents if one.is_relative_to(ROOT / "tests")),
    ]
    while waiting:
        one = waiting.pop()
        if not one.exists():
            continue
        seen.add(one)
        found |= imported(one)
        waiting += [kits[name] for name in imported(one) & kits.keys() if kits[name] not in seen]
    marked = {one for one in seen if any(mark in one.read_text() for mark in STARTS_PROCESSES)}
    return ReadTest(
        path=_relative(path),
        kits=frozenset(_relative(one) for one in seen),
        own_names=own,
        names=frozenset(found),
        starts_processes=path in marked,
        may_start_processes=bool(marked),
    )


@cache
def imported(path: Path) -> frozenset[str]:
    """Every name that a file imports, with and without its last part: that may be a module or something in one."""
    names = set[str]()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {one.name for one in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{one.name}" for one in node.names)}
    return frozenset(names)


def reached_units(tests: Iterable[ReadTest], change: Change) -> list[str]:
    """Files of which a test that starts no process may end otherwise than before."""
    folders = tested_folders(change)
    return [
        test.path
        for test in tests
        if test.names & change.downstream
        or test.kits & change.paths
        or test.path.startswith(folders)
    ]


def reached_processes(tests: Iterable[ReadTest], change: Change) -> list[str]:
    """Files with tests that start processes, near to what changed."""
    folders = tuple(folder_of(module) for module in change.modules)
    return [
        test.path
        for test in tests
        if test.starts_processes
        and (
            test.own_names & change.modules
            or test.kits & change.paths
            or test.path.startswith(folders)
        )
    ]


def tested_folders(change: Change) -> tuple[str, ...]:
    return tuple(
        tests
        for prefix, tests in TESTED_BY.items()
        if any(_is_text(path, prefix) for path in change.paths)
    )


def folder_of(module: str) -> str:
    """Where the tests of a module's package stand: `rollout.ledger.sql.steps` has `tests/rollout/ledger/`."""
    return "/".join(("tests", *module.split(".")[:2], ""))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tier", choices=("unit", "processes"))
    parser.add_argument("--since", help="a revision; default: where this branch left main")
    parser.add_argument("--every", action="store_true", help="with `processes`: all that may be")
    options = parser.parse_args(arguments)
    if options.every:
        print("\n".join(test.path for test in read_tests() if test.may_start_processes))
        return 0
    change = read_change(options.since or _branched())
    tests = read_tests()
    chosen = (reached_units if options.tier == "unit" else reached_processes)(tests, change)
    print("\n".join(chosen))
    if options.tier == "processes":
        later = sum(test.starts_processes for test in tests) - len(chosen)
        sys.stderr.write(
            f"left to `make test`: {later} files that start processes, and the clusters (e2e/)\n"
        )
    return 0


def _branched() -> str:
    return _git("merge-base", "HEAD", "main")[0]


def _is_text(path: str, prefix: str) -> bool:
    return path.startswith(prefix) and not path.endswith(".py")


def _git(*words: str) -> list[str]:
    return subprocess.run(
        ("git", *words), cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.split()


def _relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


if __name__ == "__main__":
    sys.exit(main())
