"""What this machine lets a cluster do, in words a person can act on."""

import os
import shutil
import sys
from pathlib import Path

from cluster import packages

CGROUPS = Path("/sys/fs/cgroup")
CAPABILITY_SYS_ADMIN = 21
CAPABILITY_NET_ADMIN = 12


def why_no_control_plane() -> str:
    """Why no control plane can run here; empty when one can."""
    if sys.platform != "linux":
        return f"the local cluster runs on Linux, this is {sys.platform}"
    if shutil.which("setpriv") is None:
        return "`setpriv` is missing: install util-linux"
    return ""


def why_no_real_nodes() -> str:
    """Why no kubelet can run here; empty when one can."""
    if reason := why_no_control_plane():
        return reason
    if lacking := packages.missing(packages.RUNNING):
        return f"missing packages: {' '.join(lacking)}"
    if os.geteuid() != 0:
        return "real nodes need root (namespaces, mounts, cgroups); run as root or use `existing`"
    if reason := _missing_capabilities():
        return reason
    if not os.access(CGROUPS, os.W_OK):
        return f"{CGROUPS} is read-only: a kubelet needs cgroups of its own"
    return ""


def _missing_capabilities() -> str:
    status = Path("/proc/self/status").read_text()
    effective = int(status.split("CapEff:")[1].split()[0], 16)
    wanted = {"CAP_SYS_ADMIN": CAPABILITY_SYS_ADMIN, "CAP_NET_ADMIN": CAPABILITY_NET_ADMIN}
    missing = [name for name, bit in wanted.items() if not effective >> bit & 1]
    return f"real nodes need {' and '.join(missing)}" if missing else ""
