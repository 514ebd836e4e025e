"""Kubeconfigs of a proxy's clients."""

import base64
import json

AS_THE_PROXY = "as-the-proxy"
"""The token of clients without an identity of their own (kubectl asks for a password otherwise)."""


def render_token_kubeconfig(server: str, authority_pem: bytes, token: str) -> str:
    """A kubeconfig with a bearer token (JSON, which is YAML)."""
    cluster = {
        "server": server,
        "certificate-authority-data": base64.b64encode(authority_pem).decode(),
    }
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "proxy", "cluster": cluster}],
        "users": [{"name": "proxy", "user": {"token": token}}],
        "contexts": [{"name": "proxy", "context": {"cluster": "proxy", "user": "proxy"}}],
        "current-context": "proxy",
    }
    return json.dumps(document, indent=1)
