"""Where the seconds of a tier went, and whether its folders keep their budget. Reads pytest's JUnit files.

`timing.py build/junit/unit.xml`: the twenty slowest files and every folder's sum; the tier is the file's name. `--enforce`:
fails where the quick tests of a folder took over 110 % of their budget in that tier (budgets.toml, seconds on two
cores), or have none while other folders of the tier do. `--write`: the budgets of the folders in these files as they
were measured. `--amend`: of those alone that have none or took more, as they would have taken at the pace of the
budgets that hold: a busy machine says that, too. Slow tests are shown and have no budget: how long they take is theirs to say.

Folders are each other's measure: where the machine is slow or busy, most of them take longer than their budgets, and each
is held against what the middle one takes. What a whole session shares, such as a cluster, is nobody's: whose test asks
for it first is chance.
"""

from __future__ import annotations

import argparse
import re
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from xml.etree import ElementTree as ET

BUDGETS = Path(__file__).parent / "budgets.toml"
FILES_SHOWN = 20
OVER = 1.1
SPARE_SECONDS = 10.0
"""A folder of a few seconds is measured no better than this."""
FOLDERS_MIN = 3
"""Fewer say nothing about the machine."""
SLOW, SHARED = "slow", "shared"
"""Properties of a test: that it is slow; the seconds that it spent to set up what others share."""
HOW = "`python tests/timing.py --write build/junit/*.xml` after a run on two quiet cores writes it"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One test that ran: its file, the seconds of its own set-up, call and tear-down, and those of what is shared."""

    file: str
    seconds: float
    slow: bool
    shared_seconds: float = 0.0

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
    said = [(one.get("name"), one.get("value", "")) for one in element.iter("property")]
    shared = sum(float(value) for name, value in said if name == SHARED)
    return Case(
        file="/".join(parts[: last + 1]) + ".py",
        seconds=max(0.0, float(element.get("time", "0")) - shared),
        slow=SLOW in dict(said),
        shared_seconds=shared,
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


def find_pace(sums: Mapping[str, float], budgets: Mapping[str, float]) -> float:
    """How many times its budget the middle folder takes, of those that are not measured by chance; at least once."""
    shares = [sums[name] / budgets[name] for name in sums if budgets.get(name, 0.0) > SPARE_SECONDS]
    return max(1.0, median(shares)) if len(shares) >= FOLDERS_MIN else 1.0


def is_over(seconds: float, budget: float, pace: float) -> bool:
    """Whether a folder took more than it may on a machine of this pace."""
    return seconds > pace * max(budget * OVER, budget + SPARE_SECONDS)


def find_amended(sums: Mapping[str, float], budgets: Mapping[str, float]) -> dict[str, float]:
    """Budgets of the folders that have none or took more, at the pace of those that hold."""
    pace = find_pace(sums, budgets)
    return {
        folder: seconds / pace
        for folder, seconds in sums.items()
        if folder not in budgets or is_over(seconds, budgets[folder], pace)
    }


def find_overdrawn(sums: Mapping[str, float], budgets: Mapping[str, float]) -> list[str]:
    """What is wrong in a tier, one line a folder."""
    lines, pace = [], find_pace(sums, budgets)
    for folder, seconds in sums.items():
        budget = budgets.get(folder, 0.0) * pace
        if folder not in budgets:
            lines.append(f"{folder}: {seconds:.0f} s and no budget: write one into {BUDGETS.name}")
        elif is_over(seconds, budgets[folder], pace):
            lines.append(
                f"{folder}: {seconds:.0f} s of {budget:.0f} s: make tests quicker, or say in "
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
    lines.append(f"{sum(c.shared_seconds for c in cases):8.1f}  what the session shares")
    if (pace := find_pace(quick, budgets)) > 1.0:
        lines.append(
            f"the middle folder takes {pace:.2f} times its budget: all are held against that"
        )
    return "\n".join(lines)


def load_budgets(path: Path = BUDGETS) -> dict[str, dict[str, float]]:
    """Seconds by folder, by tier."""
    return tomllib.loads(path.read_text()) if path.exists() else {}


def write_budgets(measured: Mapping[str, Mapping[str, float]], path: Path = BUDGETS) -> None:
    """The measured folders' anew, the others' as they were; the text above the first table stays."""
    text = path.read_text() if path.exists() else ""
    head = re.split(r"^\[", text, maxsplit=1, flags=re.MULTILINE)[0].rstrip()
    budgets = load_budgets(path)
    tables = [head] if head else []
    for tier in sorted(budgets.keys() | measured.keys()):
        merged = budgets.get(tier, {}) | measured.get(tier, {})
        whole = {folder: max(1, round(seconds)) for folder, seconds in sorted(merged.items())}
        lines = [f'"{folder}" = {seconds}' for folder, seconds in whole.items()]
        tables.append("\n".join([f"[{tier}]", *lines]))
    path.write_text("\n\n".join(tables) + "\n")


def sum_quick(report: Path) -> dict[str, float]:
    return sum_by_folder(case for case in read([report]) if not case.slow)


def enforce(tier: str, sums: Mapping[str, float], budgets: Mapping[str, float]) -> list[str]:
    """What is wrong in a tier; that none of its folders has a budget is said, and no fault."""
    if not budgets:
        print(f"no folder has a budget in tier {tier} of {BUDGETS.name}: {HOW}", file=sys.stderr)
        return []
    return find_overdrawn(sums, budgets)


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="timing", description=__doc__)
    parser.add_argument("reports", nargs="+", type=Path)
    parser.add_argument("--enforce", action="store_true")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--amend", action="store_true")
    given = parser.parse_args(words)
    if given.write:
        write_budgets({report.stem: sum_quick(report) for report in given.reports})
    if given.amend:
        there = load_budgets()
        write_budgets(
            {
                one.stem: find_amended(sum_quick(one), there.get(one.stem, {}))
                for one in given.reports
            }
        )
    budgets, wrong = load_budgets(), []
    for report in given.reports:
        of_tier = budgets.get(report.stem, {})
        print(render(read([report]), of_tier))
        if given.enforce:
            wrong += enforce(report.stem, sum_quick(report), of_tier)
    print(*wrong, sep="\n", end="\n" if wrong else "", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
