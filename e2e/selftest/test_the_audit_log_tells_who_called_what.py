"""The audit log counts calls as the API server saw them, by user, verb and resource."""

from dataclasses import replace
from pathlib import Path

import pytest

from cluster.control import audit
from cluster.kubectl import Kubectl
from cluster.local import LocalCluster

pytestmark = pytest.mark.control_plane


def test_calls_are_counted_by_user_verb_and_resource(
    local_cluster: LocalCluster, fake: Kubectl, tmp_path: Path
):
    kubeconfig = tmp_path / "somebody"
    kubeconfig.write_text(local_cluster.control_plane.kubeconfig("somebody", "system:masters"))
    somebody = replace(fake, kubeconfig=kubeconfig)

    somebody("create", "configmap", "one")
    somebody("create", "configmap", "two")
    somebody("delete", "configmap", "two", "--wait=false")
    assert somebody.attempt("get", "configmap", "three").returncode != 0

    log = local_cluster.instance.audit_log
    counted = audit.count_by_verb(audit.read(log), "somebody")
    assert counted["create", "configmaps"] == 2
    assert counted["delete", "configmaps"] == 1
    missed = [call for call in audit.read(log) if call.user == "somebody" and call.verb == "get"]
    assert [call.status for call in missed if call.name == "three"] == [404]
