"""Looking at a step without running it, and at what the workers of a job have run.

Floor 7 of the design.
"""

from __future__ import annotations

from ._costs import Fabric as Fabric
from ._explain import explain as explain
from ._explanation import Explanation as Explanation
from ._tracing import trace as trace

__all__ = ["Explanation", "Fabric", "explain", "trace"]
