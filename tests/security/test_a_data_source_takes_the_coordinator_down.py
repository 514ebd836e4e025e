"""The attacker's wish: a data source that holds the coordinator up, fills its memory or disk, or stays behind.

The same code trained nothing and took the coordinator with it while it ran in its process.
"""

from __future__ import annotations

import gc
import signal
import textwrap
import time
import uuid

import psutil
import pytest
from author_runs import build_config, write_environment

from rollout.coordinator.rows import build_rows, open_sources
from rollout.data.cursor import place
from rollout.errors import DataError, LedgerSuperseded, RolloutError
from rollout.plugins.row_host import HostBounds

GOOD = '[{"prompt": "1+1=", "answer": "2"}]'
SOURCE = """
class Source:
    digest = "blake3:mine"
    def __len__(self):
        return 4
    def rows(self, positions):
        {body}
class Mine(Episode):
    @classmethod
    def source(cls, split, seed):
        return Source()
"""
SECONDS_MAX = 60.0


@pytest.fixture
def opened(tmp_path):
    """Rows of a class whose ``rows(split)`` is this code."""

    def open_rows(code, **bounds):
        name = f"mine_{uuid.uuid4().hex}"
        config = build_config(write_environment(tmp_path, code, name), name)
        return build_rows(config, HostBounds(**bounds))

    return open_rows


@pytest.fixture
def served(tmp_path):
    """Rows of a source that is asked while the run goes on."""

    def open_rows(body, **bounds):
        name = f"mine_{uuid.uuid4().hex}"
        write_environment(tmp_path, "return []", name)
        text = SOURCE.replace("{body}", textwrap.indent(textwrap.dedent(body), " " * 8).strip())
        (tmp_path / f"{name}.py").write_text((tmp_path / f"{name}.py").read_text() + text)
        return build_rows(build_config(tmp_path, name), HostBounds(**bounds))

    return open_rows


def refusal(ask):
    with pytest.raises(DataError) as found:
        ask()
    assert "spec.train.environment.python (mine_" in str(found.value)
    return str(found.value)


@pytest.mark.process
def test_it_never_answers(opened):
    said = refusal(lambda: opened("while True:\n    pass", open_seconds=4.0))
    assert "did not answer within 4 s" in said


@pytest.mark.process
def test_it_never_answers_while_the_run_goes_on(served):
    rows = served("time.sleep(1000)", read_seconds=0.5)
    assert "did not answer within 0.5 s" in refusal(lambda: rows.train([0]))


@pytest.mark.process
def test_it_holds_a_gigabyte(opened):
    code = 'return [{"prompt": "x" * (1 << 30), "answer": "x"}]'
    with pytest.raises(DataError, match="MemoryError"):
        opened(code, memory_bytes_max=512 << 20)


@pytest.mark.process
def test_it_sends_more_than_anybody_asked_for(served):
    rows = served(
        'return [{"prompt": "x" * (4 << 20)} for _ in positions]', answer_bytes_max=1 << 20
    )
    assert "expected at most 1048576" in refusal(lambda: rows.train([0]))
    rows = served('return [{"prompt": "x"}] * 5000')
    assert "got 5000" in refusal(lambda: rows.train([0]))


@pytest.mark.process
@pytest.mark.parametrize(
    ("value", "says"),
    [
        ('float("nan")', "not a finite number"),
        ('float("inf")', "not a finite number"),
        ("deep", "nested"),
        ('b"bytes"', "bytes is no JSON value"),
        ("{1: 2}", "a name that is no text"),
    ],
)
def test_it_answers_with_values_that_no_step_can_use(served, value, says):
    body = f"""
    deep = []
    for _ in range(40):
        deep = [deep]
    return [{{"prompt": "x", "more": [{value}]}} for _ in positions]
    """
    said = refusal(lambda: served(body).train([0]))
    assert "row " in said and "more.0" in said and says in said


@pytest.mark.process
def test_it_writes_past_the_protocol(served):
    rows = served(r"""
    links = {}
    for number in os.listdir("/proc/self/fd"):
        try:
            links[os.readlink(f"/proc/self/fd/{number}").partition(":")[0]] = int(number)
        except OSError:
            pass
    line = links["socket"]
    os.write(line, b"\xff" * 64)
    return []
    """)
    assert "sent no answer" in refusal(lambda: rows.train([0]))


@pytest.mark.process
def test_it_dies_and_is_asked_once_more(served, tmp_path):
    mark = tmp_path / "died"
    rows = served(f"""
    if not Path({str(mark)!r}).exists():
        Path({str(mark)!r}).touch()
        os.kill(os.getpid(), {int(signal.SIGKILL)})
    return [{{"prompt": "x", "answer": str(n)}} for n in positions]
    """)
    assert [row["prompt"] for row in rows.train([0, 1])] == ["x", "x"]


@pytest.mark.process
def test_it_dies_each_time(served):
    said = refusal(lambda: served('print("no room"); sys.stdout.flush(); os._exit(3)').train([0]))
    assert "ended its process" in said and "no room" in said


@pytest.mark.process
def test_its_error_says_something_about_the_ledger(served):
    rows = served(
        "from rollout.errors import LedgerSuperseded\nraise LedgerSuperseded('x' * 100_000)"
    )
    with pytest.raises(RolloutError) as found:
        rows.train([0])
    assert not isinstance(found.value, LedgerSuperseded)
    assert len(str(found.value)) < 10_000


@pytest.mark.process
def test_what_it_started_stays_behind(opened, tmp_path):
    rows = opened(f"""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            (HERE / "staying").write_text(str(os.getpid()))
            (HERE / "staying").rename(HERE / "stayed")
            time.sleep(1000)
        os._exit(0)
    while not (HERE / "stayed").exists():
        time.sleep(0.01)
    return {GOOD}
    """)
    assert rows.train([0])[0]["answer"] == "2"
    pid = int((tmp_path / "stayed").read_text())
    del rows
    gc.collect()
    deadline = time.monotonic() + SECONDS_MAX
    while _lives(pid):
        assert time.monotonic() < deadline, f"process {pid} is still there"
        time.sleep(0.02)


def _lives(pid):
    """Whoever inherits it may leave it unburied."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.process
def test_honest_rows_are_what_they_were(tmp_path):
    name = f"mine_{uuid.uuid4().hex}"
    code = """
    return [
        {"prompt": f"{n}+{n}=", "answer": 2 * n, "more": {"a": [1, 2.5, None, True, "\\u00fc"], "b": {}}}
        for n in range(700)
    ]
    """
    config = build_config(write_environment(tmp_path, code, name), name)
    apart, here = build_rows(config), open_sources(config).train
    assert apart.source.digest == here.digest
    positions = [place(apart.order, ordinal).position for ordinal in range(700)]
    assert apart.train(range(700)) == here.rows(positions)
