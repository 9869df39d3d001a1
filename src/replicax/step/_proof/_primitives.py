"""What the pass knows of each primitive, by name.

A name that is in no table is refused. The tables hold the names of all supported jax releases;
a name that a release lacks does no harm.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from replicax.errors import ArgumentTypeError, InvalidArgumentError, describe

PrimitiveRule: TypeAlias = Literal["pointwise", "varying", "mirrored"]

_RULES: tuple[PrimitiveRule, ...] = ("pointwise", "varying", "mirrored")


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


ARITHMETIC = _words("""
    abs acos acosh add add_any and asin asinh atan atan2 atanh bessel_i0e bessel_i1e cbrt ceil
    clamp clz complex conj cos cosh digamma div eq eq_to erf erf_inv erfc exp exp2 expm1 floor ge
    gt igamma igamma_grad_a igammac imag integer_pow is_finite le le_to lgamma log log1p log2
    logistic lt lt_to max min mul mulhi ne neg nextafter not one_minus_square or polygamma
    polynomial population_count pow real reduce_precision regularized_incomplete_beta rem round
    rsqrt select_n shift_left shift_right_arithmetic shift_right_logical sign sin sinh sqrt
    square sub tan tanh xor zeta
""")
_SHAPES = _words("""
    bitcast_convert_type broadcast_in_dim broadcast_to concatenate convert_element_type copy
    copy_p dim_as_value dimension_size dynamic_slice dynamic_update_slice from_edtype gather iota
    iota_2x32_shape pad reshape rev select_and_gather_add select_and_scatter
    select_and_scatter_add slice split squeeze stack tile to_edtype transpose unstack zeros_like
""")
_REDUCTIONS = _words("""
    approx_top_k argmax argmin cumlogsumexp cummax cummin cumprod cumsum reduce reduce_and
    reduce_max reduce_min reduce_or reduce_prod reduce_sum reduce_window reduce_window_max
    reduce_window_min reduce_window_sum reduce_xor scatter scatter-add scatter-max scatter-min
    scatter-mul scatter-sub sort top_k
""")
_LINEAR_ALGEBRA = _words("""
    cholesky cholesky_update conv_general_dilated dot_general eig eigh fft geqp3 geqrf hessenberg
    householder_product lu lu_pivots_to_permutation ormqr qr ragged_dot_general scaled_dot
    scaled_matmul scaled_matmul_wrapper schur svd symmetric_product triangular_solve tridiagonal
    tridiagonal_solve
""")
RANDOM = _words("""
    philox2x32 philox4x32 random_bits random_clone random_fold_in random_gamma random_seed
    random_split random_unwrap random_wrap rng_bit_generator threefry2x32 threefry4x32
""")
_KERNELS = _words("""
    cudnn_fusion dot_product_attention_bwd dot_product_attention_bwd_wrapper
    dot_product_attention_fp8_bwd dot_product_attention_fp8_bwd_wrapper
    dot_product_attention_fp8_fwd dot_product_attention_fp8_fwd_wrapper
    dot_product_attention_fwd dot_product_attention_fwd_wrapper rnn_bwd rnn_fwd
""")
# Casts between the types that `check_vma=True` tells apart: no device's value changes.
TYPE_CASTS = _words("""
    preduced pvary reduced_vary_cast reduced_vary_cast_p vary_unreduced_cast
    vary_unreduced_cast_p
""")
# Placement, order and names; callbacks that jax documents as functions of their arguments; the
# second halves of collectives that were started before.
_BOOKKEEPING = _words("""
    after_all all_gather_done all_gather_reduced_done all_to_all_done check
    create_token dce_sink debug_callback debug_print inspect_sharding layout_constraint name
    pbroadcast_done platform_index ppermute_done psum_done psum_invariant_done pure_callback
    reduce_scatter_done relayout replicax_unplaced reshard
    shape_assertion sharding_constraint stop_gradient
    tie unreachable unreduced_psum_done unreduced_reduce_scatter_done
    with_memory_space_constraint xla_metadata_value
""")
# Classes of jax's `call_hi_primitive` that are functions of their operands.
_HIGH_LEVEL = _words("""
    CheckpointName CheckpointNameFwd Einshape Einsum Frexp Ldexp Nonzero PrimalLeftTangentRight
    SearchSorted
