"""Public functions of jax: the primitives they are made of are all known to the pass."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import jax.scipy as jsp
import pytest
from jax import lax
from jax.scipy.interpolate import RegularGridInterpolator
from jax.scipy.optimize import minimize

from replicax.step._proof import Source, prove


class Inputs(NamedTuple):
    """What the functions below are called with."""

    a: jax.Array
    v: jax.Array
    n: jax.Array
    key: jax.Array
    image: jax.Array


@pytest.fixture(scope="module")
def inputs():
    return Inputs(
        a=jnp.linspace(0.1, 0.9, 16).reshape(4, 4),
        v=jnp.linspace(0.1, 0.9, 4),
        n=jnp.arange(4),
        key=jax.random.key(0),
        image=jnp.ones((1, 8, 8, 3)),
    )


def each(module, names, *args, **kwargs):
    """The results of several functions of a module, called alike."""
    return [getattr(module, name)(*args, **kwargs) for name in names.split()]


def numpy_elementwise(of):
    return [
        *each(
            jnp,
            "abs arccos arccosh arcsin arcsinh arctan arctanh cbrt ceil cos cosh deg2rad "
            "exp exp2 expm1 fabs floor frexp i0 isfinite isinf isnan log log10 log1p log2 "
            "logical_not modf negative positive rad2deg reciprocal rint round sign "
            "signbit sin sinc sinh spacing sqrt square tan tanh trunc angle conj imag "
            "real nan_to_num ",
            of.v,
        ),
    ]


def numpy_of_two(of):
    return [
        *each(
            jnp,
            "add arctan2 copysign divide divmod equal float_power floor_divide fmax fmin "
            "fmod greater greater_equal heaviside hypot less less_equal logaddexp "
            "logaddexp2 logical_and logical_or logical_xor maximum minimum mod multiply "
            "nextafter not_equal power remainder subtract true_divide convolve correlate "
            "dot inner kron outer vdot polyadd polymul polysub polyval ",
            of.v,
            of.v,
        ),
    ]


def numpy_integers(of):
    return [
        of.n & of.n,
        of.n | of.n,
        of.n ^ of.n,
        ~of.n,
        of.n << 1,
        of.n >> 1,
        of.n // 2,
        of.n % 3,
        jnp.gcd(of.n, of.n),
        jnp.lcm(of.n, of.n),
        jnp.bitwise_count(of.n),
        jnp.ldexp(of.v, of.n),
        jnp.bincount(of.n, length=4),
        jnp.packbits(of.n > 1),
        jnp.unpackbits(of.n.astype(jnp.uint8)),
        jnp.digitize(of.v, of.v),
        jnp.searchsorted(of.v, of.v),
        jnp.nonzero(of.n, size=2),
        jnp.unique(of.n, size=4),
        jnp.argsort(of.n),
        jnp.isin(of.n, of.n),
    ]


def numpy_reductions(of):
    return [
        *each(
            jnp,
            "all any argmax argmin average count_nonzero cumprod cumsum max mean median "
            "min nanargmax nanmax nanmean nanmin nanprod nanstd nansum nanvar prod ptp "
            "std sum trace var cov corrcoef diag diagonal diff ediff1d sort argsort ravel "
            "rot90 fliplr flipud transpose tril triu unwrap gradient ",
            of.a,
        ),
    ]


def numpy_shapes(of):
    return [
        jnp.concatenate([of.a, of.a]),
        jnp.stack([of.a, of.a]),
        jnp.split(of.a, 2),
        jnp.tile(of.a, 2),
        jnp.repeat(of.a, 2),
        jnp.roll(of.a, 1),
        jnp.pad(of.a, 1),
        jnp.pad(of.a, 1, mode="reflect"),
        jnp.take(of.a, of.n),
        jnp.take_along_axis(of.a, of.n[:, None], 1),
        jnp.where(of.a > 0, of.a, 0.0),
        jnp.select([of.a > 0], [of.a]),
        jnp.clip(of.a, 0, 1),
        jnp.einsum("ij,jk->ik", of.a, of.a),
        jnp.percentile(of.a, 30.0),
        jnp.quantile(of.a, 0.3),
        jnp.histogram(of.v, bins=3),
        jnp.searchsorted(of.v, of.v),
        jnp.meshgrid(of.v, of.v),
        jnp.vander(of.v),
        jnp.block([of.a, of.a]),
        jnp.insert(of.v, 1, 2.0),
        jnp.delete(of.v, 1),
        jnp.apply_along_axis(jnp.sum, 0, of.a),
        jnp.piecewise(of.v, [of.v > 0], [jnp.sin, 0.0]),
        jnp.interp(of.v, of.v, of.v),
        jnp.choose(of.n % 2, [of.n, of.n], mode="clip"),
        jnp.put(of.v, of.n, of.v, inplace=False),
        jnp.fill_diagonal(of.a, 1.0, inplace=False),
        jnp.trapezoid(of.v),
        jnp.arange(3),
        jnp.eye(3),
        jnp.linspace(of.v[0], of.v[1], 3),
        jnp.tri(3),
        jnp.array_split(of.v, 3),
        jnp.squeeze(of.a[None]),
        jnp.expand_dims(of.a, 0),
        of.a.view(jnp.int32),
    ]


def indexing(of):
    return [
        of.a.at[of.n].set(1.0),
        of.a.at[0].add(1.0),
        of.a.at[0].multiply(2.0),
        of.a.at[0].min(2.0),
        of.a.at[0].max(2.0),
        of.a.at[0].divide(2.0),
        of.a.at[0].power(2.0),
        of.a.at[0].get(),
        of.a[of.n, of.n],
        of.a[::2],
        of.a.at[0].apply(jnp.sin),
        of.a.at[0].subtract(1.0),
    ]


def linear_algebra(of):
    return [
        jnp.linalg.cholesky(of.a @ of.a.T + jnp.eye(4)),
        jnp.linalg.det(of.a),
        jnp.linalg.eigh(of.a),
        jnp.linalg.eig(of.a),
        jnp.linalg.inv(of.a),
        jnp.linalg.lstsq(of.a, of.v),
        jnp.linalg.matrix_power(of.a, 3),
        jnp.linalg.matrix_rank(of.a),
        jnp.linalg.norm(of.a),
        jnp.linalg.pinv(of.a),
        jnp.linalg.qr(of.a),
        jnp.linalg.slogdet(of.a),
        jnp.linalg.solve(of.a, of.v),
        jnp.linalg.svd(of.a),
        jnp.linalg.eigvalsh(of.a),
        jsp.linalg.expm(of.a),
        jsp.linalg.lu(of.a),
        jsp.linalg.schur(of.a),
        jsp.linalg.sqrtm(of.a),
        jsp.linalg.hessenberg(of.a),
        jsp.linalg.polar(of.a),
        jsp.linalg.solve_triangular(of.a, of.v),
        jsp.linalg.cho_solve((of.a, False), of.v),
        jsp.linalg.block_diag(of.a, of.a),
        jsp.linalg.toeplitz(of.v),
        lax.linalg.tridiagonal_solve(of.v, of.v, of.v, of.a),
        lax.linalg.householder_product(of.a, of.v),
        lax.linalg.tridiagonal(of.a),
        lax.linalg.cholesky_update(of.a, of.v),
        jsp.linalg.rsf2csf(of.a, of.a),
        jsp.linalg.eigh_tridiagonal(of.v, of.v[1:], eigvals_only=True),
    ]


def fft_and_signals(of):
    return [
        jnp.fft.fft(of.v),
        jnp.fft.ifft2(of.a),
        jnp.fft.rfft(of.v),
        jnp.fft.irfft(of.v),
        jnp.fft.fftshift(of.v),
        jsp.signal.convolve2d(of.a, of.a),
        jsp.signal.fftconvolve(of.v, of.v),
        jsp.signal.stft(of.v, nperseg=4),
        jsp.signal.detrend(of.v),
        jsp.fft.dct(of.v),
        jsp.ndimage.map_coordinates(of.a, [of.v, of.v], order=1),
    ]


def special_functions(of):
    return [
        *each(
            jsp.special,
            "digamma entr erf erfc erfinv exp1 expi expit gammaln i0 i0e i1 i1e log_ndtr "
            "logit logsumexp ndtr ndtri ",
            of.v,
        ),
        jsp.special.betainc(of.v, of.v, of.v),
        jsp.special.gammainc(of.v, of.v),
        jsp.special.gammaincc(of.v, of.v),
        jsp.special.polygamma(of.n, of.v),
        jsp.special.zeta(of.v + 1, of.v),
        jsp.special.xlogy(of.v, of.v),
        jsp.special.rel_entr(of.v, of.v),
        jsp.special.betaln(of.v, of.v),
        jsp.special.spence(of.v),
        jsp.special.hyp1f1(of.v, of.v, of.v),
        jsp.stats.norm.logpdf(of.v),
        jsp.stats.t.logpdf(of.v, 2.0),
        jsp.stats.multivariate_normal.logpdf(of.v, of.v, jnp.eye(4)),
        jsp.stats.gaussian_kde(of.v).pdf(of.v),
        jsp.integrate.trapezoid(of.v),
        minimize(lambda x: jnp.sum(x**2), of.v, method="BFGS"),
        RegularGridInterpolator((of.v,), of.v, bounds_error=False)(of.v),
    ]


def random(of):
    return [
        *each(
            jax.random,
            "cauchy exponential gumbel laplace logistic maxwell normal rademacher uniform "
            "bernoulli bits ",
            of.key,
            shape=(3,),
        ),
        jax.random.split(of.key),
        jax.random.fold_in(of.key, 1),
        jax.random.permutation(of.key, of.v),
        jax.random.choice(of.key, of.v),
        jax.random.categorical(of.key, of.v),
        jax.random.gamma(of.key, of.v),
        jax.random.beta(of.key, of.v, of.v),
        jax.random.poisson(of.key, of.v),
        jax.random.dirichlet(of.key, of.v),
        jax.random.t(of.key, 2.0),
        jax.random.chisquare(of.key, 2.0),
        jax.random.binomial(of.key, 3.0, 0.5),
        jax.random.randint(of.key, (3,), 0, 9),
        jax.random.multivariate_normal(of.key, of.v, jnp.eye(4)),
        jax.random.orthogonal(of.key, 3),
        jax.random.key_data(of.key),
        jax.random.PRNGKey(1),
        jax.random.truncated_normal(of.key, -1.0, 1.0),
        jax.random.ball(of.key, 3),
        jax.random.normal(jax.random.key(1, impl="rbg"), (3,)),
        jax.random.clone(of.key),
        jax.random.normal(jax.random.key(1, impl="unsafe_rbg"), (3,)),
        jax.random.wrap_key_data(jax.random.key_data(of.key)),
        jax.random.rayleigh(of.key, of.v),
        jax.random.loggamma(of.key, of.v),
        jax.random.geometric(of.key, of.v),
        jax.random.pareto(of.key, 2.0),
    ]


def neural_networks(of):
    return [
        *each(
            jax.nn,
            "celu elu gelu glu hard_sigmoid hard_silu hard_swish hard_tanh leaky_relu "
            "log_sigmoid log_softmax mish relu relu6 selu sigmoid silu soft_sign softmax "
            "softplus sparse_plus sparse_sigmoid squareplus standardize swish logsumexp ",
            of.v,
        ),
        jax.nn.one_hot(of.n, 4),
        jax.nn.dot_product_attention(*[jnp.ones((1, 4, 2, 8))] * 3, is_causal=True),
        jax.nn.initializers.orthogonal()(of.key, (4, 4)),
        jax.nn.initializers.he_normal()(of.key, (4, 4)),
    ]


def convolutions_and_windows(of):
    return [
        lax.conv(jnp.ones((1, 3, 8, 8)), jnp.ones((4, 3, 3, 3)), (1, 1), "SAME"),
        lax.conv_transpose(of.image, jnp.ones((3, 3, 3, 4)), (2, 2), "SAME"),
        lax.reduce_window(of.image, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "SAME"),
        lax.reduce_window(of.image, 0.0, lax.add, (1, 2, 2, 1), (1, 2, 2, 1), "SAME"),
        lax.reduce_window(of.image, 1.0, lax.mul, (1, 2, 2, 1), (1, 2, 2, 1), "SAME"),
        jax.grad(
            lambda x: lax.reduce_window(
                x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "SAME"
            ).sum()
        )(of.image),
        jax.image.resize(of.image, (1, 4, 4, 3), "bilinear"),
        jax.image.scale_and_translate(of.image, (1, 4, 4, 3), (1, 2), of.v[:2], of.v[:2], "linear"),
        lax.conv_general_dilated_patches(of.image, (2, 2), (1, 1), "SAME"),
    ]


def lax_functions(of):
    return [
        lax.approx_max_k(of.v, 2),
        lax.approx_min_k(of.v, 2),
        lax.top_k(of.v, 2),
        lax.cummax(of.v),
        lax.cummin(of.v),
        lax.cumlogsumexp(of.v),
        lax.associative_scan(jnp.add, of.v),
        lax.clz(of.n),
        lax.population_count(of.n),
        lax.bitcast_convert_type(of.v, jnp.int32),
        lax.reduce_precision(of.v, 5, 3),
        lax.betainc(of.v, of.v, of.v),
        lax.igamma_grad_a(of.v, of.v),
        lax.random_gamma_grad(of.v, of.v),
        lax.rsqrt(of.v),
        lax.erf_inv(of.v),
        lax.integer_pow(of.v, 3),
        lax.rng_bit_generator(jnp.zeros(4, jnp.uint32), (2,)),
        lax.ragged_dot(jnp.ones((4, 2)), jnp.ones((2, 2, 3)), jnp.array([2, 2])),
        lax.dynamic_slice(of.v, (1,), (2,)),
        lax.dynamic_update_slice(of.v, of.v[:2], (1,)),
        lax.sort_key_val(of.n, of.v),
        lax.rev(of.v, (0,)),
        lax.optimization_barrier(of.v),
        lax.collapse(of.a, 0),
        lax.reduce(of.v, 0.0, lambda a, b: jnp.maximum(a, 2 * b), (0,)),
        lax.complex(of.v, of.v),
        lax.map(jnp.sin, of.v),
        lax.switch(1, [jnp.sin, jnp.cos], of.v),
        lax.stop_gradient(of.v),
        lax.while_loop(lambda c: c < 3.0, lambda c: c + 1, of.v[0]),
        lax.expand_dims(of.v, (0,)),
        lax.convert_element_type(of.v, jnp.bfloat16),
        lax.reduce_and(of.n > 1, (0,)),
        lax.reduce_xor(of.n, (0,)),
        lax.split(of.v, (2, 2)),
        lax.scan(lambda c, x: (c + x, c * x), of.v[0], of.v),
    ]


def derivatives(of):
    return [
        jax.grad(lambda x, fn=fn: jnp.sum(fn(x)))(of.v)
        for fn in (
            jnp.sort,
            jnp.cumsum,
            jnp.cumprod,
            lax.cummax,
            lax.cumlogsumexp,
            jnp.prod,
            jnp.max,
            jax.nn.softmax,
            jnp.linalg.norm,
            lambda x: jnp.linalg.inv(jnp.diag(x)),
            lambda x: jnp.linalg.svd(jnp.diag(x))[1],
            lambda x: jnp.linalg.eigh(jnp.diag(x))[1],
            lambda x: jnp.linalg.qr(jnp.diag(x))[1],
            lambda x: jnp.take(x, of.n),
            lambda x: jax.random.gamma(of.key, x),
            lambda x: jnp.abs(jnp.fft.fft(x)),
            lambda x: jsp.special.gammainc(x, x),
            lambda x: x[of.n],
            jax.checkpoint(jnp.sin),
            lambda x: lax.scan(lambda c, y: (c * y, c), 1.0, x)[1],
        )
    ]


def second_derivatives(of):
    return [
        jax.hessian(lambda x: jnp.sum(jnp.tanh(x) ** 3))(of.v),
        jax.jacrev(jax.nn.softmax)(of.v),
        jax.jacfwd(jnp.sort)(of.v),
    ]


FUNCTIONS = [
    numpy_elementwise,
    numpy_of_two,
    numpy_integers,
    numpy_reductions,
    numpy_shapes,
    indexing,
    linear_algebra,
    fft_and_signals,
    special_functions,
    random,
    neural_networks,
    convolutions_and_windows,
    lax_functions,
    derivatives,
    second_derivatives,
]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("fn", FUNCTIONS, ids=lambda fn: fn.__name__)
def test_public_functions_are_known(inputs, fn):
    jaxpr = jax.make_jaxpr(fn)(inputs)
    source = Source("all", None)

    assert set(prove(jaxpr, [None] * len(inputs)).outputs) == {None}
    assert source in prove(jaxpr, [source] * len(inputs)).outputs
