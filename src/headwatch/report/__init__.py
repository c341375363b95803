"""The report: everything that a run's store holds, on one page."""

from __future__ import annotations

from headwatch.report.write import report_page, write_report

__all__ = ["report_page", "write_report"]
