"""Runs kubectl against one cluster and gives back text or parsed objects; objects are read without a process."""

import json
import subprocess
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from cluster.control.reader import reader
from cluster.errors import ClusterError

CALL_SECONDS_MAX = 300.0
TRIES_MAX = 3
WAITS_MAX, WAIT_SECONDS = 60, 0.5
NO_CONDITIONS = ".status.conditions accessor error: <nil>"
"""What kubectl says of an object that nobody has judged yet, in the place of waiting."""
SCHEMAS_LATE = "error validating data: unexpected error when reading response body. Please retry."
"""kubectl waits half a minute for the schemas, by which it looks at objects before it sends any; a busy machine takes longer."""


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
        return _output(self.attempt(*arguments, stdin=stdin), arguments)

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

    def may(self, account: str, verb: str, resource: str) -> bool:
        """Whether a service account of the namespace may do this; told late, after a role was bound to it."""
        user = f"system:serviceaccount:{self.namespace}:{account}"
        return self.attempt("auth", "can-i", verb, resource, "--as", user).returncode == 0

    def apply(self, *objects: dict) -> str:
        """Client-side apply, as a person would: again where kubectl asks for that, nothing having been sent."""
        arguments, document = ("apply", "-f", "-"), _as_list(objects)
        done = self.attempt(*arguments, stdin=document)
        for _ in range(TRIES_MAX - 1):
            if SCHEMAS_LATE in done.stderr:
                done = self.attempt(*arguments, stdin=document)
        return _output(done, arguments)

    def get(self, *arguments: str) -> dict:
        """`kubectl get ... -o json`, as often as a test likes: over a connection that is kept.

        Raises:
            ClusterError: the API server refused, or does not answer.
        """
        found = reader(self.kubeconfig).get(self.namespace, arguments)
        return found if found is not None else json.loads(self("get", *arguments, "-o", "json"))

    def raw(self, path: str) -> str:
        """`kubectl get --raw`, likewise.

        Raises:
            ClusterError: the API server refused, or does not answer.
        """
        return reader(self.kubeconfig).text(path)

    def make_namespace(self, name: str) -> None:
        """`kubectl create namespace`, likewise.

        Raises:
            ClusterError: the API server refused, or does not answer.
        """
        reader(self.kubeconfig).send("POST", "/api/v1/namespaces", {"metadata": {"name": name}})

    def unmake_namespace(self, name: str) -> None:
        """`kubectl delete namespace --wait=false --ignore-not-found`, likewise.

        Raises:
            ClusterError: the API server refused, or does not answer.
        """
        try:
            reader(self.kubeconfig).send("DELETE", f"/api/v1/namespaces/{name}")
        except ClusterError as error:
            if "(NotFound)" not in str(error):
                raise

    def merge(
        self, kind: str, name: str, body: dict, subresource: str = "", *, dry_run: bool = False
    ) -> None:
        """`kubectl patch --type=merge`, likewise; where it is a `dry_run`, with `--dry-run=server`.

        Raises:
            ClusterError: the API server refused, or does not answer.
        """
        here = reader(self.kubeconfig)
        here.merge(self.namespace, kind, name, body, subresource, dry_run=dry_run)

    def delete_all(self, kind: str) -> None:
        """`kubectl delete --all --wait=false`, likewise.

        Raises:
            ClusterError: the API server refused, or does not answer.
        """
        here = reader(self.kubeconfig)
        here.send("DELETE", here.path_of(kind, self.namespace))

    def log(self, pod: str, container: str = "") -> str:
        """`kubectl logs`, likewise.

        Raises:
            ClusterError: nothing can be read yet, or the API server does not answer.
        """
        chosen = f"?container={container}" if container else ""
        return self.raw(f"/api/v1/namespaces/{self.namespace}/pods/{pod}/log{chosen}")

    def said(self, pod: str, container: str = "") -> str:
        """The same; empty where nothing can be read yet."""
        try:
            return self.log(pod, container)
        except ClusterError:
            return ""

    def wait(self, *arguments: str, seconds: int = 120) -> None:
        """`kubectl wait`, bounded: again where an object was so new that it had no conditions yet."""
        bounded = ("wait", *arguments, f"--timeout={seconds}s")
        done = self.attempt(*bounded)
        for _ in range(WAITS_MAX - 1):
            if NO_CONDITIONS in done.stderr:
                time.sleep(WAIT_SECONDS)
                done = self.attempt(*bounded)
        _output(done, bounded)


def _output(done: subprocess.CompletedProcess[str], arguments: Iterable[str]) -> str:
    if done.returncode:
        raise ClusterError(f"kubectl {' '.join(arguments)}: {done.stderr or done.stdout}")
    return done.stdout


def _as_list(objects: Iterable[dict]) -> str:
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)})
