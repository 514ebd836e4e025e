"""Runs kubectl against one cluster and gives back text or parsed objects."""

import json
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from cluster.errors import ClusterError

CALL_SECONDS_MAX = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Kubectl:
    """kubectl with a kubeconfig and a namespace; an empty one leaves it to the objects."""

    binary: str
    kubeconfig: Path
    namespace: str = "default"

    def __call__(self, *arguments: str, stdin: str = "") -> str:
        """Run kubectl and return its output.

        Raises:
            ClusterError: it failed; the message holds the command and what it wrote.
        """
        done = self.attempt(*arguments, stdin=stdin)
        if done.returncode:
            raise ClusterError(f"kubectl {' '.join(arguments)}: {done.stderr or done.stdout}")
        return done.stdout

    def attempt(self, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        """Run kubectl and return how it ended, whatever that was."""
        command = [self.binary, "--kubeconfig", str(self.kubeconfig)]
        if self.namespace:
            command += ["-n", self.namespace]
        return subprocess.run(
            [*command, *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=CALL_SECONDS_MAX,
            check=False,
        )

    def apply(self, *objects: dict) -> str:
        """Client-side apply, as a person would."""
        return self("apply", "-f", "-", stdin=_as_list(objects))

    def get(self, *arguments: str) -> dict:
        """`kubectl get ... -o json`."""
        return json.loads(self("get", *arguments, "-o", "json"))

    def wait(self, *arguments: str, seconds: int = 120) -> None:
        """`kubectl wait`, bounded."""
        self("wait", *arguments, f"--timeout={seconds}s")


def _as_list(objects: Iterable[dict]) -> str:
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)})
