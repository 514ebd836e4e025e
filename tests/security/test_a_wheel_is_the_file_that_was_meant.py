"""The attacker's wish: a wheel that is another one when a pod fetches it, or that comes in the clear."""

import hashlib
import zipfile
from functools import partial

import httpx
import pytest

from rollout.errors import SpecError, StoreError
from rollout.objects.coordinator_remote import ServedRemote
from rollout.runs import wheels
from rollout.runs.wheels import place_wheel
from rollout_api.v1alpha1.storage import CodeWheel


@pytest.fixture
def wheel(tmp_path):
    path = tmp_path / "x.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("mine.py", "X = 1")
    return path.read_bytes()


def answer(monkeypatch, pages):
    """The web as a table of address to redirect or content."""
    asked = []

    def handle(request):
        asked.append(str(request.url))
        found = pages[str(request.url)]
        if isinstance(found, str):
            return httpx.Response(302, headers={"Location": found})
        return httpx.Response(200, content=iter([found]))

    made = partial(httpx.Client, transport=httpx.MockTransport(handle))
    monkeypatch.setattr(wheels.httpx, "Client", made)
    return asked


def wanted(uri, content):
    return CodeWheel(uri=uri, digest=f"sha256:{hashlib.sha256(content).hexdigest()}")


def test_a_redirect_leads_to_http(tmp_path, monkeypatch, wheel):
    pages = {"https://a/x.whl": "http://b/x.whl", "http://b/x.whl": wheel}
    asked = answer(monkeypatch, pages)
    with pytest.raises(SpecError, match=r"leads to http://b/x\.whl; expected https://"):
        place_wheel(wanted("https://a/x.whl", wheel), tmp_path / "code")
    assert asked == ["https://a/x.whl"]


def test_a_redirect_leads_round_and_round(tmp_path, monkeypatch, wheel):
    asked = answer(monkeypatch, {"https://a/x.whl": "https://a/x.whl"})
    with pytest.raises(SpecError, match="more than 5 times"):
        place_wheel(wanted("https://a/x.whl", wheel), tmp_path / "code")
    assert len(asked) == 6


def test_a_redirect_within_https_is_followed(tmp_path, monkeypatch, wheel):
    answer(monkeypatch, {"https://a/x.whl": "https://b/x.whl", "https://b/x.whl": wheel})
    place_wheel(wanted("https://a/x.whl", wheel), tmp_path / "code")
    assert (tmp_path / "code" / "mine.py").exists()


def test_a_wheel_has_no_digest(tmp_path, monkeypatch, wheel):
    answer(monkeypatch, {"https://a/x.whl": wheel})
    with pytest.raises(SpecError, match=r"spec\.code\.wheel\.digest: .* it is blake3:"):
        place_wheel(CodeWheel(uri="https://a/x.whl"), tmp_path / "code")
    assert not (tmp_path / "code").exists()


def test_objects_come_from_whoever_answers():
    with pytest.raises(StoreError, match="must say what it is known by"):
        ServedRemote("https://coordinator:8443", lambda: "token")
