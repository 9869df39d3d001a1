"""`rx.explain`: what it says is what the compiled program is."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from xml.etree import ElementTree as ET

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx
from replicax.collectives import looking_ahead


@pytest.fixture(scope="module")
def strategy():
    return rx.MirroredStrategy(["cpu:0", "cpu:1"])


@pytest.fixture(scope="module")
def training(strategy):
    """A step with a mirrored and a sync-on-read variable, and its dataset with a remainder."""
    with strategy.scope():
        w = rx.Variable(jnp.zeros((4, 3)), name="w")
        seen = rx.Variable(0.0, name="seen", synchronization="on_read", aggregation="sum")

    @rx.function
    def step(batch):
        def replica_step(batch):
            x, y = batch
            ctx = rx.get_replica_context()

            def loss_fn(w):
                return ctx.global_mean(jnp.square(x @ w - y).sum(-1))

            loss, gradient = jax.value_and_grad(loss_fn)(w.value)
            w.assign_sub(0.1 * ctx.all_reduce("mean", gradient))
            seen.assign_add(ctx.local_sum(jnp.square(y).sum(-1)))
            return loss, x * 2

        return strategy.run(replica_step, args=(batch,))

    rows = (np.ones((11, 4), np.float32), np.ones((11, 3), np.float32))
    dataset = strategy.distribute_dataset(rx.data.from_arrays(rows).batch(4))
    return step, dataset, (w, seen)


@pytest.fixture(scope="module")
def shown(training):
    step, dataset, _ = training
    return rx.explain(step, next(iter(dataset)), remainder=True)


def test_the_bytes_are_those_of_the_compiled_program(training, shown):
    step, dataset, _ = training
    full, *_, rest = dataset

    for program, batch in zip(shown.programs, (full, rest), strict=True):
        assert program.bytes_compiled == sum(each.bytes for each in step.collectives(batch))
        assert program.bytes_sent == program.bytes_compiled
        assert program.bytes_compiled > 0


def test_requests_have_the_bytes_of_the_leaves(shown):
    assert [(each.kind, each.op, each.bytes) for each in shown.programs[0].requests] == [
        ("all_reduce", "SUM", 4),
        ("all_reduce", "MEAN", 4 * 3 * 4),
    ]
    assert "test_explain.py" in shown.programs[0].requests[1].call_site
    assert [pack.arrays for pack in shown.programs[0].requests[1].packs] == [("the value",)]


def test_packs_are_shown_and_have_the_bytes_of_the_compiled_program(strategy):
    weights = {"large": jnp.ones((200, 100)), "b": jnp.ones(100), "a": jnp.ones((4, 200))}

    @rx.function
    def step(weights, x):
        def replica_step(weights, x):
            def loss(w):
                return jnp.tanh(jnp.tanh(x @ w["a"]) @ w["large"] + w["b"]).sum()

            gradients = jax.grad(loss)(weights)
            return rx.get_replica_context().all_reduce("mean", gradients)

        return strategy.run(replica_step, args=(weights, x))

    shown = rx.explain(step, weights, rx.PerReplica([jnp.ones((2, 4)), jnp.ones((2, 4))]))

    [program] = shown.programs
    packs = program.requests[0].packs
    assert [(pack.arrays, pack.bytes) for pack in packs] == [
        (("['large']",), 80_000),
        (("['b']", "['a']"), 400 + 3200),
    ]
    compiled = sorted(4 * int(np.prod(s)) for each in program.compiled for s in each.shapes)
    assert compiled == sorted(pack.bytes for pack in packs)
    text = str(shown)
    assert "Travels together" in text
    assert "['b'], ['a']" in text


def test_each_result_says_why_it_is_equal_or_not(shown):
    notes = {each.name: (each.is_mirrored, each.note) for each in shown.programs[0].outputs}

    assert notes["result[0]"] == (True, "equal: collective #1 combined what differs")
    assert notes["variable `w`"] == (True, "equal: collective #1 combined what differs")
    assert notes["result[1]"] == (False, "differs: comes from argument `batch[0]`")
    assert not notes["variable `seen`"][0]


def test_what_is_computed_from_mirrored_values_alone_is_named_so(strategy):
    shown = rx.explain(lambda x: strategy.run(lambda x: x + 1, args=(x,)), jnp.ones(3))

    [result] = shown.programs[0].outputs
    assert result.note == "equal: computed from mirrored values alone"
    assert shown.programs[0].bytes_sent == shown.programs[0].bytes_compiled == 0


def test_variables_arguments_and_memory(shown):
    assert {each.name: each.bytes for each in shown.variables} == {"w": 48, "seen": 4}
    assert [(each.name, each.shape) for each in shown.arguments] == [
        ("batch[0]", (2, 4)),
        ("batch[1]", (2, 3)),
    ]
    memory = shown.programs[0].memory
    assert memory.reused == 48 + 4
    assert memory.arguments == 2 * (4 + 3) * 4 + 48 + 4


def test_donated_arguments_are_marked(strategy):
    @rx.function(donate="state")
    def step(state, batch):
        return strategy.run(lambda s, b: (s + 1, b), args=(state, batch))

    shown = rx.explain(step, jnp.ones(2), rx.PerReplica([jnp.ones(3), jnp.ones(3)]))

    assert [(each.name, each.note) for each in shown.arguments] == [
        ("state", "donated"),
        ("batch", ""),
    ]


def test_nothing_is_run_and_nothing_used_up(training, strategy):
    step, dataset, (w, seen) = training
    iterator = iter(dataset)
    before = (np.asarray(w.value), float(seen.value))
    group = strategy.group_key
    with looking_ahead():
        key = strategy.collective_keys.instance_key(group)

    shown = rx.explain(lambda it: step.fn(it.get_next()), iterator)

    assert [program.batch for program in shown.programs] == ["full", "remainder"]
    np.testing.assert_array_equal(before[0], w.value)
    assert before[1] == float(seen.value)
    assert len(list(iterator)) == 3
    assert shown.programs[0].requests[0].instance_key == key
    with looking_ahead():
        assert strategy.collective_keys.instance_key(group) == key


def test_an_iterator_without_a_remainder_has_one_program(strategy):
    dataset = strategy.distribute_dataset(rx.data.from_arrays(np.ones((8, 2))).batch(4))

    def step(iterator):
        return strategy.run(lambda x: x, args=(iterator.get_next(),))

    assert len(rx.explain(step, iter(dataset)).programs) == 1


def test_replicas_that_are_not_there(training):
    step, dataset, _ = training
    batch = next(iter(dataset))

    shown = rx.explain(step, batch, replicas=1024, remainder=True, compute_seconds=1e-3)

    assert (shown.replicas, shown.is_imagined) == (1024, True)
    assert [program.compiled for program in shown.programs] == [None, None]
    assert shown.programs[0].bytes_sent == rx.explain(step, batch).programs[0].bytes_sent
    assert shown.arguments[0].shape == (2, 4)
    last = shown.predict()[-1]
    assert last.replicas == 1024
    assert last.communication_seconds == pytest.approx(20 * 5e-6, rel=1e-3)
    assert last.efficiency == pytest.approx(1 / (1 + 0.1), rel=1e-3)


def test_gathered_results_grow_with_the_replicas(strategy):
    def step(x):
        def replica_fn(x):
            return rx.get_replica_context().all_gather(x, axis=0)

        return strategy.run(replica_fn, args=(x,))

    rows = rx.PerReplica([jnp.ones((2, 3)), jnp.ones((2, 3))])

    [result] = rx.explain(step, rows, replicas=512).programs[0].outputs

    assert result.shape == (1024, 3)


def test_the_step_may_ask_for_the_number_of_replicas(strategy):
    def step(x):
        count = strategy.num_replicas_in_sync
        return strategy.run(lambda x: jnp.ones(count) * x.sum(), args=(x,))

    rows = rx.PerReplica([jnp.ones(3), jnp.ones(3)])

    assert rx.explain(step, rows, replicas=7).programs[0].outputs[0].shape == (7,)
    assert strategy.num_replicas_in_sync == 2


def test_a_program_is_traced_once_and_may_come_from_the_cache(strategy):
    traced = []

    def step(x):
        def replica_fn(x):
            traced.append(x.shape)
            return rx.get_replica_context().all_reduce("sum", x * 3 - 1)

        return strategy.run(replica_fn, args=(x,))

    rows = rx.PerReplica([jnp.ones(7), jnp.ones(7)])
    programs = [rx.explain(step, rows).programs[0] for _ in range(2)]

    assert traced == [(7,), (7,)]
    # The tests keep all programs; so does another worker of this session, which may be first.
    assert programs[0].compile_cache in ("miss", "hit")
    assert programs[1].compile_cache == "hit"
    assert all(each.proof_seconds > 0 and each.trace_seconds > 0 for each in programs)


def test_json_has_everything(shown):
    facts = json.loads(shown.to_json())

    assert facts == shown.as_dict()
    assert facts["programs"][1]["batch"] == "remainder"
    assert [each["bytes"] for each in facts["programs"][0]["sent"]] == [4 + 48]
    assert [each["replicas"] for each in facts["predictions"]] == [1, 2, 4, 8]


def test_the_text_names_what_matters(shown):
    text = str(shown)

    assert re.search(r"proved in .*, compiled in .* \(compile cache: (hit|miss)\)", text)
    for words in ("step: 2 replica(s)", "the remainder, padded", "all_reduce MEAN", "48 B", "psum"):
        assert words in text
    assert max(map(len, text.splitlines())) <= 110


def test_the_picture_is_a_drawing(shown):
    root = ET.fromstring(shown.to_svg())  # noqa: S314 - our own text

    words = " ".join(each.text or "" for each in root.iter() if each.tag.endswith("text"))
    assert "2 x replica_step" in words
    assert "variable `w`" in words


class Page(HTMLParser):
    """What is open, what was said, and what the page would fetch."""

    def __init__(self, text):
        super().__init__()
        self.open, self.words, self.fetched = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.fetched += [value for name, value in attrs if name in ("src", "href")]
        if tag not in ("meta", "link"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)


def test_the_page_has_both_programs_and_needs_nothing_else(shown):
    page = Page(shown.to_html())

    assert page.open == []
    assert page.fetched == ["data:,"]
    for words in ("A full batch", "The remainder, padded", "all_reduce MEAN", "variable `w`"):
        assert words in page.words
    assert any("of results reuse that of arguments" in words for words in page.words)
    assert any("compile cache: " in words for words in page.words)


def test_an_error_of_the_trace_is_that_of_a_call(strategy):
    with strategy.scope():
        w = rx.Variable(0.0, name="drifting")

    def step(x):
        strategy.run(w.assign, args=(x,))

    with pytest.raises(rx.errors.VaryingWriteError, match="drifting"):
        rx.explain(step, rx.PerReplica([1.0, 2.0]))


@pytest.mark.parametrize("replicas", [0, -1, 2.5, "many", True])
def test_a_wrong_number_of_replicas_is_refused(replicas):
    with pytest.raises(rx.errors.InvalidArgumentError, match="replicas="):
        rx.explain(lambda x: x, 1.0, replicas=replicas)


def test_a_step_without_a_strategy_has_one_replica():
    assert rx.explain(lambda x: x + 1, 1.0).replicas == 1
    with pytest.raises(rx.errors.ContextError, match="runs on none"):
        rx.explain(lambda x: x + 1, 1.0, replicas=4)


def test_a_method_is_explained_with_what_it_donates(strategy):
    class Trainer:
        @rx.function(donate="state")
        def step(self, state):
            return strategy.run(lambda s: s + 1, args=(state,))

    shown = rx.explain(Trainer().step, jnp.ones(2))

    assert [(each.name, each.note) for each in shown.arguments] == [("state", "donated")]
