"""The attacker is an agent: it floods its endpoint, never ends, takes another key, leaves processes, and prepares its own judgement."""

import asyncio
import dataclasses
import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "rollout" / "actor"))
from agent_programs import agent, play_agent

from rollout.environments.agents import endpoint, environment

pytestmark = [pytest.mark.timeout(180), pytest.mark.usefixtures("where")]


@pytest.fixture(params=["bubblewrap", "pod"])
def where(request):
    """In which kind of sandbox it runs."""
    request.getfixturevalue("sandbox_pods" if request.param == "pod" else "sandbox_host")


async def play(text, verifier=None, say=lambda prompt, seed: "r", **settings):
    played, engine = await play_agent(agent(text, verifier, **settings), say)
    return played, engine


async def test_a_flood_of_requests_ends_the_agent(monkeypatch):
    monkeypatch.setattr(endpoint, "REQUESTS_MAX", 50)
    played, engine = await play("chat([user('q')])\nwhile True: post('/v1/chat/completions', b'{')")

    assert [one.ending for one in played.episodes] == ["request-limit"]
    assert len(engine.calls) == 1


async def test_many_requests_at_once_wait_in_a_line_that_is_bounded():
    text = """
import threading
said = []
def one(n): said.append(post("/v1/chat/completions", {"messages": [user(str(n))]})[0])
all = [threading.Thread(target=one, args=(n,)) for n in range(24)]
[t.start() for t in all]; [t.join() for t in all]
assert set(said) <= {200, 429}, said
"""
    played, engine = await play(text)
    assert [one.signals["exit_code"] for one in played.episodes] == [0]
    assert len(engine.calls) <= 24


async def test_one_that_never_ends_is_ended_and_judged():
    text = "chat([user('q')])\nopen('out', 'w').write('x')\ntime.sleep(1000)"
    played, _ = await play(
        text, "import os; raise SystemExit(not os.path.exists('out'))", seconds=2
    )

    (episode,) = played.episodes
    assert (episode.ending, episode.turn_rewards) == ("seconds-limit", (1.0,))


async def test_processes_that_it_leaves_do_not_meet_the_verifier():
    text = """
import subprocess
chat([user('q')])
for _ in range(5):
    subprocess.Popen(["/bin/sh", "-c", "trap '' TERM; while :; do sleep 0.01; echo > /box/beat; done"],
                     start_new_session=True)
time.sleep(0.3)
"""
    verifier = """
import os, time
os.path.exists("/box/beat") and os.remove("/box/beat")
time.sleep(0.3)
others = [p for p in os.listdir("/proc") if p.isdigit() and int(p) not in (1, os.getpid())]
raise SystemExit(bool(others) or os.path.exists("/box/beat"))
"""
    played, _ = await play(text, verifier)
    assert [one.turn_rewards for one in played.episodes] == [(1.0,)]


async def test_another_key_is_refused_as_the_api_does():
    text = """
status, body = post("/v1/chat/completions", {"messages": [user("q")]}, key="0" * 32)
assert (status, json.loads(body)["error"]["code"]) == (401, "invalid_api_key"), body
status, body = post("/v1/messages", {"messages": [user("q")]}, key="", headers={"x-api-key": "x"})
assert (status, json.loads(body)["error"]["type"]) == (401, "authentication_error"), body
chat([user("q")])
"""
    played, engine = await play(text)
    assert [one.signals["exit_code"] for one in played.episodes] == [0]
    assert len(engine.calls) == 1


