"""The request log: a line for each request, however it ended; bodies only by choice; nothing waits for it, and old files go."""

import asyncio
import json
import stat
from datetime import UTC, datetime, timedelta

import pytest
from gateway_kit import chat, until

from rollout.inference.gateway.request_log import LINES_MAX, RequestLine, RequestLog

CHAT = "/v1/chat/completions"


def lines_of(folder):
    return [
        json.loads(line)
        for file in sorted(folder.glob("requests-*.jsonl"))
        for line in file.read_text().splitlines()
    ]


def line(**fields):
    base = {
        "time": 1.0,
        "id": "r",
        "key": "k",
        "path": CHAT,
        "asked": "m",
        "version": "m",
        "digest": "d",
        "engine": "e",
        "code": 200,
    }
    return RequestLine(**{**base, **fields})


async def ask_all(served, tmp_path):
    """A good request, a refused one, one that broke, and one whose client left."""
    await served.post(CHAT, chat("secret words", max_tokens=9))
    await served.post(CHAT, chat("status=400"))
    await served.stream(chat("die"))
    leaving = asyncio.create_task(served.stream(chat("tokens=10000 delay=0.05")))
    await until(lambda: served.engines["a"].open, "the request")
    leaving.cancel()
    await until(lambda: len(lines_of(tmp_path)) == 4, "four lines")
    return lines_of(tmp_path)


async def test_each_ending_is_a_line_without_bodies(gateway, tmp_path):
    served = await gateway(settings={"log": str(tmp_path)})
    lines = await ask_all(served, tmp_path)
    assert [one["code"] for one in lines] == [200, 400, 502, 499]
    assert lines[0]["completion_tokens"] == 4
    assert lines[0]["key"] == served.key.split("-")[2]
    assert lines[2]["error"] == "engine_lost"
    text = json.dumps(lines)
    assert "secret words" not in text
    assert served.key.split("-", 3)[3] not in text
    [file] = tmp_path.iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


async def test_bodies_are_kept_where_they_were_asked_for(gateway, tmp_path):
    served = await gateway(settings={"log": str(tmp_path), "log_bodies": True})
    lines = await ask_all(served, tmp_path)
    assert json.loads(lines[0]["input"])["messages"][0]["content"] == "secret words"
    assert json.loads(lines[0]["output"])["choices"][0]["message"]["content"] == "w w w w "
    assert lines[2]["output"].startswith("data: ")


def test_a_full_log_drops_lines_and_counts_them(tmp_path, monkeypatch):
    lost = []
    monkeypatch.setattr(RequestLog, "_run", lambda self: None)
    full = RequestLog(tmp_path, bodies=True, days=1, dropped=lambda: lost.append(1))
    for _ in range(LINES_MAX + 3):
        full.add(line(input="x", output="y"))
    assert len(lost) == 3
    kept = list(full._lines.queue)
    assert kept[0].input == "x"
    assert (kept[-1].input, kept[-1].input_cut) == ("", True)


@pytest.mark.parametrize("days", [1, 30])
def test_files_that_are_too_old_go(tmp_path, days):
    for age in (0, 2, 40):
        (
            tmp_path / f"requests-{datetime.now(UTC) - timedelta(days=age):%Y-%m-%d}.jsonl"
        ).write_text("{}\n")
    today = next(iter(sorted(tmp_path.iterdir(), reverse=True)))
    today.unlink()
    written = RequestLog(tmp_path, bodies=False, days=days, dropped=lambda: None)
    written.add(line())
    written.close()
    assert len(list(tmp_path.iterdir())) == (1 if days == 1 else 2)


def test_a_folder_that_cannot_be_written_loses_lines_and_nothing_else(tmp_path):
    lost = []
    log = RequestLog(tmp_path / "log", bodies=False, days=1, dropped=lambda: lost.append(1))
    (tmp_path / "log").rmdir()
    log.add(line())
    log.close()
    assert lost == [1]
