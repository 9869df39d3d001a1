"""The parts of jax that differ between releases or have no public name.

All that the step floor takes from `jax._src`, or reads off jax objects without a documented
name, is here. Each function has a test that fails when jax moves the name.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax.core import Tracer

from replicax.errors import CallSite, is_user_file

if TYPE_CHECKING:  # At run time `jax.extend` would bring Pallas along.
    from jax.extend.core import JaxprEqn


@functools.cache
def literal_type() -> type:
    """The class of constants in the equations of a jaxpr."""
    from jax.extend.core import Literal  # noqa: PLC0415 - brings Pallas along

    return Literal


def opened(jaxpr: Any) -> tuple[Any, Sequence[Any]]:
    """Splits a closed or open jaxpr into the jaxpr with its variables, and its constants.

    jax 0.10 closes a jaxpr in a wrapper; in jax 0.12 every jaxpr holds its own constants.
    """
    return getattr(jaxpr, "jaxpr", jaxpr), getattr(jaxpr, "consts", ())


def nested_jaxprs(eqn: JaxprEqn) -> Iterator[Any]:
    """The jaxprs that an equation holds, not those inside of them."""
    from jax.extend.core import jaxprs_in_params  # noqa: PLC0415 - brings Pallas along

    yield from jaxprs_in_params(eqn.params)


def scan_lengths(params: Mapping[str, Any]) -> tuple[int, int]:
    """Number of constants and of carried values of a `scan` equation."""
    if "num_consts" in params:  # jax 0.10
        return params["num_consts"], params["num_carry"]
    constants, carry, _ = params["ft_in"].unpack()  # jax 0.12
    return len(constants), len(carry)


def is_reference(aval: object) -> bool:
    """Whether an abstract value is a mutable array reference (`jax.new_ref`)."""
    kind: Any = type(aval)
    return _is_reference_type(kind)


@functools.cache
def _is_reference_type(kind: Any) -> bool:
    return any(base.__name__ == "AbstractRef" for base in kind.__mro__)


def is_dead_tracer(value: object) -> bool:
    """Whether a value is a tracer of none of the traces that are running: a leaked tracer.

    To be asked where the jaxpr was made, so that what encloses it is still running.
    """
    if not isinstance(value, Tracer):
        return False
    from jax.extend.core import take_current_trace  # noqa: PLC0415 - brings Pallas along

    with take_current_trace() as innermost:
        running: Any = innermost
    while running is not None and running is not value._trace:
        running = getattr(running, "parent_trace", None)
    return running is None


def equation_site(eqn: JaxprEqn) -> CallSite | None:
    """The innermost line of user code that made an equation, or None where not known."""
    trace = eqn.source_info.traceback
    if trace is None:
        return None
    for code, instruction in zip(*trace.raw_frames(), strict=True):
        if is_user_file(code.co_filename):
            line = type(trace).code_addr2line(code, instruction)
            return CallSite(code.co_filename, line, code.co_name)
    return None


def expand_high_primitive(eqn: JaxprEqn) -> Any:
    """The jaxpr that a `call_hi_primitive` equation stands for.

    Raises:
        Exception: Whatever the tracing of the primitive raises.
    """
    primitive = eqn.params["_prim"]

    def run(*flat: Any) -> Any:
        return primitive.expand(*jax.tree.unflatten(primitive.in_tree, flat))

    return jax.make_jaxpr(run)(*(atom.aval for atom in eqn.invars))


def without_mesh_context(eqn: JaxprEqn) -> JaxprEqn:
    """The equation as if no mesh had been set where it was traced; the same object if none was."""
    if eqn.ctx.cur_abstract_mesh.empty:
        return eqn
    no_mesh = jax.sharding.AbstractMesh((), ())
    with eqn.ctx.manager, jax.sharding.use_abstract_mesh(no_mesh):
        plain: JaxprEqn = eqn.replace(ctx=type(eqn.ctx)())  # of the settings that hold here
    return plain


CALLBACKS = frozenset({"debug_callback", "debug_print", "io_callback", "pure_callback"})
"""Primitives that call a Python function on the host."""


def called_back(eqn: JaxprEqn) -> Callable[..., Sequence[Any]]:
    """What an equation of `CALLBACKS` calls with flat arrays; it returns flat results."""
    if eqn.primitive.name == "debug_print":
        return functools.partial(eqn.primitive.impl, **eqn.params)
    call = eqn.params["callback"]
    return (lambda *flat: call(*flat) or ()) if eqn.primitive.name == "debug_callback" else call


def bind_callback(
    eqn: JaxprEqn, host: Callable[..., Any], operands: Sequence[Any]
) -> Sequence[Any]:
    """Write an equation of `CALLBACKS` into the running trace, with another host function."""
    params = eqn.params
    if eqn.primitive.name == "debug_print":
        options = {"ordered": params["ordered"], "partitioned": params["partitioned"]}
        jax.debug.callback(host, *operands, **options)
        return ()
    results: Sequence[Any] = eqn.primitive.bind(*operands, **{**params, "callback": host})
    return results


def with_equations(jaxpr: Any, equations: Sequence[JaxprEqn]) -> Any:
    """A closed or open jaxpr with other equations."""
    inner, _ = opened(jaxpr)
    replaced = inner.replace(eqns=list(equations))
    return replaced if inner is jaxpr else jaxpr.replace(jaxpr=replaced)


def acts_in_order(eqn: JaxprEqn) -> bool:
    """Whether an equation has to keep its place among others: it prints, calls back, or mutates.

    That it names an axis is an effect for jax, which restricts no order.
    """
    effects = any(type(effect).__name__ != "NamedAxisEffect" for effect in eqn.effects)
    return effects or any(is_reference(atom.aval) for atom in eqn.invars)


def product(eqn: JaxprEqn, factor: int) -> JaxprEqn:
    """An equation of one number, as the product of that number with another."""
    operand: Any = eqn.invars[0]
    number = np.asarray(factor, operand.aval.dtype)
    jaxpr, _ = opened(jax.make_jaxpr(lambda x: jax.lax.mul(x, number))(operand.aval))
    [template] = jaxpr.eqns
    operands = [operand, template.invars[1]]
    made: JaxprEqn = template.replace(
        invars=operands, outvars=eqn.outvars, source_info=eqn.source_info
    )
    return made


def forget_calls(jitted: Any) -> None:
    """Empties what a jitted function remembers of its calls; traces and programs are kept.

    After a call that failed while it was traced, all calls with arguments of those shapes take
    the slow way through Python, for ever.
    """
    jitted._clear_cache()


def registered_primitives() -> Iterator[str]:
    """Names of the primitives that the running jax can compile. For tests."""
    from jax._src.interpreters import mlir  # noqa: PLC0415 - tests alone need it.

    tables = [mlir._lowerings, *mlir._platform_specific_lowerings.values()]
    yield from {primitive.name for table in tables for primitive in table}
