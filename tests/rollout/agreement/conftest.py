import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rollout.models.resolve import resolve_model

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True)
def in_float64() -> Iterator[None]:
    from agreement_kit import EXACT, computing_in

    with computing_in(EXACT):
        yield


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from agreement_kit import MODEL

    return resolve_model(MODEL, cache_dir=tmp_path_factory.mktemp("models")).path
