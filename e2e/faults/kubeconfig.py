"""Kubeconfigs of a proxy's clients."""

import base64
import json


def render_token_kubeconfig(server: str, authority_pem: bytes, token: str = "") -> str:
    """A kubeconfig with a bearer token, or with no identity at all (JSON, which is YAML)."""
    cluster = {
        "server": server,
        "certificate-authority-data": base64.b64encode(authority_pem).decode(),
    }
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "proxy", "cluster": cluster}],
        "users": [{"name": "proxy", "user": {"token": token} if token else {}}],
        "contexts": [{"name": "proxy", "context": {"cluster": "proxy", "user": "proxy"}}],
        "current-context": "proxy",
    }
    return json.dumps(document, indent=1)
