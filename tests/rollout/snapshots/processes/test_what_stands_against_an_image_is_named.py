"""Before anything is stopped: what no image can hold, what must not be imaged, what is another machine, are refused by name."""

from __future__ import annotations

import ctypes
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from rollout.errors import SnapshotRefused
from rollout.snapshots.processes.criu import (
    Criu,
    choose_snapshotter,
    find_criu,
    parse_version,
    read_errors,
    was_cut_off,
)
from rollout.snapshots.processes.denial import build_denial
from rollout.snapshots.processes.look import mapped_files, parse_address, require_imageable, tree_of
from rollout.snapshots.processes.node import (
    look_at_files,
    read_node,
    require_same_files,
    require_same_node,
)
from rollout.tools.sandbox.seccomp import machine_calls

HEAD = "  sl  local_address rem_address st tx rx tr tm retrnsmt uid timeout inode\n"


def process(
    proc: Path, pid: int, *words: str, fds=(), tcp: str = "", children="", pid_ns="1"
) -> Path:
    """A process as /proc shows it."""
    folder = proc / str(pid)
    (folder / "fd").mkdir(parents=True)
    (folder / "ns").mkdir()
    (folder / "net").mkdir()
    (folder / "task" / str(pid)).mkdir(parents=True)
    (folder / "task" / str(pid) / "children").write_text(children)
    (folder / "cmdline").write_bytes("\0".join(words).encode() + b"\0")
    (folder / "net" / "tcp").write_text(HEAD + tcp)
    for number, target in enumerate(fds):
        (folder / "fd" / str(number)).symlink_to(target)
    for kind in ("user", "mnt", "net"):
        (folder / "ns" / kind).symlink_to(f"{kind}:[9]")
    (folder / "ns" / "pid").symlink_to(f"pid:[{pid_ns}]")
    return folder


def connection(remote: str, inode: int, state: str = "01") -> str:
    return f"   0: 0100007F:1F90 {remote}:0050 {state} 0:0 0:0 0 0 0 {inode} 1\n"


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"fds": ["anon_inode:[io_uring]"]}, "io_uring"),
        ({"fds": ["/dev/nvidia0"]}, "device /dev/nvidia0"),
        ({"fds": ["/dev/infiniband/uverbs0"]}, "infiniband"),
        ({"pid_ns": "2"}, "another pid namespace"),
        ({"words": ("python", "-m", "rollout.entrypoints.coordinator")}, "never imaged"),
        ({"words": ("python", "-m", "rollout.plugins.row_host")}, "plugin"),
        ({"words": ("/usr/bin/bwrap", "--unshare-all")}, "sandbox of tools"),
        ({"fds": ["socket:[77]"], "tcp": connection("08080808", 77)}, "connected to 8.8.8.8"),
    ],
)
def test_each_thing_that_no_image_may_hold_is_refused_by_name(tmp_path, other, words):
    command = other.pop("words", ("python", "child.py"))
    process(tmp_path, 1, "python", children="10")
    process(tmp_path, 10, "python", "train.py", children="11")
    process(tmp_path, 11, *command, **other)
    with pytest.raises(SnapshotRefused, match="the program goes on") as told:
        require_imageable(tree_of(1, tmp_path), tmp_path)
    assert words in str(told.value)
    assert "process 11" in str(told.value)


def test_what_an_image_can_hold_is_not_refused(tmp_path):
    calls = (
        connection("0100007F", 77) + connection("08080808", 78) + connection("08080808", 79, "0A")
    )
    process(tmp_path, 1, "python", children="10")
    process(
        tmp_path,
        10,
        "python",
        "train.py",
        fds=["socket:[77]", "socket:[79]", "pipe:[3]"],
        tcp=calls,
    )
    require_imageable(tree_of(1, tmp_path), tmp_path)
    with pytest.raises(SnapshotRefused, match="has ended"):
        require_imageable([], tmp_path)


def test_a_ring_of_a_real_process_is_seen():
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = libc.syscall(425, 4, ctypes.create_string_buffer(120))
    if descriptor < 0:
        pytest.skip(f"no io_uring here: {os.strerror(ctypes.get_errno())}")
    try:
        with pytest.raises(SnapshotRefused, match="io_uring"):
            require_imageable([os.getpid()])
    finally:
        os.close(descriptor)


