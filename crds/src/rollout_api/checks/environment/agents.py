"""Programs that own their loop: an agent of the manifest's, or of each task in Harbor's form; and the image of their pods."""

from __future__ import annotations

from collections.abc import Iterator

from rollout_api.checks.facts import Facts
from rollout_api.checks.refusals import not_supported
from rollout_api.problems import Problem
from rollout_api.v1alpha1.environment import Environment, PythonClass
from rollout_api.v1alpha1.run import RolloutRunSpec

HARBOR = ("rollout.environments.adapters.harbor", "Harbor")
"""Module and class of the environment that plays folders of tasks in Harbor's form."""
IMAGE = "image"
"""Its parameter that names the image of its pods, as ``agent.image`` does."""
FIELD = "spec.train.environment"


def plays_harbor(python: PythonClass | None) -> bool:
    """Whether a class is the one that plays tasks in Harbor's form."""
    return python is not None and (python.module, python.class_name) == HARBOR


def owns_its_loop(environment: Environment | None) -> bool:
    """Whether each episode is a program in a sandbox of its own, which asks an endpoint."""
    if environment is None:
        return False
    return environment.agent is not None or plays_harbor(environment.python)


def find_image(environment: Environment | None) -> tuple[str, str] | None:
    """The field below the environment, and the image that it names for the pods of such programs."""
    if environment is None:
        return None
    if environment.agent is not None and environment.agent.image is not None:
        return "agent.image", environment.agent.image
    if environment.python is None or not plays_harbor(environment.python):
        return None
    return find_parameter(environment.python, "python")


def find_parameter(python: PythonClass, path: str) -> tuple[str, str] | None:
    """The image among the parameters of tasks in Harbor's form, with its field below ``path``."""
    for index, one in enumerate(python.parameters):
        if one.name == IMAGE and one.value:
            return f"{path}.parameters[{index}].value", one.value
    return None


def images_are_of_pods(spec: RolloutRunSpec, facts: Facts) -> Iterator[Problem]:
    """On one machine a sandbox has the machine's own system: no image is pulled there."""
    named = find_image(spec.train.environment if spec.train else None)
    if named is not None and facts.platform == "local":
        fix = "leave it out, and install what the program needs below /usr; or run in a cluster"
        yield not_supported(f"{FIELD}.{named[0]}", "an image of its own on one machine", fix)


RULES = (images_are_of_pods,)
