"""Run folders to a report, as a page, Markdown, LaTeX tables and figures."""

from feddraw.report.writing import ALPHA, REPLICATES, Written, write_report

__all__ = ["ALPHA", "REPLICATES", "Written", "write_report"]
