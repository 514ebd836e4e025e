"""What this machine cannot do is skipped by tests, always in the same words."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from cluster.errors import CannotRunHereError, ClusterError


@contextmanager
def or_skip(*errors: type[ClusterError]) -> Iterator[None]:
    """Skip, with the reason, when the block meets CannotRunHereError or one of these others."""
    try:
        yield
    except (CannotRunHereError, *errors) as error:
        pytest.skip(f"cannot run here: {error}")
