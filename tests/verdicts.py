"""What the long tier remembers between its runs, and how several machines share it.

`make test-long` keeps the verdict of every slow test that passed, by the digest of the tree it passed on: a run that was
cut goes on where it was, and a changed file makes all verdicts void. `ROLLOUT_SHARD=2/4 make test-long` runs the second of
four parts of the slow tests (and all quick ones).
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import zlib
from dataclasses import dataclass, field
from pathlib import Path

import pytest

FOLDER = "ROLLOUT_VERDICTS"
"""Where verdicts are kept; unset: none are."""
SHARD = "ROLLOUT_SHARD"
ROOT = Path(__file__).parents[1]
SLOW = "slow"


def digest_tree(root: Path = ROOT) -> str:
    """Of every file that git tracks or does not ignore: names and contents as they are now."""
    listed = subprocess.run(
        ("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"),
        cwd=root,
        check=True,
        capture_output=True,
    ).stdout
    digest = hashlib.sha256()
    for name in sorted(set(filter(None, listed.split(b"\0")))):
        path = root / os.fsdecode(name)
        content = path.read_bytes() if path.is_file() else b""
        digest.update(b"%d %d " % (len(name), len(content)) + name + content)
    return digest.hexdigest()


@dataclass(slots=True)
class Verdicts:
    """The names of slow tests that passed on one tree; kept one a line, appended as they come."""

    file: Path
    passed: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        self.passed = (
            frozenset(self.file.read_text().splitlines()) if self.file.exists() else frozenset()
        )

    def keep(self, name: str) -> None:
        """One write of less than a page, so that several workers may append at once."""
        self.file.parent.mkdir(parents=True, exist_ok=True)
        with self.file.open("a") as file:
            file.write(f"{name}\n")


def parse_shard(text: str) -> tuple[int, int]:
    """`2/4` is (2, 4). Raises UsageError."""
    number, _, total = text.partition("/")
    if not (number.isdigit() and total.isdigit() and 1 <= int(number) <= int(total)):
        raise pytest.UsageError(f"{SHARD}={text!r}: expected NUMBER/TOTAL, such as 2/4")
    return int(number), int(total)


def is_in_shard(name: str, shard: tuple[int, int]) -> bool:
    return zlib.crc32(name.encode()) % shard[1] == shard[0] - 1


class LongTier:
    """The plugin: leaves out what is another machine's, skips what has passed, remembers what passes."""

    def __init__(self, verdicts: Verdicts | None, shard: tuple[int, int], *, writes: bool) -> None:
        self._verdicts, self._shard, self._writes = verdicts, shard, writes

    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        slow = [item for item in items if item.get_closest_marker(SLOW)]
        others = {item for item in slow if not is_in_shard(item.nodeid, self._shard)}
        if others:
            config.hook.pytest_deselected(items=list(others))
            items[:] = [item for item in items if item not in others]
        for item in slow:
            if self._verdicts is not None and item.nodeid in self._verdicts.passed:
                item.add_marker(pytest.mark.skip(reason="it has passed on this tree"))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        over = report.when == "call" and report.passed and SLOW in report.keywords
        if over and self._writes and self._verdicts is not None:
            self._verdicts.keep(report.nodeid)


def register(config: pytest.Config) -> None:
    """Only for who asks for it by the environment."""
    folder, shard = os.environ.get(FOLDER), parse_shard(os.environ.get(SHARD, "1/1"))
    if folder is None and shard == (1, 1):
        return
    verdicts = None if folder is None else Verdicts(ROOT / folder / digest_tree())
    writes = not hasattr(config, "workerinput")  # pytest-xdist: its controller hears of every test
    config.pluginmanager.register(LongTier(verdicts, shard, writes=writes))
