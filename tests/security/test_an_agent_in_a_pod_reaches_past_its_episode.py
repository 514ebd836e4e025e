"""The attacker is an agent in a sandbox pod, which has a network: it goes for other episodes, the coordinator, the metadata and the API server.

It asks with every kind of socket, changes an address while it is looked at, floods its endpoint with connections, and
prepares the folders of its judge.
"""

import asyncio
import sys
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "rollout" / "actor"))
from agent_programs import agent, play_agent
from boxed_pods import LOOPBACK

from rollout.tools.sandbox import chosen
from rollout.tools.sandbox.agent_sandbox import AgentCommand
from rollout.tools.sandbox.pods.doorway import JOINED_MAX

pytestmark = [pytest.mark.timeout(180), pytest.mark.usefixtures("sandbox_pods")]


async def play(text, verifier=None, **settings):
    played, engine = await play_agent(agent(text, verifier, **settings), lambda prompt, seed: "r")
    return played, engine


@asynccontextmanager
async def neighbour():
    """Somebody who listens where an agent must not come, and who has heard what."""
    heard = []

    async def hear(reader, writer):
        heard.append(await reader.read(10))
        writer.close()

    server = await asyncio.start_server(hear, LOOPBACK, 0)
    async with server:
        yield server.sockets[0].getsockname()[1], heard


async def test_no_socket_and_no_address_leads_anywhere_but_to_its_endpoint(sandbox_pods):
    async with neighbour() as (port, heard):
        text = f"""
import ctypes, errno, select, socket, struct
chat([user("q")])
ports = {{{port}, *[{port} + n for n in range(1, 5)], 8001, 443, 80}}
hosts = ("127.0.0.1", "127.0.0.2", "0.0.0.0", "169.254.169.254", "10.96.0.1", "8.8.8.8", "::1", "::", "::ffff:127.0.0.1", "fd00::1")
for host in hosts:
    for port in ports | ({{8000}} if host in ("127.0.0.2", "0.0.0.0", "::") else set()):
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        for nonblocking in (False, True):
            with socket.socket(family) as one:
                one.setblocking(not nonblocking)
                assert one.connect_ex((host, port)) in (errno.ECONNREFUSED, errno.EINVAL), (host, port)
for family in (socket.AF_INET, socket.AF_INET6):
    for kind in (socket.SOCK_DGRAM, socket.SOCK_RAW, socket.SOCK_SEQPACKET):
        try: socket.socket(family, kind)
        except OSError: pass
        else: sys.exit("made %s %s" % (family, kind))
one = socket.create_connection(("127.0.0.1", 8000))
for call in (lambda: one.connect(("8.8.8.8", 53)), lambda: one.sendto(b"x", socket.MSG_FASTOPEN, ("8.8.8.8", 53)),
             lambda: one.bind(("0.0.0.0", 0))):
    try: call()
    except OSError: pass
    else: sys.exit("led elsewhere")
assert socket.socket(fileno=os.dup(one.fileno())).family == socket.AF_UNIX  # whatever it was asked for as
try: socket.getaddrinfo("example.org", 80)
except OSError: pass
else: sys.exit("a name was found")
"""
        played, _ = await play(text)
        assert [one.signals.get("exit_code") for one in played.episodes] == [0], played.failure
    assert heard == []


async def test_an_address_that_is_changed_while_it_is_looked_at_leads_nowhere_else():
    async with neighbour() as (port, heard):
        text = f"""
import ctypes, socket, struct, threading
chat([user("q")])
libc = ctypes.CDLL(None, use_errno=True)
good = struct.pack("=H", socket.AF_INET) + struct.pack("!H4s8x", 8000, socket.inet_aton("127.0.0.1"))
bad = struct.pack("=H", socket.AF_INET) + struct.pack("!H4s8x", {port}, socket.inet_aton("127.0.0.1"))
local = struct.pack("=H", socket.AF_UNIX) + good[2:]
place = ctypes.create_string_buffer(good, 16)
over = False
def flip():
    while not over:
        for one in (bad, good, bad, local): ctypes.memmove(place, one, 16)
thread = threading.Thread(target=flip); thread.start()
for _ in range(150):
    with socket.socket() as one:
        if libc.connect(one.fileno(), place, 16) == 0:
            os.write(one.fileno(), b"hello")
over = True; thread.join()
"""
        played, _ = await play(text)
        assert [one.signals.get("exit_code") for one in played.episodes] == [0], played.failure
    assert heard == []


