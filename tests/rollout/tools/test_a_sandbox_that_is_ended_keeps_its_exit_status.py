"""Who ends a child that asyncio waits for leaves the exit status to asyncio."""

import asyncio
import signal
import subprocess

import pytest

from rollout.common.child_processes import kill_unread

pytestmark = pytest.mark.process


async def test_the_exit_status_is_read_by_who_waits_alone(monkeypatch):
    child = await asyncio.create_subprocess_exec("sleep", "60")

    def poll(_):
        raise AssertionError("the exit status was taken")

    monkeypatch.setattr(subprocess.Popen, "poll", poll)
    kill_unread(child)
    assert await child.wait() == -signal.SIGKILL
    kill_unread(child)
