"""The written report of a run: one self-contained HTML page and the JSON behind it.

Reads the ledger only; can be written at any time, of a live run too.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any


def write_report(run_dir: Path) -> dict[str, Any]:
    """Write the report of a run folder and return its summary. Raises LedgerError.

    What draws it is loaded now: a run is started before anybody needs half a second of imports.
    """
    from rollout.report import page

    return page.write_report(run_dir)
