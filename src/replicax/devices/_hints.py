"""What hides devices: environment variables and jax's choice of platforms."""

from __future__ import annotations

import os

import jax

_VARIABLES: dict[str, tuple[str, ...]] = {
    "GPU": (
        "CUDA_VISIBLE_DEVICES",
        "ROCR_VISIBLE_DEVICES",
        "HIP_VISIBLE_DEVICES",
        "JAX_CUDA_VISIBLE_DEVICES",
        "JAX_ROCM_VISIBLE_DEVICES",
    ),
    "TPU": ("TPU_VISIBLE_CHIPS", "TPU_VISIBLE_DEVICES"),
}
_PLATFORMS: dict[str, frozenset[str]] = {
    "CPU": frozenset({"cpu"}),
    "GPU": frozenset({"gpu", "cuda", "rocm"}),
    "TPU": frozenset({"tpu"}),
}


def hints(device_type: str | None) -> list[str]:
    """Says which settings may hide devices of a type.

    Args:
        device_type: CPU, GPU, TPU or another type; None for any.

    Returns:
        One sentence a setting; empty where nothing hides devices.
    """
    found = []
    # From JAX_PLATFORMS, or set by the program. jax makes the attribute at run time.
    platforms: str | None = jax.config.jax_platforms  # type: ignore[attr-defined]
    if platforms:
        started = {name.strip().lower() for name in platforms.split(",")}
        wanted = None if device_type is None else _PLATFORMS.get(device_type)
        if wanted is None or not started & wanted:
            found.append(f"JAX_PLATFORMS is {platforms!r}: jax starts no other platforms.")
    kinds = _VARIABLES if device_type is None else [device_type]
    for kind in kinds:
        found += [
            f"{name} is {os.environ[name]!r} and may hide some."
            for name in _VARIABLES.get(kind, ())
            if name in os.environ
        ]
    return found
