"""The attacker's wish: bytes that crash a parser, hang it, or make it take more memory than there is."""

import subprocess
import sys
from pathlib import Path

import pytest

from rollout.data.jsonl import BadRecord, parse_line
from rollout.protocol.envelope import Envelope
from rollout.protocol.routes import SUBMIT

FEEDER = Path(__file__).with_name("hostile_bytes.py")
PARSERS = (
    *("manifest", "toml", "formatted", "scalar", "archive", "body", "plain-body", "zstd"),
    *("answer", "submission", "record", "rows"),
)


def feed(parser, cases):
    done = subprocess.run(
        [sys.executable, FEEDER, parser, str(cases)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-6000:]


@pytest.mark.process
@pytest.mark.parametrize("parser", PARSERS)
def test_a_parser_is_fed_with_five_hundred_cases(parser):
    feed(parser, 500)


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.parametrize("parser", PARSERS)
def test_a_parser_is_fed_with_twenty_thousand_cases(parser):
    feed(parser, 20_000)


@pytest.mark.parametrize(
    "line",
    [
        *(
            b'{"a": 1e999}',
            b'{"a": 99999999999999999999999}',
            b'{"a": "\\ud800"}',
            b'{"a": -1e400}',
        ),
        *(b'{"a": ' + b"9" * 5000 + b"}", b'{"a": ' + b"[" * 100_000),
    ],
)
def test_a_record_holds_what_no_process_can_pass_on(line):
    with pytest.raises(BadRecord):
        parse_line(line)


def test_an_undecodable_body_is_refused_and_no_bug(tmp_path):
    import asyncio

    sys.path.append(str(FEEDER.parents[1] / "rollout" / "coordinator"))
    from coordinator_kit import Bench

    bench = Bench(tmp_path)
    client = bench.start()
    try:
        for body in (b"\x80", b'{"worker": "\xff"}', b"[" * 100_000, b"\x91" * 100_000):
            for wire in ("json", "msgpack"):
                sender = Envelope(worker="actor-0", incarnation=1)
                answer = bench.coordinator.handle(SUBMIT, sender, body, wire)
                status, _ = asyncio.run(answer)
                assert status == 400
        assert bench.coordinator.unexpected_errors == 0
        assert client.status() is not None, "the next honest call is served"
    finally:
        bench.close()