async def test_calls_that_make_no_sense_end_nothing_but_themselves():
    text = """
import ctypes, socket
libc = ctypes.CDLL(None, use_errno=True)
libc.connect.argtypes = [ctypes.c_ulong, ctypes.c_ulong, ctypes.c_ulong]
for arguments in ((99, 0, 16), (2**40, 2**63, 2**63), (0, 2**64 - 1, 2**64 - 1), (5, 8, 1), (1, 0, 0)):
    assert libc.connect(*arguments) == -1
chat([user("q")])
"""
    played, engine = await play(text)
    assert [one.signals.get("exit_code") for one in played.episodes] == [0], played.failure
    assert len(engine.calls) == 1


async def test_more_connections_than_are_carried_are_refused_and_those_that_end_make_room():
    text = f"""
import socket
kept = [socket.create_connection(("127.0.0.1", 8000)) for _ in range({JOINED_MAX})]
try: socket.create_connection(("127.0.0.1", 8000))
except ConnectionRefusedError: pass
else: sys.exit("one too many")
for one in kept: one.close()
until = time.monotonic() + 30
while True:
    try: chat([user("q")])
    except OSError:
        if time.monotonic() > until: raise
        time.sleep(0.05)
    else: break
"""
    played, _ = await play(text)
    assert [one.signals.get("exit_code") for one in played.episodes] == [0], played.failure


async def test_two_agents_have_a_door_each():
    one, other = [await chosen.open_for_agent(chosen_limits()) for _ in range(2)]
    look = "import socket; s = socket.create_connection(('127.0.0.1', 8000)); print(s.recv(9).decode())"
    try:
        for name, sandbox in (("one", one), ("other", other)):
            await sandbox.door.serve(lambda name=name: Greeting(name))
        for name, sandbox in (("one", one), ("other", other)):
            command = AgentCommand(
                argv=("python3", "-c", look), seconds=20.0, processor_seconds=20.0
            )
            result, _ = await sandbox.run(command)
            assert result.stdout.head.decode().strip() == name, result
    finally:
        await one.close()
        await other.close()


class Greeting(asyncio.Protocol):
    """Says a name."""

    def __init__(self, name):
        self._name = name

    def connection_made(self, transport):
        transport.write(self._name.encode())
        transport.close()


def chosen_limits():
    from rollout.environments.agents.environment import LIMITS

    return LIMITS


async def test_what_it_leaves_in_its_judges_folders_is_out_of_sight():
    text = """
chat([user("q")])
os.makedirs("/logs/verifier"); open("/logs/verifier/reward.txt", "w").write("1")
os.symlink("/box", "/tests/row.json")
open("/tests/conftest.py", "w").write("raise SystemExit(0)")
place = "/tests/deep"
os.mkdir(place); os.chdir(place)
for _ in range(3000): os.mkdir("d"); os.chdir("d")
os.chmod("/tests/deep", 0)
"""
    verifier = """
import os
seen = sorted(name for name in os.listdir("/tests") if not name.startswith("."))
open("/logs/verifier/reward.txt", "w").write("0.5" if seen == ["row.json", "test.py"] and not os.path.islink("/tests/row.json") else "0")
"""
    played, _ = await play(text, verifier)
    assert [one.turn_rewards for one in played.episodes] == [(0.5,)], played.failure
