"""Run folders to a report, as a page, Markdown, LaTeX tables and figures."""

from feddraw.report.report_files import ALPHA, REPLICATES, WrittenReport, write_report

__all__ = ["ALPHA", "REPLICATES", "WrittenReport", "write_report"]
