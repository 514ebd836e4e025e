"""On a busy machine kubectl gives up waiting for the schemas of a new control plane, and says: please retry."""

import pytest

from cluster.errors import ClusterError
from cluster.kubectl import SCHEMAS_LATE, TRIES_MAX, Kubectl

SCRIPT = """#!/bin/sh
cat > /dev/null
echo called >> {folder}/calls
[ $(wc -l < {folder}/calls) -gt {late} ] && echo applied && exit 0
echo "error: {words}" >&2
exit 1
"""


def apply(folder, late, words):
    binary = folder / "kubectl"
    binary.write_text(SCRIPT.format(folder=folder, late=late, words=words))
    binary.chmod(0o755)
    return Kubectl(binary=str(binary), kubeconfig=folder / "none").apply({"kind": "ConfigMap"})


def num_calls(folder):
    return len((folder / "calls").read_text().splitlines())


def test_schemas_that_come_late_are_waited_for_again(tmp_path):
    assert apply(tmp_path, TRIES_MAX - 1, SCHEMAS_LATE) == "applied\n"
    assert num_calls(tmp_path) == TRIES_MAX


def test_schemas_that_never_come_are_said(tmp_path):
    with pytest.raises(ClusterError, match="Please retry"):
        apply(tmp_path, TRIES_MAX, SCHEMAS_LATE)
    assert num_calls(tmp_path) == TRIES_MAX


def test_what_is_refused_is_sent_once(tmp_path):
    with pytest.raises(ClusterError, match="is invalid"):
        apply(tmp_path, 1, "the ConfigMap is invalid")
    assert num_calls(tmp_path) == 1
