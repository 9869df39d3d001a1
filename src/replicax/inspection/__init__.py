"""Looking at a step without running it: its boundary, its proof, its collectives and their cost.

Floor 7 of the design.
"""

from __future__ import annotations

from ._costs import Fabric as Fabric
from ._explain import explain as explain
from ._explanation import Explanation as Explanation

__all__ = ["Explanation", "Fabric", "explain"]
