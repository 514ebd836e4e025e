"""The attacker's wish: bytes that crash a parser, hang it, or make it take more memory than there is."""

import json
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from rollout.data.jsonl import BadRecord, parse_line
from rollout.protocol.envelope import Envelope
from rollout.protocol.routes import SUBMIT

FEEDER = Path(__file__).with_name("hostile_bytes.py")
PARSERS = {
    "hostile_bytes.py": (
        *("manifest", "toml", "formatted", "scalar", "archive", "body", "plain-body", "zstd"),
        *("answer", "submission", "record", "rows"),
    ),
    "hostile_calls.py": ("calls", "rendezvous", "ranks", "ledger-file", "ledger-rows"),
    "hostile_cluster.py": ("operator-record", "child", "progress", "coordinator-answer", "review"),
}
ALL = [(feeder, parser) for feeder, parsers in PARSERS.items() for parser in parsers]


@cache
def fed(feeder, cases):
    """Of each of its parsers, which are fed one after the other by forks of one process: the exit code, and what was said."""
    command = [sys.executable, FEEDER.with_name(feeder), ",".join(PARSERS[feeder]), str(cases)]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace")
    assert done.returncode == 0, done.stderr[-6000:]
    return {name: told for name, *told in map(json.loads, done.stdout.splitlines())}


def feed(feeder, parser, cases):
    command = [sys.executable, FEEDER.with_name(feeder), parser, str(cases)]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace")
    assert done.returncode == 0, done.stderr[-6000:]


@pytest.mark.process
@pytest.mark.parametrize(("feeder", "parser"), ALL)
def test_a_parser_is_fed_with_five_hundred_cases(feeder, parser):
    code, said = fed(feeder, 500)[parser]
    assert code == 0, said


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("feeder", "parser"), ALL)
def test_a_parser_is_fed_with_twenty_thousand_cases(feeder, parser):
    feed(feeder, parser, 20_000)


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


def test_a_number_that_the_ledger_has_no_room_for_is_refused_and_no_bug(tmp_path):
    from hostile_calls import PLAN, Served

    from rollout.errors import RolloutError

    served = Served(tmp_path, PLAN)
    try:
        body = b'{"pid": 18446744073709551615}'
        sender = Envelope(worker="learner", incarnation=1).headers()
        with pytest.raises(RolloutError, match="too large"):
            served.call("/v1/learner/start", sender, "json", body)
        served.check()
    finally:
        served.close()


@pytest.mark.parametrize(
    "request_",
    [
        {"object": "x"},
        {"object": []},
        {"object": {"metadata": None}},
        {"oldObject": {"metadata": "x"}},
    ],
)
def test_a_review_of_what_is_no_object_is_refused_and_no_bug(request_):
    from rollout_operator.webhook.crowd import parse_review

    body = json.dumps({"request": {"uid": "u", "operation": "UPDATE", **request_}}).encode()
    with pytest.raises(ValueError, match=r"request\.(object|oldObject): expected an object"):
        parse_review(body)


@pytest.mark.parametrize(
    ("cell", "content"),
    [
        ("run.settings", "[]"),
        ("run.outcome", '{"kind": '),
        ("steps.metrics", "5"),
        ("steps.plan", b"\x91\x00"),
        ("anchors.manifest", '{"name": 1}'),
        ("bodies.body", b""),
    ],
)
def test_a_ledger_that_somebody_wrote_into_is_named_with_the_cell(cell, content, tmp_path):
    from hostile_calls import read_ledger_rows

    from rollout.errors import LedgerError

    table, column = cell.split(".")
    said = cell if table != "bodies" else "stored trajectory body"
    with pytest.raises(LedgerError, match=said):
        read_ledger_rows(tmp_path / "ledger.db", [((table, column), content)])


def test_a_schema_of_broken_text_is_a_damaged_ledger(tmp_path):
    from hostile_calls import good_ledger, read_ledger_file

    from rollout.errors import LedgerBroken

    named = good_ledger().replace(b"tablelineageslineages", b"table\xb2\xffneageslineages")
    broken = named.replace(b"CREATE TABLE lineages", b"CREATE TABLX lineages")
    assert broken != named != good_ledger()
    with pytest.raises(LedgerBroken, match="damaged"):
        read_ledger_file(tmp_path / "ledger.db", broken)
