"""The Python library: run a manifest from a script or a notebook and read what happened.

The same code as the command line: nothing here decides anything.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import pandas as pd

    from rollout.report.tables import What

RewardFunction = Callable[..., Sequence[float | Mapping[str, float]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Records:
    """Rows read from a run: iterate over them, or make a data frame."""

    rows: tuple[Mapping[str, Any], ...]
    """Mappings of plain values, in the order of the method that read them."""

    def __iter__(self) -> Any:
        """Iterate over the rows as mappings."""
        return iter(self.rows)

    def __len__(self) -> int:
        """How many rows."""
        return len(self.rows)

    def to_pandas(self) -> pd.DataFrame:
        """One row a record; nested values stay as Python objects."""
        import pandas as pd

        return pd.DataFrame([dict(row) for row in self.rows])


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A run on this machine, live or ended, read from its folder."""

    path: Path
    """The run's folder; everything is read from there."""
    exit_code: int | None = None
    """Of ``rollout run``: 0, or 3 where an evaluation missed its gate; None: the run was opened, not started here."""

    def metrics(self) -> Records:
        """One row per committed step, in order."""
        from rollout.report.gather import read_steps

        return Records(rows=tuple(read_steps(self.path)))

    def trajectories(self, *, step: int) -> Records:
        """The trajectories that ``step`` consumed, in order of consumption."""
        from rollout.report.gather import read_trajectories

        return Records(rows=tuple(read_trajectories(self.path, step)))

    def evaluations(self) -> Records:
        """One row per finished evaluation: value with its confidence interval."""
        from rollout.report.gather import read_evaluations

        return Records(rows=tuple(read_evaluations(self.path)))

    def summary(self) -> Mapping[str, Any]:
        """The numbers at the head of the report."""
        from rollout.report.data import summarise
        from rollout.report.gather import gather

        return summarise(gather(self.path))

    def report(self) -> Path:
        """Write the report again and return the page's path."""
        from rollout.report import write_report

        write_report(self.path)
        return self.path / "report.html"

    def export(
        self,
        folder: str | Path,
        *,
        what: Sequence[What] = ("samples",),
        form: Literal["parquet", "jsonl"] = "parquet",
    ) -> tuple[Path, ...]:
        """Write tables of the run into ``folder``, whole files or none, and return their paths."""
        from rollout.report.export import export_run

        written = export_run(self.path, Path(folder), what, form)
        return tuple(path for path, _ in written.values())


def run(
    manifest: str | Path | Mapping[str, Any],
    *,
    set: Mapping[str, Any] | None = None,  # noqa: A002 - the command line's --set
    rewards: Sequence[RewardFunction] | None = None,
    resume: str | None = None,
    run_dir: str | Path | None = None,
    progress: bool = True,
) -> Run:
    """Run a manifest to its end on this machine.

    Args:
        manifest: a YAML or TOML file; of several documents the last run is returned. Or one document as a mapping,
            whose relative paths begin in the working folder.
        set: overrides, such as ``{"train.maxSteps": 50}``.
        rewards: functions ``(prompts, completions, rows) -> one float or named floats each``; they
            replace the manifest's rewards and are pickled into the run's folder.
        resume: ``"Latest"`` or a snapshot's name: go on with the newest run of this manifest.
        run_dir: where the run lives; default ``runs/<name>-<n>``.
        progress: show live progress.

    Raises:
        SpecError: the manifest is invalid.
        RunFailed: the run ended badly; its folder holds everything committed.
    """
    from rollout.errors import RunFailed
    from rollout.report import write_report
    from rollout.runs.manifest import document_of, load_documents
    from rollout.runs.validation import apply_values, require_valid
    from rollout.supervisor import run_manifest

    made = isinstance(manifest, Mapping)
    loaded = (document_of(manifest),) if made else load_documents(manifest)
    documents = [apply_values(document, set or {}) for document in loaded]
    require_valid(documents, replaces_rewards=rewards is not None)
    result = run_manifest(
        documents,
        resume=resume,
        run_dir=Path(run_dir) if run_dir else None,
        progress=progress,
        rewards=rewards,
        report=write_report,
    )
    if result.exit_code not in {0, 3}:
        raise RunFailed(
            f"{result.run_dir}: exit code {result.exit_code}: {result.summary.get('reason')}"
        )
    return Run(path=result.run_dir, exit_code=result.exit_code)


def compare(
    runs: Sequence[Run | str | Path], *, page: str | Path, by: str | None = None
) -> Mapping[str, Any]:
    """Write a page that lays the curves of several runs over each other, and return its numbers.

    ``runs`` are runs, folders or names; ``by`` as ``rollout runs compare --by``. The numbers are also in
    the JSON file beside the page. Raises SpecError.
    """
    from rollout.report.comparison.page import compare_folders, write_comparison

    folders = [run.path if isinstance(run, Run) else open_run(run).path for run in runs]
    return write_comparison(compare_folders(folders, by), Path(page))


def open_run(path: str | Path) -> Run:
    """A run by its folder, or by its name under ROLLOUT_HOME. Raises SpecError when there is none."""
    from rollout.runs.run_dir import find_run

    return Run(path=find_run(str(path)))
