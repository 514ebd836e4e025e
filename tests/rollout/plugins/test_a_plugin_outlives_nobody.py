"""However the host or the keeper of a plugin ends, the plugin and what it started end, too."""

import contextlib
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest
from plugin_kit import write

pytestmark = pytest.mark.process

PROGRAM = ["sh", "-c", "setsid sleep 600 & exec sleep 600"]
"""A plugin that serves nothing, with a child in a session of its own."""
HOST = """
import os, signal, sys, time
for one in (signal.SIGHUP, signal.SIGQUIT, signal.SIGTERM):
    signal.signal(one, signal.SIG_DFL)  # whoever runs the tests may ignore some (nohup), and hands that on
from pathlib import Path
from rollout.plugins.sidecar.manifest import read_plugin
from rollout.plugins.sidecar.process import PluginProcess

made = PluginProcess(read_plugin(Path(sys.argv[1])))
forked = os.fork() if sys.argv[2:] else 1
if forked:
    print(made.pid, forked, flush=True)
while True:
    made.is_alive
    time.sleep(0.05)
"""
END_SECONDS = 60


def wait_for_tree(keeper):
    """The one that runs the plugin, the plugin, and what that started."""
    until = time.monotonic() + END_SECONDS
    while time.monotonic() < until:
        found = keeper.children(recursive=True)
        if [one.name() for one in found[1:]] == ["sleep", "sleep"]:
            return found
        time.sleep(0.02)
    raise AssertionError(f"the plugin did not start: {found}")


def outliving(processes):
    """Those that do not end; one that nobody has waited for has ended."""
    alive, until = [one for one in processes if not has_ended(one)], time.monotonic() + END_SECONDS
    while alive and time.monotonic() < until:
        time.sleep(0.05)
        alive = [one for one in alive if not has_ended(one)]
    return alive


def has_ended(process):
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


class Hosted:
    """A host in a process group of its own, its plugin, and both of the plugin's keepers."""

    def __init__(self, folder, *words):
        write(folder, "", command=PROGRAM)
        self.host = subprocess.Popen(
            [sys.executable, "-c", HOST, folder, *words],
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        pid, forked = map(int, self.host.stdout.readline().split())
        self.forked = forked
        self.keeper = psutil.Process(pid)
        self.runner, *self.plugins = wait_for_tree(self.keeper)

    def left(self):
        """What of the plugin is alive once there was time to end."""
        return outliving([self.keeper, self.runner, *self.plugins])

    def close(self):
        self.host.kill()
        self.host.wait()
        self.host.stdout.close()
        for one in (self.keeper, self.runner, *self.plugins):
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()


@pytest.fixture
def hosted(tmp_path):
    made = Hosted(tmp_path / "plugin")
    yield made
    made.close()


@pytest.mark.parametrize("number", ["SIGKILL", "SIGTERM", "SIGHUP", "SIGQUIT"])
def test_a_signal_to_the_whole_group_of_the_host(number, hosted):
    os.killpg(hosted.host.pid, signal.Signals[number])
    hosted.host.wait()

    assert not hosted.left()


def test_the_outer_keeper_is_killed_and_then_the_host(hosted):
    hosted.keeper.kill()
    hosted.host.kill()

    assert not hosted.left()


@pytest.mark.parametrize("which", ["keeper", "runner"])
def test_a_keeper_is_told_to_end(which, hosted):
    getattr(hosted, which).terminate()

    assert not hosted.left()


def test_the_inner_keeper_is_killed(hosted):
    hosted.runner.kill()

    assert not hosted.left()


def test_both_keepers_are_killed_and_the_kernel_ends_the_plugin(hosted):
    plugin = next(one for one in hosted.plugins if one.ppid() == hosted.runner.pid)
    hosted.keeper.suspend()
    hosted.runner.kill()
    hosted.keeper.kill()

    assert not outliving([plugin])


def test_a_child_that_the_host_forked_holds_the_line_open(tmp_path):
    hosted = Hosted(tmp_path / "plugin", "fork")
    try:
        hosted.host.kill()
        assert psutil.pid_exists(hosted.forked)
        assert not hosted.left()
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(hosted.forked, signal.SIGKILL)
        hosted.close()
