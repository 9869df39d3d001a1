"""Doctor: what is wrong with this machine, or with the workers of a job, before a job finds out.

print(replicax.doctor.examine())
"""

from __future__ import annotations

from ._examine import examine as examine
from ._findings import Finding as Finding
from ._findings import Report as Report

__all__ = [
    "Finding",
    "Report",
    "examine",
]
