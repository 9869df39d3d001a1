"""`python -m replicax`: the same as the command `replicax`."""

from __future__ import annotations

import sys

from replicax.cli import main

if __name__ == "__main__":
    sys.exit(main())
