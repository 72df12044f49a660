"""Reports: a job, or several side by side, as one HTML file to hand on."""

from ringleader_api.reports.document import CSP
from ringleader_api.reports.reports import Reports

__all__ = ["CSP", "Reports"]