async def test_nothing_but_its_endpoint_is_to_be_reached():
    async def hear(reader, writer):
        heard.append(await reader.read(10))
        writer.close()

    heard = []
    server = await asyncio.start_server(hear, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    text = f"""
import socket
chat([user("q")])
for address in (("127.0.0.1", {port}), ("8.8.8.8", 53)):
    try: socket.create_connection(address, timeout=2)
    except OSError: pass
    else: sys.exit("reached %s" % (address,))
"""
    async with server:
        played, _ = await play(text)
    assert [one.signals["exit_code"] for one in played.episodes] == [0]
    assert heard == []


async def test_a_prompt_of_ten_megabytes_is_refused():
    text = """
try: status = post("/v1/chat/completions", {"messages": [user("q" * 10_000_000)]})[0]
except (ConnectionError, BrokenPipeError): status = 413
assert status == 413, status
chat([user("q")])
"""
    played, engine = await play(text)
    assert [one.signals["exit_code"] for one in played.episodes] == [0]
    assert len(engine.calls) == 1


async def test_half_closed_sockets_and_broken_requests_hold_nobody_up():
    text = """
import socket
kept = []
for data in (b"", b"GET", b"POST /v1/chat/completions HTTP/1.1\\r\\nContent-Length: 99\\r\\n\\r\\n{", b"\\0" * 999):
    s = socket.create_connection(("127.0.0.1", 8000)); s.sendall(data); s.shutdown(socket.SHUT_WR); kept.append(s)
    s = socket.create_connection(("127.0.0.1", 8000)); s.sendall(data); kept.append(s)
chat([user("q")])
"""
    played, _ = await play(text)
    assert [one.signals["exit_code"] for one in played.episodes] == [0]


async def test_a_request_that_is_repeated_because_its_answer_was_lost_is_the_same_turn():
    text = """
import socket
body = json.dumps({"messages": [user("q")]}).encode()
head = "POST /v1/chat/completions HTTP/1.1\\r\\nHost: h\\r\\nAuthorization: Bearer %s\\r\\nContent-Length: %d\\r\\n\\r\\n"
s = socket.create_connection(("127.0.0.1", 8000)); s.sendall((head % (KEY, len(body))).encode() + body); s.close()
status, _ = post("/v1/chat/completions", body)
assert status == 200
"""

    def say_late(prompt, seed):
        """Not before the one that asked has hung up."""
        time.sleep(0.5)
        return "r"

    played, engine = await play(text, say=say_late)
    assert [(one.signals["exit_code"], one.turn) for one in played.episodes] == [(0, 1)]
    assert len(engine.calls) == 1


@pytest.mark.parametrize("text", ["pass", "sys.exit('no model here')", "time.sleep(1000)"])
async def test_one_that_never_asks_is_its_tasks_failure_by_name(text):
    played, _ = await play(text, seconds=2)

    assert played.failure.kind == "data"
    assert "asked for no reply" in played.failure.message


async def test_calls_after_the_last_turn_are_refused_and_what_there_is_is_judged(monkeypatch):
    monkeypatch.setattr(environment, "LEAVE_SECONDS", 100.0)
    text = """
said, refused = [user("q")], 0
while refused < 5:
    status, body = post("/v1/chat/completions", {"messages": said})
    if status == 200: said += [json.loads(body)["choices"][0]["message"], user("on")]
    else: refused += json.loads(body)["error"]["code"] == "turn_limit_reached"
open("refused", "w").write(f"{len(said) // 2} answered, {refused} refused")
"""
    verifier = "raise SystemExit(open('refused').read() != '2 answered, 5 refused')"
    played, engine = await play(text, verifier, max_turns=2)

    (episode,) = played.episodes
    assert (episode.ending, episode.turn, episode.turn_rewards[-1]) == ("turn-limit", 2, 1.0)
    assert len(engine.calls) == 2


async def test_one_that_asks_on_after_its_last_turn_is_ended(monkeypatch):
    monkeypatch.setattr(environment, "LEAVE_SECONDS", 1.0)
    text = """
said = [user("q")]
while True:
    status, body = post("/v1/chat/completions", {"messages": said})
    if status == 200: said += [json.loads(body)["choices"][0]["message"], user("on")]
    else: time.sleep(0.05)  # else its flood is what it is refused for
"""
    played, engine = await play(text, max_turns=2)

    assert [(one.ending, one.turn) for one in played.episodes] == [("turn-limit", 2)]
    assert len(engine.calls) == 2


async def test_hidden_tests_cannot_be_prepared_or_seen():
    text = """
import os
chat([user("q")])
assert not os.path.exists("/tests/test.py")
os.makedirs("/tmp/.logs/verifier"); open("/tmp/.logs/verifier/reward.txt", "w").write("1")
os.symlink("/box", "/tmp/.tests")
os.chmod("/tmp", 0o500)
"""
    played, _ = await play(text, "raise SystemExit(1)")
    (episode,) = played.episodes
    assert (episode.signals["exit_code"], episode.turn_rewards) == (0, (0.0,))


async def test_memory_beyond_its_sandbox_ends_the_agent_and_nothing_else(monkeypatch):
    monkeypatch.setattr(
        environment, "LIMITS", dataclasses.replace(environment.LIMITS, memory_bytes=96 << 20)
    )
    played, _ = await play("chat([user('q')])\nx = [bytearray(1 << 20) for _ in range(4000)]")
    (episode,) = played.episodes
    assert episode.ending in ("agent-memory", "stop")
