"""Runs the checks of a plugin's kind, one after the other, and says what became of each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from rollout.errors import RolloutError
from rollout.plugins.sidecar.conformance.checks import Check, checks_of, serves
from rollout.plugins.sidecar.conformance.subject import Subject, read_examples
from rollout.plugins.sidecar.manifest import folder_digest, read_plugin


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckVerdict:
    """What became of one check; ``why`` is empty where it passed."""

    name: str
    why: str = ""

    @property
    def has_passed(self) -> bool:
        """Whether nothing was wrong."""
        return not self.why


def check_plugin(folder: Path, parameters: Mapping[str, str]) -> Iterator[CheckVerdict]:
    """A verdict for each check; the first that fails to start the plugin is the last. Raises SpecError for a bad folder."""
    plugin = read_plugin(folder)
    folder_digest(folder)  # what no run could be held to is refused here, too
    examples = read_examples(folder)
    subject = Subject(plugin=plugin, parameters=parameters, examples=examples)
    try:
        first = _judge(serves, subject)
        yield first
        if not first.has_passed:
            return
        for check in checks_of(plugin.manifest.kind):
            yield _judge(check, subject)
    finally:
        subject.close()


def _judge(check: Check, subject: Subject) -> CheckVerdict:
    name = check.__name__.replace("_", " ")
    try:
        check(subject)
    except AssertionError as error:
        return CheckVerdict(name=name, why=str(error) or "it did not")
    except RolloutError as error:
        return CheckVerdict(name=name, why=str(error))
    return CheckVerdict(name=name)