""")

POINTWISE = (
    ARITHMETIC
    | _SHAPES
    | _REDUCTIONS
    | _LINEAR_ALGEBRA
    | RANDOM
    | _KERNELS
    | TYPE_CASTS
    | _BOOKKEEPING
    | _HIGH_LEVEL
)
"""Deterministic functions of their inputs: the results vary when any input varies."""

ONE_BY_ONE = _words("device_put optimization_barrier")
"""Result i is operand i."""

VARYING = {
    "empty": "uninitialised memory",
    "empty2": "uninitialised memory",
    "io_callback": "the result of a host callback with side effects",
    "rng_uniform": "random numbers without a key",
}
"""Results that are no function of the inputs, and what they are."""

SIDE_EFFECT_PARAMETER = _words("buffer_callback ffi_call")
"""Foreign calls: a function of the inputs, unless the call declares a side effect."""

EQUALISING = _words("""
    all_gather all_gather_invariant all_gather_reduced all_gather_reduced_start all_gather_start
    pbroadcast pbroadcast_dynamic pbroadcast_start pmax pmin psum psum2 psum_invariant
    psum_invariant_start psum_start unreduced_pmax unreduced_pmin unreduced_psum
    unreduced_psum_start
""")
"""Collectives that leave the same value on every device of the axis."""

SPREADING = _words("""
    all_to_all all_to_all_start ppermute ppermute_start precv psend ragged_all_to_all
    reduce_scatter reduce_scatter_start unreduced_reduce_scatter unreduced_reduce_scatter_start
""")
"""Collectives that leave each device a part of its own."""

COLLECTIVES = EQUALISING | SPREADING
"""What makes replicas meet."""

MIRRORED_ONLY = "replicax_mirrored_only"
"""The identity that `require_mirrored` puts around what must be equal on all replicas."""

ALLOCATING = _words("empty_ref new_ref ref")
"""Make a mutable reference."""

REFUSED = {
    "accum_grad_in_ref": "it gives a mutable reference a second name",
    "call_exported": "it is a program that was compiled before, and what is inside is not seen",
    "core_map": "it is a kernel that runs once per core",
    "pallas_call": "it is a kernel, and what is inside is not read",
}
"""Primitives that jax knows and the pass refuses, and why. A registered rule allows them."""

_registered: dict[str, PrimitiveRule] = {}
_built_in: set[str] = set()


def reserve(names: frozenset[str] | set[str]) -> None:
    """Marks names that have a rule of their own, so that nobody registers over them."""
    _built_in.update(names)


reserve(POINTWISE | ONE_BY_ONE | VARYING.keys() | SIDE_EFFECT_PARAMETER | EQUALISING | SPREADING)


def is_built_in(name: str) -> bool:
    """Whether the pass has a rule of its own for a primitive."""
    return name in _built_in


def registered_rule(name: str) -> PrimitiveRule | None:
    """The rule that the user gave for a primitive, if any."""
    return _registered.get(name)


def register_primitive(name: str, rule: PrimitiveRule) -> None:
    """Tells the proof pass about a primitive that it does not know. Context: any.

    For kernels and foreign functions with a primitive of their own. Register it once, before a
    step that uses it is traced. The pass believes you: a wrong rule makes a wrong proof.

    Args:
        name: Name of the primitive, as the error about it gives it.
        rule: "pointwise": a deterministic function of its inputs, so the results are mirrored
            when all inputs are. "varying": the results may differ between replicas even for
            equal inputs. "mirrored": the results are equal on all replicas whatever goes in.

    Raises:
        ArgumentTypeError: The name is no string.
        InvalidArgumentError: The rule is none of the three, or the pass has a rule of its own
            for that name.

    Examples:
        >>> register_primitive("my_fused_kernel", "pointwise")
    """
    if not isinstance(name, str):
        message = describe(
            f"register_primitive got a name of type {type(name).__name__}: {name!r}.",
            fix="pass the name of the primitive as a string, such as `primitive.name`.",
        )
        raise ArgumentTypeError(message)
    if rule not in _RULES:
        message = describe(
            f"register_primitive({name!r}, {rule!r}): there is no such rule.",
            fix=f"pass one of {', '.join(map(repr, _RULES))}.",
        )
        raise InvalidArgumentError(message)
    if name in _built_in:
        message = describe(
            f"register_primitive({name!r}, {rule!r}): the proof knows {name!r} already.",
            why="another rule for a primitive of jax would make wrong proofs.",
            fix="leave it out; if the result of the proof looks wrong, that is a defect.",
        )
        raise InvalidArgumentError(message)
    _registered[name] = rule
