"""A small repository with the files that a release reads, and releases of it; helpers are modules beside these tests."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def small_release(tmp_path_factory):
    """A release with the operator's image: ``folder``, ``key``, ``version``; tests copy what they change."""
    import release_kit

    return release_kit.make_release(tmp_path_factory.mktemp("release"), images=True)


@pytest.fixture
def release_copy(small_release, tmp_path):
    """One of a test's own, to change."""
    return small_release.copy(tmp_path / "copy")
