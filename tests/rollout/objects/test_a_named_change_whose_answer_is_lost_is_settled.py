"""Named objects behind a network that fails: a change is reported done where it is done, and refused where it is not."""

import logging
import re
from dataclasses import dataclass

import objects_kit as kit
import pytest

from rollout.errors import PlaceUnreachable, PreconditionFailed, StoreError
from rollout.objects.named.contract import NamedObjects
from rollout.objects.places import open_named

MAX = 1 << 20
ERRORS = [(500, "InternalError"), (503, "SlowDown"), (429, "TooMany")]


@dataclass
class Behind:
    """``objects`` go through the proxy, ``direct`` past it. ``put`` is the method that stores.

    ``verifies``: the server looks at signatures, so that it refuses what was changed on the way.
    """

    objects: NamedObjects
    direct: NamedObjects
    proxy: kit.Proxy
    put: str
    verifies: bool


@pytest.fixture(params=kit.SERVERS)
def behind(request, new_bucket):
    made = new_bucket(request.param)
    uri = f"{made.uri}/team"
    with kit.proxy_before(made.endpoint) as proxy:
        yield Behind(
            objects=open_named(uri, endpoint=proxy.url, patience=kit.QUICK),
            direct=open_named(uri, endpoint=made.endpoint),
            proxy=proxy,
            put="POST" if made.scheme == "gs" else "PUT",
            verifies=request.param == "versitygw",
        )


@pytest.mark.parametrize(("status", "code"), ERRORS)
def test_a_server_in_trouble_is_asked_again(behind, status, code):
    for method in (behind.put, "GET", "DELETE"):
        behind.proxy.next(kit.says(status, code), method, times=2)
    tag = behind.objects.create("x", b"one")
    assert behind.objects.get("x", MAX).data == b"one"
    behind.objects.delete("x", tag)
    assert behind.direct.get("x", MAX) is None
    assert behind.proxy.faults == []


def test_a_creation_whose_answer_is_lost_is_known_to_be_ours(behind):
    behind.proxy.next(kit.answer_lost, behind.put)
    tag = behind.objects.create("x", b"one")
    assert behind.direct.get("x", MAX).tag == tag


def test_a_replacement_whose_answer_is_lost_is_known_to_be_ours(behind):
    first = behind.objects.create("x", b"one")
    behind.proxy.next(kit.answer_lost, behind.put)
    second = behind.objects.replace("x", b"two", first)
    found = behind.direct.get("x", MAX)
    assert (found.data, found.tag) == (b"two", second)


def test_anothers_equal_bytes_are_not_taken_for_ours(behind):
    def meanwhile(asked, pass_on):
        behind.direct.create("x", b"same")

    behind.proxy.next(meanwhile, behind.put)
    with pytest.raises(PreconditionFailed):
        behind.objects.create("x", b"same")


def test_a_deletion_whose_answer_is_lost_is_done(behind):
    tag = behind.objects.create("x", b"one")
    behind.proxy.next(kit.answer_lost, "DELETE")
    behind.objects.delete("x", tag)
    assert behind.direct.get("x", MAX) is None


def test_a_creation_that_meets_another_writers_is_refused_and_leaves_it(behind):
    def meanwhile(asked, pass_on):
        behind.direct.create("x", b"theirs")
        return pass_on()

    behind.proxy.next(meanwhile, behind.put)
    with pytest.raises(PreconditionFailed):
        behind.objects.create("x", b"ours")
    assert behind.direct.get("x", MAX).data == b"theirs"


@pytest.mark.parametrize("fault", [kit.cut, kit.truncated, kit.wrong_bytes])
def test_an_answer_that_breaks_is_read_again(behind, fault):
    behind.objects.create("x", bytes(range(256)) * 300)
    behind.proxy.next(fault, "GET")
    assert behind.objects.get("x", MAX).data == bytes(range(256)) * 300
    assert behind.proxy.faults == []


def test_a_list_goes_on_after_trouble(behind):
    behind.objects.create("x", b"one")
    behind.proxy.next(kit.says(503, "SlowDown"), "GET", times=2)
    behind.proxy.next(kit.truncated, "GET")
    assert [one.name for one in behind.objects.entries()] == ["x"]
    assert behind.proxy.faults == []


def test_trouble_that_does_not_end_names_object_place_and_reason(behind):
    behind.proxy.next(kit.says(503, "SlowDown"), behind.put, times=50)
    with pytest.raises(
        StoreError, match=r"cannot write object x in (s3|gs)://.*4 tries failed.*503"
    ):
        behind.objects.create("x", b"one")
    assert behind.direct.get("x", MAX) is None


@pytest.mark.parametrize("status", [401, 403])
def test_refused_credentials_are_not_tried_again_and_never_told(behind, status, caplog):
    caplog.set_level(logging.INFO)
    behind.proxy.next(kit.says(status, "AccessDenied"), behind.put, times=5)
    with pytest.raises(StoreError, match="see the credentials") as caught:
        behind.objects.create("x", b"one")
    assert len(behind.proxy.seen) == 1
    told = f"{caught.value} {caught.value.__cause__} {caplog.text}"
    assert not re.search(r"secret|AKIA", told)


def test_a_server_that_does_not_keep_conditions_is_refused(behind):
    def ignore(asked, pass_on):
        asked.path = re.sub(r"ifGenerationMatch=\d+", "", asked.path)
        asked.headers = {
            name: value
            for name, value in asked.headers.items()
            if name.lower() not in {"if-match", "if-none-match"}
        }
        return pass_on()

    for method in (behind.put, "DELETE"):
        behind.proxy.next(ignore, method, times=50)
    said = "SignatureDoesNotMatch" if behind.verifies else "does not keep the conditions of writes"
    with pytest.raises(PlaceUnreachable, match=said):
        behind.objects.require()
    assert list(behind.direct.entries()) == []


def test_a_place_that_cannot_be_written_is_named_at_once(behind):
    behind.proxy.next(kit.says(403, "AccessDenied"), behind.put, times=5)
    with pytest.raises(PlaceUnreachable, match=r"(s3|gs)://.*see the credentials"):
        behind.objects.require()
