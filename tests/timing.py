"""Where the seconds of a tier went, and whether its folders keep their budget. Reads pytest's JUnit files.

`timing.py build/junit/unit.xml`: the twenty slowest files and every folder's sum. `--enforce`: fails where the quick
tests of a folder took over 110 % of their budget (budgets.toml, seconds on two cores), or have none of all that there are. `--write`: the
budgets of the folders in these files as they were measured. Slow tests are shown and have no budget: how long they
take is theirs to say.
"""

from __future__ import annotations

import argparse
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree as ET

BUDGETS = Path(__file__).parent / "budgets.toml"
FILES_SHOWN = 20
OVER = 1.1
SPARE_SECONDS = 10.0
"""A folder of a few seconds is measured no better than this."""
SLOW = "slow"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One test that ran: its file, and the seconds of its set-up, call and tear-down."""

    file: str
    seconds: float
    slow: bool

    @property
    def folder(self) -> str:
        return self.file.rpartition("/")[0]


def read(reports: Iterable[Path]) -> list[Case]:
    return [
        build_case(one) for report in reports for one in ET.parse(report).getroot().iter("testcase")
    ]


def build_case(element: ET.Element) -> Case:
    """The class name is the file's path with dots, and a class's name behind it where there is one."""
    parts = element.get("classname", "").split(".")
    last = next((i for i, part in enumerate(parts) if part.startswith("test_")), len(parts) - 1)
    found = (one.get("name") for one in element.iter("property"))
    return Case(
        file="/".join(parts[: last + 1]) + ".py",
        seconds=float(element.get("time", "0")),
        slow=SLOW in found,
    )


def sum_by_folder(cases: Iterable[Case]) -> dict[str, float]:
    sums: dict[str, float] = defaultdict(float)
    for case in cases:
        sums[case.folder] += case.seconds
    return dict(sorted(sums.items()))


def find_slowest(cases: Iterable[Case], count: int = FILES_SHOWN) -> list[tuple[str, float]]:
    sums: dict[str, float] = defaultdict(float)
    for case in cases:
        sums[case.file] += case.seconds
    return sorted(sums.items(), key=lambda one: -one[1])[:count]


def find_overdrawn(sums: Mapping[str, float], budgets: Mapping[str, float]) -> list[str]:
    """What is wrong, one line a folder."""
    lines = []
    for folder, seconds in sums.items():
        if folder not in budgets:
            lines.append(f"{folder}: {seconds:.0f} s and no budget: write one into {BUDGETS.name}")
        elif seconds > max(budgets[folder] * OVER, budgets[folder] + SPARE_SECONDS):
            lines.append(
                f"{folder}: {seconds:.0f} s of {budgets[folder]:.0f} s: make tests quicker, or say in "
                f"{BUDGETS.name} why it takes more"
            )
    return lines


def render(cases: list[Case], budgets: Mapping[str, float]) -> str:
    quick, slow = (sum_by_folder(c for c in cases if c.slow == kind) for kind in (False, True))
    lines = [
        "slowest files (s)",
        *(f"{seconds:8.1f}  {file}" for file, seconds in find_slowest(cases)),
    ]
    lines += ["folders (s: quick, budget, slow)"]
    for folder in sorted(quick.keys() | slow.keys()):
        budget = f"{budgets[folder]:8.0f}" if folder in budgets else "       -"
        lines.append(f"{quick.get(folder, 0):8.1f}{budget}{slow.get(folder, 0):8.1f}  {folder}")
    return "\n".join(lines)


def load_budgets(path: Path = BUDGETS) -> dict[str, float]:
    return tomllib.loads(path.read_text())["seconds"] if path.exists() else {}


def write_budgets(sums: Mapping[str, float], path: Path = BUDGETS) -> None:
    """The measured folders' anew, the others' as they were; the text above the table stays."""
    head, _, _ = path.read_text().partition("[seconds]") if path.exists() else ("", "", "")
    merged = load_budgets(path) | {folder: float(round(one)) for folder, one in sums.items()}
    table = "\n".join(f'"{folder}" = {seconds:.0f}' for folder, seconds in sorted(merged.items()))
    path.write_text(f"{head}[seconds]\n{table}\n")


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="timing", description=__doc__)
    parser.add_argument("reports", nargs="+", type=Path)
    parser.add_argument("--enforce", action="store_true")
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args(words)
    cases = read(given.reports)
    sums = sum_by_folder(case for case in cases if not case.slow)
    if given.write:
        write_budgets(sums)
    print(render(cases, load_budgets()))
    budgets = load_budgets()
    wrong = find_overdrawn(sums, budgets) if given.enforce and budgets else []
    print(*wrong, sep="\n", end="\n" if wrong else "", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
