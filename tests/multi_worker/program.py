"""What each of two workers does: every check once, with what came of it as JSON.

Starting processes takes longer than the checks, so they share a job. A check that fails on one
worker may leave the other at a meeting; then both end there, and the checks after it have no
result. Each `checks_*.py` adds its checks when it is imported.
"""

from __future__ import annotations

import checks_doctor  # noqa: F401
import checks_input  # noqa: F401
import checks_models  # noqa: F401
import checks_order  # noqa: F401
import checks_recording  # noqa: F401
import checks_saving  # noqa: F401
import checks_steps  # noqa: F401
import checks_values  # noqa: F401
import checks_zoo  # noqa: F401
from checks import main

if __name__ == "__main__":
    main()
