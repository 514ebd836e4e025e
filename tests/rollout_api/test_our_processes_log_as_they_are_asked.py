"""Every process of ours logs at the level and in the form that two variables say, and refuses others by name."""

import json
import logging

import pytest

from rollout_api.logs import start_logging


@pytest.fixture(autouse=True)
def kept():
    """The test's own logging goes on as before."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def test_a_line_of_json_has_the_record_and_its_traceback(capsys):
    start_logging({"ROLLOUT_LOG_FORMAT": "json", "ROLLOUT_LOG_LEVEL": "debug"})
    try:
        {}["x"]
    except KeyError:
        logging.getLogger("rollout.test").exception("it \x1b[31mbroke\nhere")
    [line] = capsys.readouterr().err.splitlines()
    told = json.loads(line)
    assert (told["level"], told["logger"], told["message"]) == (
        "ERROR",
        "rollout.test",
        "it \x1b[31mbroke\nhere",
    )
    assert "KeyError" in told["exception"]


def test_less_than_the_level_is_not_logged(capsys):
    assert start_logging({"ROLLOUT_LOG_LEVEL": "WARNING"}) == "WARNING"
    logging.getLogger("rollout.test").info("quiet")
    logging.getLogger("rollout.test").warning("loud")
    [line] = capsys.readouterr().err.splitlines()
    assert line.endswith("loud")


@pytest.mark.parametrize(
    ("name", "value"), [("ROLLOUT_LOG_LEVEL", "LOUD"), ("ROLLOUT_LOG_FORMAT", "xml")]
)
def test_what_there_is_none_of_is_refused_by_name(name, value):
    with pytest.raises(ValueError, match=f"{name} is '.*'; write one of"):
        start_logging({name: value})
