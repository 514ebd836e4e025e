"""The written report of a run: one self-contained HTML page and the JSON behind it.

Reads the ledger only; can be written at any time, of a live run too.
"""

from rollout.report.page import write_report

__all__ = ["write_report"]
