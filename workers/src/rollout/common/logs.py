"""How the processes of a run log: as all of ours, without the chatter of HTTP clients and of exporters of traces."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from rollout.errors import SpecError
from rollout_api.logs import start_logging


def configure_logging(environment: Mapping[str, str]) -> None:
    """Log to standard error as ``ROLLOUT_LOG_LEVEL`` and ``ROLLOUT_LOG_FORMAT`` say.

    Raises SpecError for a level or format that there is none of.
    """
    try:
        level = start_logging(environment)
    except ValueError as error:
        raise SpecError(str(error)) from error
    logging.getLogger("httpx").setLevel(max(logging.WARNING, logging.getLevelName(level)))
    # A collector that is gone is said once, by whoever sends to it, and not at each try.
    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
