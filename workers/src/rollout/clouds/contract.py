"""What a cloud answers about itself, the same for each: who one is, what is wrong with that, what a refusal means.

Nothing here calls a network; a cloud's client library is loaded by the call that needs it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, Protocol

from rollout.doctor.judge import Diagnosis
from rollout.errors import RolloutError
from rollout.objects.retry import Absent, Refused

Role = Literal["coordinator", "learner", "actor"]
READERS: frozenset[Role] = frozenset({"actor"})
"""Roles that only read a run's objects."""
SAID = re.compile(r"^HTTP (?P<status>\d+)(?: (?P<code>[^:\s]*))?: (?P<said>.*)$", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketPlace:
    """Objects' place in a bucket, as a run has it. ``prefix`` has no slash at its ends, and may be empty."""

    bucket: str
    prefix: str
    endpoint: str | None = None
    region: str | None = None
    kms_key: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """Why a call failed. ``status`` is HTTP's, 0 where there was no answer; ``code`` the cloud's word, often empty."""

    status: int
    code: str
    said: str
    is_absent: bool = False
    is_refused: bool = False
    fix: str = ""

    @property
    def found(self) -> str:
        """In one line."""
        return " ".join(part for part in (str(self.status or ""), self.code, self.said) if part)


@dataclass(frozen=True, slots=True, kw_only=True)
class Explained:
    """What a trouble means: ``costs``, and ``fix``: the change that ends it."""

    costs: str
    fix: str


class Cloud(Protocol):
    """One cloud, as the processes of one environment meet it."""

    def judge_source(self, now: float) -> Iterator[Diagnosis]:
        """Where credentials come from, and what is wrong with that before anybody is asked. ``now``: Unix seconds."""
        ...

    def judge_settings(self, place: BucketPlace) -> Iterator[Diagnosis]:
        """Region and address, as they are written."""
        ...

    def ask_identity(self, place: BucketPlace | None) -> str:
        """Who the cloud says one is. Raises SpecError, Refused and Transient."""
        ...

    def address(self, place: BucketPlace | None) -> str:
        """Where it is reached: a URL that may be asked without credentials."""
        ...

    def explain(self, trouble: Trouble, verb: str, place: BucketPlace) -> Explained:
        """What a trouble at ``verb`` (of ``rollout.objects.places.probe_steps``, or ``identify``) means."""
        ...


def read_trouble(error: Exception) -> Trouble:
    """What stands in an error of the object stores' clients."""
    text = str(error)
    parts = SAID.match(text)
    is_refused = isinstance(error, (Refused, RolloutError))
    return Trouble(
        status=int(parts["status"]) if parts else 0,
        code=(parts["code"] or "") if parts else "",
        said=parts["said"] if parts else text,
        is_absent=isinstance(error, Absent),
        is_refused=is_refused,
        fix=error.fix if isinstance(error, Refused) else "",
    )
