"""Every process of ours logs at the level and in the form that two variables say, and refuses others by name."""

import json
import logging
import threading

import pytest

from rollout_api import logs
from rollout_api.logs import name_process, naming, start_logging


@pytest.fixture(autouse=True)
def kept(monkeypatch):
    """The test's own logging goes on as before."""
    monkeypatch.setattr(logs, "_of_process", {})
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


def test_a_line_of_json_has_the_ids_of_its_process_and_of_what_it_is_about(capsys):
    start_logging({"ROLLOUT_LOG_FORMAT": "json"})
    name_process(run="sums", worker="actor-1")
    logger = logging.getLogger("rollout.test")
    with naming(trace="4bf9"):
        other = threading.Thread(target=logger.info, args=("elsewhere",))
        other.start()
        other.join()
        logger.info("within")
    logger.info("behind")
    told = {line["message"]: line for line in map(json.loads, capsys.readouterr().err.splitlines())}
    assert {(line["run"], line["worker"]) for line in told.values()} == {("sums", "actor-1")}
    assert {name: line.get("trace") for name, line in told.items()} == {
        "elsewhere": None,
        "within": "4bf9",
        "behind": None,
    }


def test_a_line_of_text_has_its_trace_behind_the_message_and_before_the_traceback(capsys):
    start_logging({})
    name_process(run="sums")
    with naming(trace="4b\x1bf9"):
        try:
            {}["x"]
        except KeyError:
            logging.getLogger("rollout.test").exception("broke")
    first, *rest = capsys.readouterr().err.splitlines()
    assert first.endswith("ERROR rollout.test broke trace=4b\\x1bf9")
    assert rest[-1].endswith("KeyError: 'x'")


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
