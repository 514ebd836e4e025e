import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory) -> dict:
    """What the small job comes to when nobody disturbs it."""
    from local_jobs import start_job

    return start_job(tmp_path_factory.mktemp("undisturbed") / "runs").finish()


@pytest.fixture(autouse=True)
def no_job_is_left_running():
    """Whatever a test came to, its supervisors end with it."""
    yield
    if "local_jobs" in sys.modules:
        sys.modules["local_jobs"].end_jobs()
