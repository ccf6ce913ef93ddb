"""Audits: claims about ε, tried on the package's own code. A bound above a claim is a bug; no bound proves a claim."""

from cords_dp.auditing.audit import Report, run_audit
from cords_dp.auditing.findings import Finding

__all__ = ["Finding", "Report", "run_audit"]
