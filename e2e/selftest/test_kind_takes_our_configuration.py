"""kind's own code loads and checks the configuration of `make kind`, up to where it needs a daemon; nothing further is proven.

The Docker that it meets here is a program that knows its version and has no image. The refusals without a Docker are in
test_what_cannot_run_here_is_said_plainly.py, in the quick tier.
"""

import subprocess

import pytest

from cluster.docker import kind
from cluster.errors import BuildError
from cluster.skips import or_skip

pytestmark = [pytest.mark.kit, pytest.mark.slow]

DOCKER = """#!/bin/sh
case "$1" in
  -v|--version) echo "Docker version 28.0.0, build 0" ;;
  info) echo '{"CgroupDriver": "systemd", "CgroupVersion": "2", "MemoryLimit": true, "PidsLimit": true}' ;;
  ps) ;;
  *) echo "no image" >&2; exit 1 ;;
esac
"""


@pytest.fixture
def create(tmp_path):
    """What kind says to a configuration; it always fails, at the first thing that is wrong."""
    with or_skip(BuildError):
        binary = kind.binary()
    docker = tmp_path / "bin" / "docker"
    docker.parent.mkdir()
    docker.write_text(DOCKER)
    docker.chmod(0o755)

    def run(text: str) -> str:
        config = tmp_path / "cluster.yaml"
        config.write_text(text)
        done = subprocess.run(
            [binary, "create", "cluster", "--name", "x", "--config", str(config)],
            env={
                "PATH": f"{docker.parent}:/usr/bin:/bin",
                "HOME": str(tmp_path),
                "KUBECONFIG": str(tmp_path / "kubeconfig"),
            },
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode != 0
        return done.stderr

    return run


def test_kind_takes_it_and_goes_on_to_the_image_of_its_nodes(create):
    said = create(kind.CONFIG.read_text())
    assert "Ensuring node image" in said
    assert "failed to pull image" in said


def test_a_field_that_kind_does_not_have_is_refused_by_its_own_code(create):
    said = create(kind.CONFIG.read_text().replace("role: worker", "rolle: worker"))
    assert "field rolle not found in type v1alpha4.Node" in said


def test_a_configuration_without_a_control_plane_is_refused_by_its_own_code(create):
    said = create(kind.CONFIG.read_text().replace("role: control-plane", "role: worker"))
    assert "must have at least one control-plane node" in said