@pytest.mark.skipif(sys.platform != "linux", reason="seccomp is Linux's")
def test_a_process_without_io_uring_is_told_that_there_is_none():
    code = (
        "import ctypes, errno; from rollout.snapshots.processes.denial import deny_io_uring\n"
        "deny_io_uring(); libc = ctypes.CDLL(None, use_errno=True)\n"
        "assert libc.syscall(425, 4, ctypes.create_string_buffer(120)) == -1\n"
        "print(errno.errorcode[ctypes.get_errno()])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "ENOSYS\n", done.stderr
    assert len(build_denial(machine_calls().audit)) % 8 == 0


def test_addresses_are_read_as_the_kernel_writes_them():
    assert parse_address("0100007F:1F90") == "127.0.0.1"
    assert parse_address("00000000000000000000000001000000:0050") == "::1"
    assert parse_address("0000000000000000FFFF00000100007F:0050") == "::ffff:127.0.0.1"


def test_files_that_a_process_has_mapped_are_known_and_a_change_of_one_is_named(tmp_path):
    assert any("python" in path for path in mapped_files([os.getpid()]))
    library = tmp_path / "libtorch_cpu.so"
    library.write_bytes(b"one")
    then = look_at_files([str(library), "/no/such/file"])
    require_same_files(then)
    library.write_bytes(b"another")
    with pytest.raises(SnapshotRefused, match=r"libtorch_cpu\.so"):
        require_same_files(then)
    library.unlink()
    with pytest.raises(SnapshotRefused, match="changed or removed"):
        require_same_files(then)


@pytest.mark.parametrize("name", ["machine", "architecture", "kernel", "processor"])
def test_another_machine_is_refused_by_what_differs(name):
    now = read_node("4.2.1")
    require_same_node(now, now)
    require_same_node({**now, "criu": "4.2"}, now)
    with pytest.raises(SnapshotRefused, match=f"{name} was another"):
        require_same_node({**now, name: "another"}, now)
    with pytest.raises(SnapshotRefused, match="criu was 3"):
        require_same_node({**now, "criu": "3.17"}, now)


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ("echo Version: 4.1.1", "4.2 or newer"),
        ("echo Version: 3.17", "4.2 or newer"),
        ("echo hello", "does not tell its version"),
        ('[ "$1" = check ] && echo "Error: no ptrace" && exit 1; echo Version: 4.2', "no ptrace"),
    ],
)
def test_a_criu_that_cannot_work_says_why(tmp_path, said, reason):
    program = tmp_path / "criu"
    program.write_text(f"#!/bin/sh\n{said}\n")
    program.chmod(0o755)
    support = find_criu({"PATH": os.environ["PATH"], "ROLLOUT_CRIU": str(program)}).support()
    assert not support.is_there
    if os.geteuid() == 0 or "4.2 or" in reason or "version" in reason:
        assert reason in support.reason


def test_where_there_is_none_nothing_is_made_and_other_ways_are_refused_by_name(tmp_path):
    none = find_criu({"PATH": str(tmp_path)})
    assert "install CRIU 4.2" in none.support().reason
    with pytest.raises(SnapshotRefused, match="not supported here"):
        none.restore_argv()
    assert "turned off" in choose_snapshotter("none", {}).support().reason
    for way, reason in {
        "kubelet": "nodes/checkpoint",
        "vllm": "one GPU",
        "docker": "expected",
    }.items():
        with pytest.raises(SnapshotRefused, match=reason):
            choose_snapshotter(way, {})


def test_versions_and_errors_of_criu_are_read(tmp_path):
    assert parse_version("Version: 4.2.1\nGitID: x") == (4, 2, 1)
    assert parse_version("4.2") is None
    log = tmp_path / "dump.log"
    log.write_text(
        "Warn x\nError (criu/util.c:1): rlimit: RLIMIT_NOFILE\nError (criu/files.c:2): no\n"
    )
    assert read_errors(log) == "(criu/files.c:2): no"
    assert read_errors(tmp_path / "none") == "it left no log"
    assert was_cut_off(log)
    assert not was_cut_off(tmp_path / "none")
    log.write_text(f"{log.read_text()}Error (criu/cr-dump.c:2128): Dumping FAILED.\n")
    assert not was_cut_off(log)
    assert isinstance(find_criu({"PATH": os.environ["PATH"], "ROLLOUT_CRIU": sys.executable}), Criu)
    assert platform.machine()
