"""What every errand does: read its order from a variable, and leave what it found as its container's last word."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Mapping
from typing import TypeVar

from pydantic import ValidationError

from rollout.entrypoints.config import (
    LAST_WORD_CHARACTERS_MAX,
    LAST_WORD_VARIABLE,
    leave_text,
    run_process,
)
from rollout.entrypoints.pod import TERMINATION_LOG
from rollout.errors import SpecError
from rollout_api.base import ApiModel

Order = TypeVar("Order", bound=ApiModel)


def run_errand(work: Callable[[], str], characters_max: int = LAST_WORD_CHARACTERS_MAX) -> int:
    """Be the first process of a container that says what ``work`` returns; the exit code."""
    os.environ.setdefault(LAST_WORD_VARIABLE, TERMINATION_LOG)
    # The first process of a container has no default for it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    return run_process(lambda: leave_text(work(), characters_max))


def read_errand(
    environment: Mapping[str, str], variable: str, kind: type[Order], purpose: str
) -> Order:
    """The order in ``variable``. Raises SpecError, which says that it is none to ``purpose``."""
    try:
        return kind.model_validate_json(environment.get(variable, ""))
    except ValidationError as error:
        raise SpecError(f"{variable} is no order to {purpose}: {error}") from error
