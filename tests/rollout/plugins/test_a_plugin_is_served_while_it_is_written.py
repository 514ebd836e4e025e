"""``rollout plugins serve``: each version that comes up takes the address, one that does not leaves the one before there."""

import os
import signal
import subprocess
import sys

import grpc
import psutil
import pytest
from plugin_kit import write

from rollout.errors import SpecError
from rollout.plugins.sidecar.client import CHANNEL, DEATHS_MAX, SCORE
from rollout.plugins.sidecar.contract import plugin_pb2 as contract
from rollout.plugins.sidecar.serving_folder import PluginServer

pytestmark = pytest.mark.process


def body(value):
    return f"serve(reward=lambda p, c, r: [{value}] * len(c))"


def score(link):
    """What whoever calls the address gets."""
    with grpc.insecure_channel(f"unix:{link}", options=CHANNEL) as channel:
        method = channel.unary_unary(
            SCORE.path,
            request_serializer=lambda frame: frame.SerializeToString(),
            response_deserializer=SCORE.answer.FromString,
        )
        request = contract.ScoreRequest(samples=[contract.Sample(row_json="{}")])
        return method(request, timeout=60, wait_for_ready=True).scores[0].value


@pytest.fixture
def folder(tmp_path):
    return write(tmp_path / "plugin", body(1.0))


@pytest.fixture
def link(tmp_path_factory):
    return tmp_path_factory.mktemp("s") / "socket"


@pytest.fixture
def server(folder, link):
    made = PluginServer(folder, {}, link)
    yield made
    made.close()
    assert not link.is_symlink()


def pids(server):
    keeper = psutil.Process(server._client.pid)
    return [keeper, *keeper.children(recursive=True)]


def test_a_changed_version_takes_the_place_of_the_one_before_which_ends(server, folder, link):
    assert f"serves at unix:{link}" in server.refresh()
    assert score(link) == 1.0
    before = pids(server)
    assert server.refresh() is None

    write(folder, body(22.0))
    assert "plugin tried 1.0.0 (blake3:" in server.refresh()
    assert score(link) == 22.0
    assert not psutil.wait_procs(before, timeout=30)[1]


BROKEN = {
    "does not start": ("plugin.py", "raise RuntimeError('half')", "half"),
    "no manifest": ("plugin.yaml", "contract: [", "cannot be read"),
    "another contract": ("plugin.yaml", "{contract: 9, name: tried, version: '1'}", "kind"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_version_that_does_not_come_up_leaves_the_one_before(name, server, folder, link):
    server.refresh()
    file, text, why = BROKEN[name]
    (folder / file).write_text(text)
    told = server.refresh()

    assert why in told
    assert "the version before goes on" in told
    assert score(link) == 1.0
    assert server.refresh() is None


def test_one_that_is_killed_is_started_again_and_one_that_goes_on_ending_is_left(
    server, folder, link
):
    server.refresh()
    told = []
    for _ in range(DEATHS_MAX):
        processes = pids(server)
        processes[-1].kill()
        psutil.wait_procs(processes, timeout=30)
        told.append(server.refresh())

    assert told[:-1] == ["plugin tried 1.0.0 had ended, and was started again"] * (DEATHS_MAX - 1)
    assert "started again once its files have changed" in told[-1]
    assert server.refresh() is None
    write(folder, body(3.0))
    server.refresh()
    assert score(link) == 3.0


def test_an_address_that_is_taken_or_too_long_is_refused(folder, tmp_path):
    taken = tmp_path / "taken"
    taken.write_text("mine")
    with pytest.raises(SpecError, match="no link of ours"):
        PluginServer(folder, {}, taken)
    with pytest.raises(SpecError, match="at most 100 characters"):
        PluginServer(folder, {}, tmp_path / ("x" * 120))
    assert taken.read_text() == "mine"


def test_the_command_serves_until_it_is_told_to_end(folder, link):
    words = [sys.executable, "-m", "rollout", "plugins", "serve", folder, "--socket", link]
    asked = subprocess.Popen(words, stdout=subprocess.PIPE, env={**os.environ, "NO_COLOR": "1"})
    assert b"serves at unix:" in asked.stdout.readline()
    started = psutil.Process(asked.pid).children(recursive=True)
    assert score(link) == 1.0
    asked.send_signal(signal.SIGINT)

    assert asked.wait(60) == 0
    assert not psutil.wait_procs(started, timeout=30)[1]
    assert not link.is_symlink()
    asked.stdout.close()
