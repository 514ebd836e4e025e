"""``ROLLOUT_METRICS_PORT``: where the coordinator of a run of this machine listens, for who scrapes it; a wrong one is refused by name."""

import socket

import pytest

from rollout.errors import SpecError
from rollout.supervisor.ports import METRICS_PORT_VARIABLE, read_metrics_port, reserved_port


@pytest.mark.parametrize("given", ["0", "65536", "-1", "9e3", "٣", "9400 ", "1" * 5000])
def test_what_is_no_port_is_refused_by_name(given):
    with pytest.raises(SpecError, match=f"{METRICS_PORT_VARIABLE} is .*; write a port"):
        read_metrics_port({METRICS_PORT_VARIABLE: given})


def test_who_asks_for_none_is_given_a_free_one():
    assert read_metrics_port({}) == read_metrics_port({METRICS_PORT_VARIABLE: ""}) == 0
    with reserved_port() as one, reserved_port() as other:
        assert one != other


def test_the_runs_of_one_file_have_it_in_turn():
    with reserved_port() as free:
        pass
    for _ in range(2):
        with reserved_port(read_metrics_port({METRICS_PORT_VARIABLE: str(free)})) as port:
            assert port == free
            meet_at(port)


def meet_at(port):
    """A server listens there, is asked, and ends first, as a coordinator does: its side of the connection lingers."""
    with socket.create_server(("127.0.0.1", port)) as listening:
        client = socket.create_connection(("127.0.0.1", port))
        served, _ = listening.accept()
        served.close()
        client.close()


def test_a_port_of_somebody_elses_is_named():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with (
            pytest.raises(SpecError, match=f"{METRICS_PORT_VARIABLE} is {port}"),
            reserved_port(port),
        ):
            pass
