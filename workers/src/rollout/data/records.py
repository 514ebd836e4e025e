"""What is done about records that cannot be used: stop and name them, or leave them out and count."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from rollout.errors import DataError

OnBadRecord = Literal["Fail", "Skip"]

SHOWN_MAX = 10
"""Bad records named in a message; the rest are counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BadPlace:
    """Where a bad record lies (``train.jsonl:17``) and what is wrong with it."""

    where: str
    reason: str

    def __str__(self) -> str:
        return f"{self.where}: {self.reason}"


@dataclass(slots=True)
class BadRecords:
    """Counts bad records of one pass; keeps the first few."""

    num_records: int = 0
    first: list[BadPlace] = field(default_factory=list)

    def add(self, where: str, reason: str) -> None:
        """Note one."""
        self.num_records += 1
        if len(self.first) < SHOWN_MAX:
            self.first.append(BadPlace(where=where, reason=reason))

    def joined(self, later: BadRecords) -> BadRecords:
        """These and others of the same data, found in a later look."""
        first = [*self.first, *later.first][:SHOWN_MAX]
        return BadRecords(num_records=self.num_records + later.num_records, first=first)

    def settle(self, what: str, num_good: int, on_bad: OnBadRecord) -> None:
        """Raise DataError when bad records are not allowed, or when no good one is left."""
        listed = "".join(f"\n  {bad}" for bad in self.first)
        more = self.num_records - len(self.first)
        listed += f"\n  ... and {more} more" if more > 0 else ""
        if self.num_records and on_bad == "Fail":
            raise DataError(
                f"{what}: {self.num_records} of {self.num_records + num_good} records cannot be used:"
                f"{listed}\nCorrect them, or set onBadRecord: Skip to leave them out."
            )
        if num_good == 0:
            raise DataError(
                f"{what} has no usable record{':' + listed if listed else ': it is empty'}"
            )
