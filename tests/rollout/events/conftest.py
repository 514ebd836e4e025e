from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))
sys.path.append(str(Path(__file__).parents[1] / "objects"))

import events_kit
import objects_kit


@pytest.fixture(autouse=True)
def bare(monkeypatch, tmp_path):
    """No credentials but a test's own, and no metadata service."""
    for name in list(os.environ):
        if name.startswith(("AWS_", "GOOGLE_", "GCE_", "PUBSUB_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path / "gcloud"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIA-A-TEST")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", events_kit.SECRET)


@pytest.fixture(scope="session")
def amazon(tmp_path_factory):
    """moto's servers of SQS and SNS."""
    with objects_kit.s3_server(tmp_path_factory.mktemp("moto")) as endpoint:
        yield endpoint
