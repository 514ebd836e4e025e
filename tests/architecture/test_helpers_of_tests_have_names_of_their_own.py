"""Helper modules of tests are imported by their bare names: two of one name would hide each other in one session."""

from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_no_two_helper_modules_share_a_name():
    helpers = (
        path
        for folder in ("tests", "e2e")
        for path in (ROOT / folder).rglob("*.py")
        if not path.name.startswith(("test_", "conftest.", "__"))
    )
    names = Counter(path.stem for path in helpers)
    assert [name for name, times in names.items() if times > 1] == []
