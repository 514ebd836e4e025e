"""``code.wheel``: fetched, compared with its digest, unpacked without its dependencies."""

import hashlib
import importlib.util
import zipfile

import pytest

from rollout.entrypoints.prepare import place_code
from rollout.errors import PlaceUnreachable, SpecError
from rollout.runs import wheels
from rollout.runs.wheels import place_wheel
from rollout_api.v1alpha1.storage import CodeWheel
from rollout_api.worker import Layout, RunIdentity, WorkerOrder


@pytest.fixture
def wheel(tmp_path):
    path = tmp_path / "my_rewards-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("my_rewards/__init__.py", "def brevity(*_):\n    return [1.0]\n")
        archive.writestr("my_rewards-1.0.dist-info/METADATA", "Requires-Dist: torch")
    return path


def digest_of(path):
    return f"sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}"


def test_its_modules_can_be_imported_from_the_folder(wheel, tmp_path):
    folder = tmp_path / "run" / "code"
    digest = place_wheel(CodeWheel(uri=f"file://{wheel}", digest=digest_of(wheel)), folder)
    assert digest.startswith("blake3:")
    path = folder / "my_rewards" / "__init__.py"
    spec = importlib.util.spec_from_file_location("my_rewards", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.brevity() == [1.0]


def test_a_second_start_replaces_what_the_first_has_unpacked(wheel, tmp_path):
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "old.py").write_text("")
    first = place_wheel(CodeWheel(uri=f"file://{wheel}", digest=digest_of(wheel)), folder)
    assert place_wheel(CodeWheel(uri=f"file://{wheel}", digest=first), folder) == first
    assert not (folder / "old.py").exists()
    assert not list(tmp_path.glob(".code*"))


def test_digests_are_by_blake3_or_sha256(wheel, tmp_path):
    right = f"sha256:{hashlib.sha256(wheel.read_bytes()).hexdigest()}"
    place_wheel(CodeWheel(uri=f"file://{wheel}", digest=right), tmp_path / "code")
    with pytest.raises(SpecError, match=r"spec.code.wheel.digest: .* expected sha256:0000"):
        wrong = CodeWheel(uri=f"file://{wheel}", digest="sha256:" + "0" * 64)
        place_wheel(wrong, tmp_path / "other")
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize(
    ("uri", "words"),
    [
        ("file:///nowhere/x.whl", "No such file"),
        ("ftp://example/x.whl", "expected https://"),
    ],
)
def test_a_wheel_that_is_not_there_is_named(uri, words, tmp_path):
    with pytest.raises(SpecError, match=words):
        place_wheel(CodeWheel(uri=uri), tmp_path / "code")


def test_a_server_that_does_not_answer_is_tried_again_by_the_pod(tmp_path):
    with pytest.raises(PlaceUnreachable, match="ConnectError"):
        place_wheel(CodeWheel(uri="https://127.0.0.1:1/x.whl"), tmp_path / "code")


def test_what_is_no_wheel_or_too_large_is_refused(wheel, tmp_path, monkeypatch):
    other = tmp_path / "x.whl"
    other.write_text("text")
    with pytest.raises(SpecError, match="is no wheel"):
        place_wheel(CodeWheel(uri=f"file://{other}", digest=digest_of(other)), tmp_path / "code")
    monkeypatch.setattr(wheels, "BYTES_MAX", 10)
    with pytest.raises(SpecError, match="has more than"):
        place_wheel(CodeWheel(uri=f"file://{wheel}"), tmp_path / "code")


def test_a_wheel_without_a_file_is_refused_by_name(tmp_path):
    empty = tmp_path / "empty.whl"
    with zipfile.ZipFile(empty, "w"):
        pass
    with pytest.raises(SpecError, match=r"spec.code.wheel.uri: .*empty.whl holds no file"):
        place_wheel(CodeWheel(uri=f"file://{empty}", digest=digest_of(empty)), tmp_path / "code")


@pytest.mark.parametrize(("role", "place"), [("actor", "run"), ("coordinator", "wheel")])
def test_a_pod_works_with_the_folder_in_the_wheels_place(wheel, tmp_path, role, place):
    """The coordinator's lies where the container that runs its code reads it."""
    spec = {
        "model": {"uri": "rollout://tiny-adder"},
        "code": {"wheel": {"uri": f"file://{wheel}", "digest": digest_of(wheel)}},
        "train": {
            "algorithm": {"grpo": {"promptsPerStep": 2, "groupSize": 2}},
            "environment": {"builtin": {"name": "arithmetic"}},
            "rewards": [{"python": {"module": "my_rewards", "function": "brevity"}}],
        },
    }
    layout = Layout(
        run_dir=str(tmp_path / "run"),
        wheel_dir=str(tmp_path / "wheel"),
        coordinator_url="http://127.0.0.1:1",
        token_file="t",
        objects_dir="o",
        ledger_path="l",
    )
    order = WorkerOrder.model_validate(
        {"run": RunIdentity(name="r", uid="u"), "spec": spec, "layout": layout}
    )
    placed, digest = place_code(order, role)
    assert digest is not None
    assert placed.spec.code.path == str(tmp_path / place / "code")
    assert (tmp_path / place / "code" / "my_rewards").is_dir()
