"""Numbers of the system calls that a sandbox refuses, per kind of machine. Data only.

Sources: Linux' ``arch/x86/entry/syscalls/syscall_64.tbl`` and ``include/uapi/asm-generic/unistd.h``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

_SHARED: Mapping[str, int] = {
    "io_uring_setup": 425,
    "io_uring_enter": 426,
    "io_uring_register": 427,
    "open_tree": 428,
    "move_mount": 429,
    "fsopen": 430,
    "fsconfig": 431,
    "fsmount": 432,
    "fspick": 433,
    "clone3": 435,
    "pidfd_getfd": 438,
    "process_madvise": 440,
    "mount_setattr": 442,
    "quotactl_fd": 443,
    "memfd_secret": 447,
    "process_mrelease": 448,
    "set_mempolicy_home_node": 450,
}
"""The same on every machine since Linux 5.1."""

_X86_64: Mapping[str, int] = {
    "clone": 56,
    "socket": 41,
    "socketpair": 53,
    "ioctl": 16,
    "connect": 42,
    "setsockopt": 54,
    "seccomp": 317,
    "shmget": 29,
    "ptrace": 101,
    "syslog": 103,
    "personality": 135,
    "modify_ldt": 154,
    "pivot_root": 155,
    "adjtimex": 159,
    "chroot": 161,
    "acct": 163,
    "settimeofday": 164,
    "mount": 165,
    "umount2": 166,
    "swapon": 167,
    "swapoff": 168,
    "reboot": 169,
    "sethostname": 170,
    "setdomainname": 171,
    "iopl": 172,
    "ioperm": 173,
    "init_module": 175,
    "delete_module": 176,
    "quotactl": 179,
    "lookup_dcookie": 212,
    "clock_settime": 227,
    "mbind": 237,
    "set_mempolicy": 238,
    "kexec_load": 246,
    "add_key": 248,
    "request_key": 249,
    "keyctl": 250,
    "migrate_pages": 256,
    "unshare": 272,
    "move_pages": 279,
    "perf_event_open": 298,
    "fanotify_init": 300,
    "name_to_handle_at": 303,
    "open_by_handle_at": 304,
    "clock_adjtime": 305,
    "setns": 308,
    "process_vm_readv": 310,
    "process_vm_writev": 311,
    "kcmp": 312,
    "finit_module": 313,
    "memfd_create": 319,
    "kexec_file_load": 320,
    "bpf": 321,
    "userfaultfd": 323,
}

_AARCH64: Mapping[str, int] = {
    "clone": 220,
    "socket": 198,
    "socketpair": 199,
    "ioctl": 29,
    "connect": 203,
    "setsockopt": 208,
    "seccomp": 277,
    "shmget": 194,
    "lookup_dcookie": 18,
    "umount2": 39,
    "mount": 40,
    "pivot_root": 41,
    "chroot": 51,
    "quotactl": 60,
    "acct": 89,
    "personality": 92,
    "kexec_load": 104,
    "init_module": 105,
    "delete_module": 106,
    "clock_settime": 112,
    "syslog": 116,
    "ptrace": 117,
    "unshare": 97,
    "reboot": 142,
    "sethostname": 161,
    "setdomainname": 162,
    "settimeofday": 170,
    "adjtimex": 171,
    "add_key": 217,
    "request_key": 218,
    "keyctl": 219,
    "swapon": 224,
    "swapoff": 225,
    "mbind": 235,
    "set_mempolicy": 237,
    "migrate_pages": 238,
    "move_pages": 239,
    "perf_event_open": 241,
    "fanotify_init": 262,
    "name_to_handle_at": 264,
    "open_by_handle_at": 265,
    "clock_adjtime": 266,
    "setns": 268,
    "process_vm_readv": 270,
    "process_vm_writev": 271,
    "kcmp": 272,
    "finit_module": 273,
    "memfd_create": 279,
    "bpf": 280,
    "userfaultfd": 282,
    "kexec_file_load": 294,
}

INSPECTED = frozenset({"clone", "socket", "socketpair", "ioctl"})
"""Refused by what they are asked for."""
ASKED = frozenset({"connect", "setsockopt", "seccomp"})
"""Not refused; known to a filter that asks process 1 about sockets, and to whoever puts it in force."""
MISSING = frozenset({"clone3", "memfd_create"})
"""Answered as by a kernel that has them not: programs then take another way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineCalls:
    """One kind of machine. ``audit`` is its AUDIT_ARCH; ``has_x32``: its kernel also takes calls of the x32 form."""

    audit: int
    numbers: Mapping[str, int]
    has_x32: bool = False


MACHINE_CALLS: Mapping[str, MachineCalls] = {
    "x86_64": MachineCalls(audit=0xC000003E, numbers={**_X86_64, **_SHARED}, has_x32=True),
    "aarch64": MachineCalls(audit=0xC00000B7, numbers={**_AARCH64, **_SHARED}),
}
