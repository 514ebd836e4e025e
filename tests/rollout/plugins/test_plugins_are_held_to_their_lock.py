"""``rollout plugins lock``: what was locked runs, what has changed since is named, and a broken lock is no lock."""

import json

import pytest
from plugin_kit import ECHO, write
from typer.testing import CliRunner

from rollout.cli.main import app
from rollout.errors import SpecError
from rollout.plugins.sidecar.lock import LOCK, find_plugin_folders, lock_folder, read_lock
from rollout.plugins.sidecar.manifest import folder_digest
from rollout.plugins.sidecar.named import plugin_digests
from rollout_api.v1alpha1.run import RolloutRunSpec

REWARDS = [{"plugin": {"path": "marks"}}, {"plugin": {"path": "more/deep"}}]
SPEC = RolloutRunSpec.model_validate(
    {
        "model": {"uri": "rollout://tiny-agent"},
        "code": {"path": "code"},
        "train": {"algorithm": {"grpo": {}}, "rewards": REWARDS, "maxSteps": 1},
    }
)


def called(*words):
    return CliRunner().invoke(app, ["plugins", *map(str, words)])


@pytest.fixture
def code(tmp_path):
    folder = tmp_path / "code"
    write(folder / "marks", ECHO)
    write(folder / "more" / "deep", ECHO)
    return folder


def digests(code):
    return plugin_digests(SPEC, [code])


def test_what_was_locked_runs_and_is_written_once_as_one_line_a_plugin(code):
    before = digests(code)
    assert called("lock", code).exit_code == 0
    text = (code / LOCK).read_text()

    assert digests(code) == before == {one: folder_digest(code / one) for one in before}
    assert [one.path for one in read_lock(code).plugins] == ["marks", "more/deep"]
    assert sum(line.startswith("- ") for line in text.splitlines()) == 2
    assert called("lock", code).exit_code == 0
    assert (code / LOCK).read_text() == text
    assert called("lock", code, "--check").exit_code == 0


def change_bytes(code):
    (code / "marks" / "plugin.py").write_text("serve = None\n")


def change_version(code):
    path = code / "marks" / "plugin.yaml"
    path.write_text(json.dumps({**json.loads(path.read_text()), "version": "2.0.0"}))


def add_file(code):
    (code / "marks" / "weights.bin").write_bytes(b"\0")


def make_runnable(code):
    (code / "marks" / "plugin.py").chmod(0o755)


@pytest.mark.parametrize("change", [change_bytes, change_version, add_file, make_runnable])
def test_a_plugin_that_has_changed_is_named_with_what_to_do(change, code):
    called("lock", code)
    change(code)

    with pytest.raises(SpecError, match=r"plugin marks: its files have changed.*plugins lock"):
        digests(code)
    checked = called("lock", code, "--check")
    assert checked.exit_code == 1
    assert "plugin marks" in str(checked.exception)
    assert "deep" not in str(checked.exception)
    called("lock", code)
    assert digests(code)


def test_one_that_came_or_went_is_named(code):
    called("lock", code)
    write(code / "late", ECHO)
    for path in (code / "marks").iterdir():
        path.unlink()
    checked = str(called("lock", code, "--check").exception)

    assert "plugin late: it is not in the lock" in checked
    assert "plugin marks: its folder is not there" in checked


def test_a_plugin_that_is_not_in_the_lock_does_not_run(code):
    called("lock", code)
    lines = (code / LOCK).read_text().splitlines(keepends=True)
    (code / LOCK).write_text("".join(line for line in lines if "more/deep" not in line))

    with pytest.raises(SpecError, match="plugin more/deep: it is not in the lock"):
        digests(code)


def test_a_lock_says_what_a_plugin_is_in_whatever_words_its_path_is_given(code):
    called("lock", code)
    document = SPEC.model_dump(mode="json", exclude_unset=True)
    document["train"]["rewards"] = [{"plugin": {"path": "./more//deep/"}}]

    assert plugin_digests(RolloutRunSpec.model_validate(document), [code])


ENTRY = '{"path": "marks", "name": "a", "version": "1", "kind": "reward", "digest": "b"}'
BROKEN = {
    "no YAML": (b"\t{", "cannot be read"),
    "no text": (b"\xff\xfe\x00", "cannot be read"),
    "another format": (b"format: 2\nplugins: []\n", "reads format 1, got 2"),
    "another field": (b"format: 1\nplugins: []\nsigned: true\n", "unknown field `signed`"),
    "no plugins": (b"format: 1\n", "missing required field `plugins`"),
    "a list": (b"- 1\n", "Expected `object`"),
    "the same twice": (f"format: 1\nplugins: [{ENTRY}, {ENTRY}]\n".encode(), "marks twice"),
    "a flood": (b"#" * (2 << 20), "larger than 1 MiB"),
    "an object of Python": (b"!!python/object/apply:os.getpid []\n", "cannot be read"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_lock_is_refused_with_what_is_wrong(name, code):
    data, why = BROKEN[name]
    (code / LOCK).write_bytes(data)

    with pytest.raises(SpecError, match=LOCK) as refused:
        digests(code)
    assert why in str(refused.value)
    assert "rollout plugins lock" in str(refused.value)


def test_a_folder_without_a_lock_or_without_plugins_is_told(code, tmp_path):
    assert "has no plugins.lock" in str(called("lock", code, "--check").exception)
    with pytest.raises(SpecError, match=r"there is no plugin\.yaml in it or below"):
        lock_folder(tmp_path / "nowhere")


def test_links_and_folders_of_packages_are_not_searched(code):
    write(code / "node_modules" / "theirs", ECHO)
    (code / "again").symlink_to(code / "more")
    (code / "loop").symlink_to(code)

    assert find_plugin_folders(code) == [code / "marks", code / "more" / "deep"]
