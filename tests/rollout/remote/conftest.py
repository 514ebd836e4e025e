"""A real sshd on loopback for each test that asks for one."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from sshd_kit import Sshd, find_sshd, why_not_here


@pytest.fixture(scope="session")
def sshd_program():
    """An sshd that can be started here; elsewhere the test is skipped, and says why."""
    if why := why_not_here():
        pytest.skip(why)
    return find_sshd()


@pytest.fixture
def far(sshd_program, tmp_path, monkeypatch):
    """A host by the name `far`, which our ssh client knows and is let in to; it ends with the test."""
    with Sshd(sshd_program, tmp_path / "far") as server:
        monkeypatch.setenv("ROLLOUT_SSH_CONFIG", str(server.client))
        yield server
