"""The level and the form of a process's log are settings; a wrong one is refused by name."""

import json
import logging

import pytest

from rollout.common.logs import configure_logging
from rollout.errors import SpecError


@pytest.fixture(autouse=True)
def restored():
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    yield
    root.handlers[:] = before
    root.setLevel(level)


def test_a_line_of_json_holds_what_a_line_of_text_holds(capsys):
    configure_logging({"ROLLOUT_LOG_FORMAT": "json", "ROLLOUT_LOG_LEVEL": "debug"})

    logging.getLogger("rollout.actor").debug("claimed tasks=%d", 3)

    line = json.loads(capsys.readouterr().err)
    assert (line["level"], line["logger"]) == ("DEBUG", "rollout.actor")
    assert line["message"] == "claimed tasks=3"


def test_debug_is_off_unless_it_was_asked_for(capsys):
    configure_logging({})

    logging.getLogger("rollout.actor").debug("claimed")
    logging.getLogger("rollout.actor").info("ended")

    assert [line.split()[-1] for line in capsys.readouterr().err.splitlines()] == ["ended"]


@pytest.mark.parametrize(
    ("variable", "value"), [("ROLLOUT_LOG_LEVEL", "loud"), ("ROLLOUT_LOG_FORMAT", "xml")]
)
def test_a_level_or_format_that_does_not_exist_is_refused_by_name(variable, value):
    with pytest.raises(SpecError, match=f"{variable} is .* write one of"):
        configure_logging({variable: value})
