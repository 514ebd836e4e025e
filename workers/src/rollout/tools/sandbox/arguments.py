"""The commands of bubblewraps: of one that holds a sandbox, and of one that sandboxes are forked in. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from rollout.tools.sandbox.contract import SandboxLimits
from rollout.tools.sandbox.host import Host

SHARED_MEMORY_BYTES = 16 << 20


def bubblewrap_argv(
    host: Host, limits: SandboxLimits, *, seccomp: int, programs: Mapping[str, int]
) -> tuple[str, ...]:
    """The command. ``seccomp`` is a descriptor of the filter, ``programs`` are those of ours by name, the first to be run."""
    disk = str(limits.disk_bytes)
    shared = str(min(SHARED_MEMORY_BYTES, limits.disk_bytes))
    return (
        *_alone(host, "--disable-userns", "--die-with-parent"),
        *("--size", shared, "--tmpfs", "/dev/shm"),  # noqa: S108 - in the sandbox
        *("--size", disk, "--tmpfs", "/tmp"),  # noqa: S108 - likewise
        *("--size", disk, "--tmpfs", "/box", "--chdir", "/box"),
        *_bound(programs),
        *("--remount-ro", "/dev", "--remount-ro", "/proc", "--remount-ro", "/"),
        *("--seccomp", str(seccomp), "--", host.python, "-I", "-S"),
        f"/run/{next(iter(programs))}",
    )


def zygote_argv(host: Host, programs: Mapping[str, int]) -> tuple[str, ...]:
    """The command of a bubblewrap that sandboxes are forked in: nothing in it can be written, and it makes namespaces."""
    return (
        *_alone(host),
        *("--dir", "/tmp", "--dir", "/box"),  # noqa: S108 - in there
        *_bound(programs),
        *("--remount-ro", "/dev", "--remount-ro", "/", "--", host.python, "-I", "-S"),
        f"/run/{next(iter(programs))}",
    )


def _alone(host: Host, *more: str) -> tuple[str, ...]:
    """Namespaces of its own, nobody's rights, and the system's folders to read."""
    drop = ()
    if host.drops_root:
        drop = (host.setpriv, "--reuid", "65534", "--regid", "65534", "--clear-groups", "--")
    links = [part for name, target in host.links for part in ("--symlink", target, name)]
    binds = [part for folder in host.folders for part in ("--ro-bind", folder, folder)]
    return (
        *drop,
        *(host.bwrap, "--unshare-all", "--unshare-user", *more),
        *("--new-session", "--as-pid-1", "--cap-drop", "ALL", "--uid", "65534", "--gid", "65534"),
        *("--hostname", "box", "--clearenv", "--setenv", "LANG", "C.UTF-8"),
        *binds,
        *links,
        *("--proc", "/proc", "--dev", "/dev"),
    )


def _bound(programs: Mapping[str, int]) -> tuple[str, ...]:
    return tuple(
        part
        for name, held in programs.items()
        for part in ("--ro-bind-data", str(held), f"/run/{name}")
    )
