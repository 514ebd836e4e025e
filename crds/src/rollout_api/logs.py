"""How every process of ours logs: lines for people, or one JSON object a line, from the level that was asked for."""

import json
import logging
from collections.abc import Mapping

from rollout_api.visible import VisibleFormatter

LEVEL_VARIABLE, FORMAT_VARIABLE = "ROLLOUT_LOG_LEVEL", "ROLLOUT_LOG_FORMAT"
LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")
FORMATS = ("text", "json")
_TEXT = "%(asctime)s %(levelname)s %(name)s %(message)s"


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, logger, message, and the traceback where there is one."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as one line."""
        content = {
            "time": self.formatTime(record),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            content["exception"] = self.formatException(record.exc_info)
        return json.dumps(content)


def start_logging(environment: Mapping[str, str]) -> str:
    """Log to standard error as ``ROLLOUT_LOG_LEVEL`` and ``ROLLOUT_LOG_FORMAT`` say; the level, such as ``INFO``.

    Raises ValueError for a level or format that there is none of.
    """
    level = _one_of(LEVELS, LEVEL_VARIABLE, environment.get(LEVEL_VARIABLE, "INFO").upper())
    kind = _one_of(FORMATS, FORMAT_VARIABLE, environment.get(FORMAT_VARIABLE, "text").lower())
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if kind == "json" else VisibleFormatter(_TEXT))
    logging.basicConfig(level=level, handlers=[handler], force=True)
    return level


def _one_of(known: tuple[str, ...], variable: str, value: str) -> str:
    if value not in known:
        raise ValueError(f"{variable} is {value!r}; write one of {', '.join(known)}")
    return value
