"""A chain of hashes over some memory, a step at a time; its last argument says what it does that no image survives."""

import hashlib
import os
import subprocess
import sys
import time
from pathlib import Path

from rollout.snapshots.processes.point import ImagePoint

STEPS, MEGABYTES, PAUSE = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
TRICK = sys.argv[4] if len(sys.argv) > 4 else ""

memory = bytearray(hashlib.shake_256(b"seed").digest(MEGABYTES << 20))
chain = b""
child = None


def digest() -> str:
    salt = repr(time.monotonic()) if TRICK == "forgetful" else ""
    hasher = hashlib.sha256(chain)
    hasher.update(memory)
    hasher.update(salt.encode())
    return hasher.hexdigest()


if TRICK == "sandbox":
    child = subprocess.Popen(["unshare", "--net", "sleep", "1000"])
if TRICK == "log":
    log = Path("training.log").open("w", buffering=1)  # noqa: SIM115 - it stays open, that is the trick
point = ImagePoint(digest)
for step in range(STEPS):
    chain = hashlib.sha256(chain + step.to_bytes(4, "big")).digest()
    start = int.from_bytes(chain[:4], "big") % (len(memory) - 64)
    memory[start : start + 32] = chain
    if TRICK != "quiet":
        print("step", step, chain.hex()[:16], flush=True)
    if TRICK == "log":
        log.write(f"{step}\n")
    point.reach(step)
    if not Path("go").exists():
        time.sleep(PAUSE)
print("ended", digest() if TRICK != "forgetful" else "", os.environ.get("COUNTER", ""), flush=True)
if child is not None:
    child.kill()
