"""What is sent to a host, and what is made of what it says: plain data, without a host."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from rollout.errors import ConnectionLost, HostError, HostUnreachable, SpecError
from rollout.remote.address import HostAddress, parse_address
from rollout.remote.environment import find_checkout, name_environment, pack_sources
from rollout.remote.fetching import RemoteFile, fetch_files
from rollout.remote.looking import LOOK, judge_host, parse_facts
from rollout.remote.parcel import hash_file, needed_secrets, pack_run
from rollout.remote.ssh import Ssh, explain
from rollout.runs.manifest import load_documents

FAR = HostAddress(host="far")
MANIFEST = """
apiVersion: rollout.dev/v1alpha1
kind: RolloutRun
metadata: {name: small}
spec:
  model: {uri: "file://model"}
  code: {path: code}
  tracking: [{wandb: {project: p}}]
  train:
    maxSteps: 3
    data: {jsonl: {uri: rows.jsonl}}
    algorithm: {sft: {batchSize: 2}}
"""
TOLD = """welcome to this machine
rollout-facts
system=Linux
architecture=x86_64
python=3.9 /usr/bin/python3
python=3.12 /usr/bin/python3.12
cache=52428800 /home/a/.cache/rollout
data=52428800 /home/a/.local/share/rollout
memory=33554432
driver=580.65.06
devices=2
"""


@pytest.mark.parametrize(
    ("text", "host", "user", "port"),
    [
        ("ssh://gpu1", "gpu1", None, None),
        ("ssh://anna@gpu1.lab:2222/", "gpu1.lab", "anna", 2222),
        ("ssh://[::1]:22", "::1", None, 22),
    ],
)
def test_an_address_is_read(text, host, user, port):
    assert parse_address(text) == HostAddress(host=host, user=user, port=port)
    assert parse_address(str(parse_address(text))) == parse_address(text)


@pytest.mark.parametrize(
    "text",
    [
        "gpu1",
        "http://gpu1",
        "ssh://",
        "ssh://-oProxyCommand=touch%20x",
        "ssh://gpu1/folder",
        "ssh://gpu1:port",
        "ssh://a b@gpu1",
        "ssh://-l@gpu1",
        "ssh://@gpu1",
        "ssh://gpu1?x=1",
        "ssh://gp u1",
        "ssh://gpu1;reboot",
    ],
)
def test_what_is_no_address_is_refused(text):
    with pytest.raises(SpecError, match=r"--on .*expected ssh://"):
        parse_address(text)


def test_a_password_in_an_address_is_refused_and_not_repeated():
    with pytest.raises(SpecError, match="without a password") as refused:
        parse_address("ssh://anna:hunter2@gpu1")
    assert "hunter2" not in str(refused.value)


def test_no_option_weakens_how_a_hosts_key_is_checked():
    words = Ssh(address=parse_address("ssh://anna@gpu1:2222"), config="c.conf").argv("exit 0")

    assert "StrictHostKeyChecking=yes" in words
    assert "BatchMode=yes" in words
    assert not any("UserKnownHostsFile" in one for one in words)
    assert words[-3:] == ["--", "gpu1", "sh -c 'exit 0'"]


@pytest.mark.parametrize(
    ("words", "kind", "says"),
    [
        (
            "No ED25519 host key is known for far and you have requested strict checking.\r\nHost key verification failed.",
            HostError,
            "connect once by hand",
        ),
        ("@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @", HostError, "not the known one"),
        ("root@far: Permission denied (publickey).", HostError, "refuses this user's keys"),
        (
            "ssh: Could not resolve hostname far: Name or service not known",
            HostUnreachable,
            "no such host",
        ),
        (
            "ssh: connect to host far port 22: Connection refused",
            HostUnreachable,
            "cannot be reached",
        ),
        ("client_loop: send disconnect: Broken pipe", ConnectionLost, "was lost"),
        ("", ConnectionLost, "was lost"),
    ],
)
def test_what_the_client_says_is_told_by_what_it_means(words, kind, says):
    found = explain(FAR, words)

    assert type(found) is kind
    assert says in str(found)


def test_a_host_that_has_everything_lacks_nothing():
    facts = parse_facts(TOLD)

    assert facts.python.path == "/usr/bin/python3.12"
    assert facts.accelerator == "cuda"
    assert {one.state for one in judge_host(facts, needed=1 << 30, installs=True)} == {"ok"}


@pytest.mark.parametrize(
    ("line", "changed", "name", "state"),
    [
        ("python=3.12 /usr/bin/python3.12\n", "", "Python", "broken"),
        ("architecture=x86_64", "architecture=aarch64", "platform", "broken"),
        ("cache=52428800 ", "cache=no ", "cache", "broken"),
        ("cache=52428800 ", "cache=1024 ", "cache", "broken"),
        ("data=52428800 ", "data=4194304 ", "data", "lack"),
        ("memory=33554432", "memory=1024", "memory", "lack"),
        ("driver=580.65.06", "driver=", "devices", "broken"),
        ("devices=2", "devices=0", "devices", "lack"),
    ],
)
def test_a_lack_of_a_host_is_the_only_one_and_says_what_to_do(line, changed, name, state):
    assert line in TOLD
    facts = parse_facts(TOLD.replace(line, changed))
    found = [one for one in judge_host(facts, needed=1 << 30, installs=True) if one.state != "ok"]

    assert [(one.name, one.state) for one in found] == [(name, state)]
    assert found[0].costs
    assert found[0].fix


def test_the_shell_of_this_machine_tells_its_facts():
    done = subprocess.run(["sh", "-c", LOOK], capture_output=True, text=True, timeout=60)
    facts = parse_facts(done.stdout)

    assert done.stderr == ""
    assert facts.system == "linux"
    assert facts.python is not None
    assert facts.cache.free
    assert facts.memory > 0


def test_a_shell_that_tells_nothing_is_named():
    with pytest.raises(HostError, match="no POSIX shell"):
        parse_facts("This account is not available.\n")


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "m.yaml").write_text(MANIFEST)
    (tmp_path / "rows.jsonl").write_text('{"prompt": "1+1=", "answer": "2"}\n')
    for name, text in {
        "code/a.py": "A = 1\n",
        "code/__pycache__/a.pyc": "",
        "model/m.json": "{}",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def pack(folder: Path):
    return pack_run(load_documents(folder / "m.yaml")[0])


def test_a_parcel_holds_what_the_manifest_names_and_every_path_leads_into_it(folder):
    parcel = pack(folder)

    sent = {one.path: one for one in parcel.files}
    assert sorted(sent) == ["files/0/m.json", "files/1/rows.jsonl", "files/2/a.py", "run.yaml"]
    spec = json.loads(sent["run.yaml"].text)["spec"]
    assert spec["model"]["uri"] == "file://files/0"
    assert spec["train"]["data"]["jsonl"]["uri"] == "files/1/rows.jsonl"
    assert spec["code"]["path"] == "files/2"


def test_another_content_is_another_parcel_and_the_same_is_the_same(folder):
    first = pack(folder).name
    assert pack(folder).name == first
    (folder / "rows.jsonl").write_text('{"prompt": "1+1=", "answer": "3"}\n')
    assert pack(folder).name != first


def test_a_file_that_is_not_there_is_named_with_its_field(folder):
    (folder / "rows.jsonl").unlink()
    with pytest.raises(SpecError, match=r"data\.jsonl\.uri: there is no .*rows\.jsonl"):
        pack(folder)


@pytest.mark.parametrize(
    ("line", "changed", "says"),
    [
        ("  code: {path: code}", "  storage: {uri: 'file:///objects'}", r"spec\.storage\.uri"),
        ("    maxSteps: 3", "    maxSteps: 3\n    output: {uri: out}", r"spec\.train\.output\.uri"),
        (
            "  code: {path: code}",
            "  code: {wheel: {uri: 'file:///a.whl'}}",
            r"spec\.code\.wheel\.uri",
        ),
    ],
)
def test_what_would_be_of_this_machine_is_refused_by_name(folder, line, changed, says):
    (folder / "m.yaml").write_text(MANIFEST.replace(line, changed))
    with pytest.raises(SpecError, match=says):
        pack(folder)


def test_a_run_is_given_secrets_of_what_its_manifest_names_only(folder):
    document = load_documents(folder / "m.yaml")[0]
    assert needed_secrets(document) == ("WANDB_API_KEY", "WANDB_BASE_URL")
    document.data["spec"]["model"]["uri"] = "hf://a/b"
    assert "HF_TOKEN" in needed_secrets(document)


def test_an_environment_has_another_name_with_other_sources_pins_or_python():
    sources = pack_sources(find_checkout())
    paths = {one.path for one in sources.files}

    assert {"constraints.hashes.txt", "workers/src/rollout/remote/program.py"} <= paths
    assert not any("__pycache__" in one or one.startswith("tests") for one in paths)
    names = {
        name_environment(sources, accelerator, python)
        for accelerator in ("cpu", "cuda")
        for python in ((3, 11), (3, 12))
    }
    assert len(names) == 4


class Told:
    """A host that gives bytes, cut after some."""

    def __init__(self, data: bytes, cut_after: int) -> None:
        self.data, self.cut_after, self.asked = data, cut_after, []
        self.ssh = Ssh(address=FAR)

    def read(self, _: str, request: dict):
        self.asked.append(request["files"][0][2])
        rest = self.data[request["files"][0][2] :][: self.cut_after]
        yield from (rest[i : i + 3] for i in range(0, len(rest), 3))


def test_a_file_that_was_cut_is_gone_on_with_and_believed_by_its_digest_alone(tmp_path):
    (tmp_path / "there").write_bytes(b"0123456789")
    digest, size = hash_file(tmp_path / "there")
    file = RemoteFile(name="logs/a.log", path="/a.log", size=size, digest=digest)
    host = Told(b"0123456789", 6)

    with pytest.raises(ConnectionLost, match="4 bytes too early"):
        fetch_files(host, [file], tmp_path)
    fetch_files(host, [file], tmp_path)
    fetch_files(host, [file], tmp_path)

    assert host.asked == [0, 6]
    assert (tmp_path / "logs/a.log").read_bytes() == b"0123456789"
    with pytest.raises(ConnectionLost, match="damaged"):
        fetch_files(Told(b"012345678x", 99), [file], tmp_path / "other")
    assert not list((tmp_path / "other").rglob("a.log*"))


def test_a_name_that_leads_out_of_the_folder_is_refused(tmp_path):
    for name in ("../a", "/etc/a", "logs/../../a"):
        file = RemoteFile(name=name, path="/a", size=1, digest="0" * 64)
        with pytest.raises(HostError, match="leads out"):
            fetch_files(Told(b"0", 1), [file], tmp_path)
