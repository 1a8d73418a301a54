"""Run folders to a report, as a page, Markdown, LaTeX tables and figures."""

from feddraw.report.files import WrittenReport, write_pdf, write_report
from feddraw.report.settings import ReportSettings

__all__ = ["ReportSettings", "WrittenReport", "write_pdf", "write_report"]
