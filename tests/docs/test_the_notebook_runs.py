"""The library's notebook, from top to bottom, in the interpreter of the tests; stored without outputs."""

import sys
from pathlib import Path

import nbformat
import pytest
from docs_kit import ROOT

NOTEBOOK = ROOT / "docs" / "tutorial" / "library.ipynb"
EXECUTE_SECONDS_MAX = 600


@pytest.fixture
def notebook() -> nbformat.NotebookNode:
    return nbformat.read(NOTEBOOK, as_version=4)


def code_cells(notebook: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def test_it_is_stored_without_outputs(notebook):
    assert [cell.outputs for cell in code_cells(notebook)] == [[] for _ in code_cells(notebook)]
    assert all(cell.execution_count is None for cell in code_cells(notebook))


@pytest.mark.process
@pytest.mark.timeout(900)
def test_every_cell_runs(notebook, tmp_path, monkeypatch):
    from nbclient import NotebookClient

    monkeypatch.setenv("ROLLOUT_HOME", str(tmp_path / "runs"))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    (tmp_path / "first.yaml").write_text(NOTEBOOK.with_name("first.yaml").read_text("utf-8"))
    notebook.cells.append(
        nbformat.v4.new_code_cell("import sys; print(sys.executable, len(metrics), page)")
    )

    NotebookClient(
        notebook,
        timeout=EXECUTE_SECONDS_MAX,
        resources={"metadata": {"path": str(tmp_path)}},
    ).execute()

    executable, steps, page = notebook.cells[-1].outputs[0]["text"].split()
    assert (executable, steps) == (sys.executable, "12")
    assert Path(page).is_file()
