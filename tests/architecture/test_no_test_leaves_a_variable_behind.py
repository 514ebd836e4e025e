"""Variables are set for a while: one that stays has every later run of the session started cold (``tests/warm.py``)."""

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]
OWN_PROCESS = {"tests/rollout/learner/rank_kit.py"}
"""What a process sets that a test has started."""
CHANGES = {"update", "setdefault", "pop", "clear", "popitem"}


def changes_environment(node: ast.AST) -> bool:
    match node:
        case ast.Assign(targets=targets) | ast.Delete(targets=targets):
            return any(is_variable(one) for one in targets)
        case ast.AugAssign(target=target):
            return is_environment(target) or is_variable(target)
        case ast.Call(func=ast.Attribute(value=value, attr=attr)):
            return (attr in CHANGES and is_environment(value)) or attr in {"putenv", "unsetenv"}
    return False


def is_variable(node: ast.AST) -> bool:
    return isinstance(node, ast.Subscript) and is_environment(node.value)


def is_environment(node: ast.AST) -> bool:
    return ast.unparse(node) in {"os.environ", "environ"}


def find_changes(source: str) -> list[int]:
    return [node.lineno for node in ast.walk(ast.parse(source)) if changes_environment(node)]


def test_tests_set_variables_by_monkeypatch_which_takes_them_back():
    files = [one for folder in ("tests", "e2e") for one in (ROOT / folder).rglob("*.py")]
    found = {
        f"{name}:{line}"
        for one in files
        if (name := str(one.relative_to(ROOT))) not in OWN_PROCESS
        if not name.startswith(("tests/bench/", "tests/gpu/"))
        if "environ" in (source := one.read_text(encoding="utf-8"))
        for line in find_changes(source)
    }
    assert not found, "monkeypatch.setenv, or pytest.MonkeyPatch.context() in a fixture of a module"


def test_each_way_to_leave_one_is_seen():
    ways = (
        "os.environ['A'] = '1'",
        "os.environ |= {'A': '1'}",
        "del os.environ['A']",
        "os.environ.update(A='1')",
        "os.putenv('A', '1')",
    )
    assert [find_changes(one) for one in ways] == [[1]] * len(ways)
    assert not find_changes("env = {**os.environ, 'A': '1'}; os.environ.get('A')")
