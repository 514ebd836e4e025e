"""An event whose beginning tells of a known version is not parsed; every other one is."""

import json

import pytest

from rollout_operator.kube.echoes import nothing_is_echo, read_event

META = {"name": "run-a", "namespace": "n", "uid": "u-1", "resourceVersion": "7", "labels": {}}


def event(kind="MODIFIED", **meta):
    live = {"kind": "Role", "apiVersion": "rbac.authorization.k8s.io/v1"}
    live["metadata"] = META | meta
    return {"type": kind, "object": live}


def read(told, known=("u-1", 7)):
    line = json.dumps(told, separators=(",", ":")).encode()
    return read_event(line, lambda *found: found == known)


@pytest.mark.parametrize("kind", ["ADDED", "MODIFIED"])
def test_an_echo_becomes_a_bookmark_of_its_version(kind):
    told = read(event(kind))
    assert told == {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "7"}}}


@pytest.mark.parametrize(
    "told",
    [
        event(resourceVersion="8"),
        event(uid="u-2"),
        event("DELETED"),
        {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "7"}}},
        {"type": "ERROR", "object": {"code": 410}},
    ],
)
def test_everything_else_is_read_whole(told):
    assert read(told) == told


def test_metadata_in_another_order_is_read_whole():
    told = event()
    told["object"]["metadata"] = dict(reversed(META.items()))
    assert read(told) == told


def test_a_reader_of_what_others_write_reads_everything():
    line = json.dumps(event(), separators=(",", ":")).encode()
    assert read_event(line, nothing_is_echo) == event()


def test_what_is_no_json_is_told():
    with pytest.raises(ValueError):
        read_event(b'{"type":"MODIFIED","obj', nothing_is_echo)
