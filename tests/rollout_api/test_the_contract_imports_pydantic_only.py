"""The contract loads pydantic and nothing else, and not even that before a model is needed."""

import subprocess
import sys

import pytest

ALLOWED = {
    "annotated_types",
    "pydantic",
    "pydantic_core",
    "rollout_api",
    "typing_extensions",
    "typing_inspection",
}
MODULES = [
    "rollout_api.parse",
    "rollout_api.presets",
    "rollout_api.worker",
    "rollout_api.names",
    "rollout_api.conditions",
    "rollout_api.checks",
    "rollout_api.v1alpha1.objects.kinds",
]


def loaded_by(code):
    probe = (
        f"import sys; before = set(sys.modules)\n{code}\n"
        "new = {name.split('.')[0] for name in set(sys.modules) - before}\n"
        "new = {name for name in new if not name.startswith('_sysconfigdata')}\n"
        "print(*sorted(new - set(sys.stdlib_module_names)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", probe], capture_output=True, text=True, check=True, timeout=60
    )
    return set(done.stdout.split())


@pytest.mark.parametrize("module", MODULES)
def test_a_module_loads_only_what_the_contract_may(module):
    assert loaded_by(f"import {module}") <= ALLOWED


def test_importing_the_package_loads_no_model():
    assert loaded_by("import rollout_api") == {"rollout_api"}


def test_a_public_name_loads_on_first_use():
    assert "pydantic" in loaded_by("import rollout_api; rollout_api.parse_run")


def test_a_wrong_name_is_an_attribute_error():
    import rollout_api

    with pytest.raises(AttributeError, match="no attribute 'parse_runs'"):
        rollout_api.parse_runs  # noqa: B018 - the access is what is tested
