"""What the workers of `test_joining.py` run."""

from __future__ import annotations


def both():
    """Joins, and says what it finds."""
    from replicax.cluster import join_cluster

    job = join_cluster()
    import jax

    found = {
        "rank": job.rank,
        "start": job.timeouts.start,
        "ranks": job.gather("ranks", job.rank),
        "devices": jax.device_count(),
        "again": join_cluster() is job,
    }
    job.leave()
    return found
