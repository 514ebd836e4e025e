"""``make bench`` and ``make bench TARGET=name``: one line a figure, and the same as JSON.

A target is a file ``bench_<name>.py`` here with ``measure() -> Iterator[Figure]``; a target of many
minutes takes the name of a section (``run.py training sft``, written to ``training-sft.json``). A bar
that is missed is printed as SHORT; the command still exits 0, because a measurement is not a test.
"""

from __future__ import annotations

import importlib
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import figures

HERE = Path(__file__).parent


def targets() -> list[str]:
    """The names of all targets."""
    stems = (path.stem.removeprefix("bench_") for path in HERE.glob("bench_*.py"))
    return sorted(stem.replace("_", "-") for stem in stems)


def main(wanted: str, *section: str) -> int:
    """Measure one target, one section of it, or all targets; told to end, it leaves no process behind."""
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    names = targets() if wanted == "all" else [wanted]
    if unknown := [name for name in names if name not in targets()]:
        sys.stderr.write(
            f"no bench target {unknown[0]!r}; there are: {', '.join(targets())}, all\n"
        )
        return 2
    for name in names:
        print(f"# {name}", flush=True)
        found = []
        target = importlib.import_module("bench_" + name.replace("-", "_"))
        for figure in target.measure(*section):
            print(figure.line(), flush=True)
            found.append(figure)
            figures.write("-".join((name, *section)), found)
    return 0


if __name__ == "__main__":
    sys.exit(main(*(sys.argv[1:] or ["all"])))
