"""Run folders to a report, as a page, Markdown, LaTeX tables and figures."""

from feddraw.report.files import ALPHA, REPLICATES, WrittenReport, write_pdf, write_report

__all__ = ["ALPHA", "REPLICATES", "WrittenReport", "write_pdf", "write_report"]
