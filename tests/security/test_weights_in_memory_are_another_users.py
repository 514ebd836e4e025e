"""The attacker is another user of the machine, who wants the weights that an actor keeps in memory: to read, change or cut them."""

import os
import subprocess

import pytest

from rollout.weights.mirrors.memory import MemoryFile

NOBODY = 65534

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="this is somebody already")


@pytest.mark.parametrize(
    "wish",
    ["cat {0}", "truncate -s 0 {0}", "echo x > {0}", "dd if={0} of=/dev/null", "ls {1}"],
)
def test_they_are_opened_by_their_own_user_alone(tmp_path, wish):
    (tmp_path / "weights").write_bytes(bytes(1 << 16))
    file = MemoryFile(tmp_path / "weights", lambda: 1 << 40)
    command = ["/bin/sh", "-c", wish.format(file.path, file.path.parent)]

    tried = subprocess.run(
        command,
        user=NOBODY,
        group=NOBODY,
        extra_groups=[],
        capture_output=True,
        text=True,
        check=False,
    )

    assert tried.returncode != 0
    assert "denied" in tried.stderr.lower()
    assert file.path.read_bytes() == bytes(1 << 16)
    file.close()
