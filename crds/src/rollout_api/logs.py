"""How every process of ours logs: lines for people, or one JSON object a line, from the level that was asked for.

Lines of JSON say which run and which worker they are of (``name_process``), any line which trace (``naming``).
"""

import json
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType

from rollout_api.visible import VisibleFormatter

LEVEL_VARIABLE, FORMAT_VARIABLE = "ROLLOUT_LOG_LEVEL", "ROLLOUT_LOG_FORMAT"
LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")
FORMATS = ("text", "json")
_TEXT = "%(asctime)s %(levelname)s %(name)s %(message)s"
_of_process: dict[str, str] = {}
_of_context: ContextVar[Mapping[str, str]] = ContextVar("_of_context", default=MappingProxyType({}))


def name_process(**ids: str) -> None:
    """Each further line of JSON has these ids of this process, such as ``run`` and ``worker``."""
    _of_process.update(ids)


@contextmanager
def naming(**ids: str) -> Iterator[None]:
    """Each line of the block, and of tasks begun in it, has these ids, such as ``trace``."""
    token = _of_context.set({**_of_context.get(), **ids})
    try:
        yield
    finally:
        _of_context.reset(token)


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, logger, message, and the traceback where there is one."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as one line."""
        content = {
            "time": self.formatTime(record),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **_of_process,
            **_of_context.get(),
        }
        if record.exc_info:
            content["exception"] = self.formatException(record.exc_info)
        return json.dumps(content)


class TextFormatter(VisibleFormatter):
    """A line for people: the ids of what it belongs to stand behind its message."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        """The line, without a traceback."""
        ids = "".join(f" {name}={value}" for name, value in _of_context.get().items())
        return super().formatMessage(record) + ids


def start_logging(environment: Mapping[str, str]) -> str:
    """Log to standard error as ``ROLLOUT_LOG_LEVEL`` and ``ROLLOUT_LOG_FORMAT`` say; the level, such as ``INFO``.

    Raises ValueError for a level or format that there is none of.
    """
    level = _one_of(LEVELS, LEVEL_VARIABLE, environment.get(LEVEL_VARIABLE, "INFO").upper())
    kind = _one_of(FORMATS, FORMAT_VARIABLE, environment.get(FORMAT_VARIABLE, "text").lower())
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if kind == "json" else TextFormatter(_TEXT))
    logging.basicConfig(level=level, handlers=[handler], force=True)
    return level


def _one_of(known: tuple[str, ...], variable: str, value: str) -> str:
    if value not in known:
        raise ValueError(f"{variable} is {value!r}; write one of {', '.join(known)}")
    return value
