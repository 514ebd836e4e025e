"""Settings for all tests: hypothesis judges results, never the clock of a busy machine."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "rollout", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)
settings.load_profile("rollout")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell has its background jobs ignore Ctrl-C, and so would every process that a test starts.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def warm_starts():
    """A test that starts runs in its own process has what they start forked (``warm.py``)."""
    from warm import forking_here

    with forking_here():
        yield


@pytest.fixture(scope="session")
def sandbox_host():
    """What sandboxes need of this machine, installed where this process may; a machine that cannot says why."""
    from cluster import packages
    from rollout.tools.sandbox.contract import NoSandbox
    from rollout.tools.sandbox.host import Host

    packages.ensure(packages.SANDBOXES)
    try:
        return Host.find()
    except NoSandbox as missing:
        pytest.skip(str(missing))


@pytest.fixture(scope="session")
def packages_beside():
    """Packages of the registry in a folder of their own that sandboxes see, kept between sessions; none is ours."""

    def install(requirement: str, python: str) -> Path:
        folder = Path("/usr/local/lib/rollout-test-packages", requirement)
        if not (folder / ".whole").exists():
            folder.mkdir(parents=True, exist_ok=True)
            pip = [python, "-m", "pip", "install", "-q", "--upgrade", "--target", str(folder)]
            done = subprocess.run(
                [*pip, requirement], capture_output=True, text=True, timeout=600, check=False
            )
            if done.returncode:
                pytest.skip(f"{requirement} cannot be had: {done.stderr[-200:]}")
            (folder / ".whole").touch()
        return folder

    return install
