"""The API server is killed and started again, stands still, loses its store: the operator goes on by itself."""

import time

import pytest
from operators import eventually, operating
from stage import World

from cluster.control.ports import find_free_port
from runs import build_run

pytestmark = pytest.mark.process

RUNS = ("a", "b", "c")
STILL_SECONDS = 20.0
AWAY_SECONDS = 5.0


@pytest.fixture
def local(control_plane):
    if control_plane.local is None:
        pytest.skip("the processes of this cluster are not ours to kill")
    return control_plane.local.control_plane


def end_api_server(local):
    local.kill_api_server()
    time.sleep(AWAY_SECONDS)
    local.start_api_server()
    local.restart_controllers()


def pause_api_server(local):
    local.pause_api_server()
    time.sleep(STILL_SECONDS)
    local.resume_api_server()


def end_store(local):
    local.kill_store()
    time.sleep(AWAY_SECONDS)
    local.start_store()


@pytest.mark.parametrize(
    "happens",
    [
        end_api_server,
        pytest.param(pause_api_server, marks=pytest.mark.slow),
        pytest.param(end_store, marks=pytest.mark.slow),
    ],
)
def test_runs_that_are_being_made_are_made(happens, local, bare, puppets, tmp_path):
    """Quick: the first; of a server that stands still, tests/rollout_operator/kube/test_a_watch_never_dies_silently.py."""
    with operating(bare.kubeconfig, find_free_port(), tmp_path / "log") as operator:
        world = World(kubectl=bare, puppets=puppets, operator=operator)
        world.apply("before")
        world.wait_for("Ready", "True", "Running", "before")
        bare.apply(*(build_run(name) for name in RUNS))
        happens(local)
        eventually(lambda: bare.attempt("get", "namespaces").returncode == 0, "no API server")
        for name in RUNS:
            world.wait_for("Ready", "True", "Running", name)
        world.patch({"suspend": True}, "before")
        world.wait_for("Suspended", "True", "Suspended", "before")
        assert operator.process.poll() is None
        eventually(operator.is_ready, "the operator is not ready any more")


def test_an_operator_that_starts_before_its_api_server_waits_for_it(local, bare, puppets, tmp_path):
    bare.apply(build_run("early"))
    local.kill_api_server()
    with operating(bare.kubeconfig, find_free_port(), tmp_path / "log", wait=False) as operator:
        time.sleep(AWAY_SECONDS)
        assert operator.process.poll() is None
        assert not operator.is_ready()
        local.start_api_server()
        local.restart_controllers()
        eventually(operator.is_ready, "the operator was not ready")
        world = World(kubectl=bare, puppets=puppets, operator=operator)
        world.wait_for("Ready", "True", "Running", "early")
