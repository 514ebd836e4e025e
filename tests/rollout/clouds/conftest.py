from __future__ import annotations

import os
import sys
from functools import cache
from pathlib import Path

import pytest
from botocore.loaders import JSONFileLoader

sys.path.append(str(Path(__file__).parent))
sys.path.append(str(Path(__file__).parents[1] / "objects"))

import clouds_kit
import objects_kit

_read = cache(JSONFileLoader().load_file)


@pytest.fixture(autouse=True)
def read_once(monkeypatch):
    """Each session of boto3 reads and parses its descriptions of services anew: most of the time of these tests."""
    monkeypatch.setattr(JSONFileLoader, "load_file", lambda _, path: _read(path))


@pytest.fixture
def cloud():
    with clouds_kit.fake_cloud() as server:
        yield server


@pytest.fixture(autouse=True)
def bare(monkeypatch, tmp_path):
    """No credentials of this machine's, and no metadata service of its cloud's."""
    for name in list(os.environ):
        if name.startswith(("AWS_", "GOOGLE_", "GCE_", "STORAGE_EMULATOR")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path / "gcloud"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    monkeypatch.setenv("no_proxy", "127.0.0.1")


@pytest.fixture(scope="module")
def s3_endpoint(tmp_path_factory):
    with objects_kit.s3_server(tmp_path_factory.mktemp("s3")) as endpoint:
        yield endpoint
