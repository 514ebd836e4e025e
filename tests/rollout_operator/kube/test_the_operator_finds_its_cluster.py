"""From the pod's service account or a kubeconfig to an address, an identity and a trust."""

import base64
import json

import pytest
import yaml

from rollout_operator.kube.config import account_of, find_connection, read_kubeconfig


def token(subject):
    body = base64.urlsafe_b64encode(json.dumps({"sub": subject}).encode()).decode().rstrip("=")
    return f"head.{body}.signature"


def kubeconfig(tmp_path, **user):
    path = tmp_path / "config"
    document = {
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u", "namespace": "n"}}],
        "clusters": [{"name": "k", "cluster": {"server": "http://127.0.0.1:1/"}}],
        "users": [{"name": "u", "user": user}],
    }
    path.write_text(yaml.safe_dump(document))
    return path


def test_a_token_names_its_account():
    assert account_of(token("system:serviceaccount:ns:my-operator")) == "my-operator"
    assert account_of("") == account_of("a.b.c") == ""


def test_a_kubeconfig_gives_server_namespace_and_token(tmp_path):
    found = read_kubeconfig(kubeconfig(tmp_path, token=token("system:serviceaccount:n:me")))
    assert (found.server, found.namespace, found.account) == ("http://127.0.0.1:1", "n", "me")


def test_exec_plugins_are_refused(tmp_path):
    with pytest.raises(ValueError, match="exec plugins"):
        read_kubeconfig(kubeconfig(tmp_path, exec={"command": "x"}))


def test_an_incomplete_kubeconfig_says_so(tmp_path):
    path = tmp_path / "config"
    path.write_text("current-context: none\ncontexts: []\n")
    with pytest.raises(ValueError, match="not complete"):
        read_kubeconfig(path)


def test_without_either_the_remedy_is_named(tmp_path):
    with pytest.raises(ValueError, match="KUBECONFIG"):
        find_connection({}, tmp_path)
