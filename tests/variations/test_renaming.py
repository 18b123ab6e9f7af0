"""A table of names moves numbers and changes none: out, back, and with an error where the two sides do not fit."""

from dataclasses import FrozenInstanceError, dataclass, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from numpy_transformer.foundations.linear import Linear
from numpy_transformer.foundations.parameters import map_tree, named_parameters
from numpy_transformer.layers.embedding import Embedding
from numpy_transformer.layers.layer_norm import LayerNorm
from numpy_transformer.layers.positional_encoding import LearnedPositions
from numpy_transformer.variations.renaming import Names, layer_count, matrix_shape
from strategies import assert_same, letters, read_only, rngs


@dataclass(frozen=True, eq=False)
class Layer:
    query: Linear
    key: Linear
    norm: LayerNorm


@dataclass(frozen=True, eq=False)
class Model:
    words: Embedding
    places: LearnedPositions
    layers: tuple[Layer, ...]
    head: Linear | None
    rate: float = 0.5


NAMES = Names("""
    words                  in.tok
    places                 in.pos
    layers.*.query+key     block.*.both_
    layers.*.norm          block.*.ln
    head?                  lm_head
""")


def make(rng, D=3, F=4, V=5, count=2, head=True, dtype=np.float64):
    def normal(*shape):
        return rng.normal(size=shape).astype(dtype)

    layers = tuple(Layer(Linear(normal(D, F), normal(F)), Linear(normal(D, F), normal(F)), LayerNorm(normal(D), normal(D)))
                   for _ in range(count))
    return Model(Embedding(normal(V, D)), LearnedPositions(normal(6, D)), layers, Linear(normal(D, V), normal(V)) if head else None)


def test_a_table_is_read_row_by_row():
    assert NAMES.theirs == {
        "words": "in.tok", "places": "in.pos", "layers.*.query": "block.*.both_", "layers.*.key": "block.*.both_",
        "layers.*.norm": "block.*.ln", "head": "lm_head"}
    assert NAMES.optional == {"head"}
    with pytest.raises(FrozenInstanceError):
        NAMES.text = ""


def test_every_array_gets_its_name_and_its_turn():
    model = make(np.random.default_rng(0))
    one, two = model.layers
    expected = {
        "in.tok.weight": model.words.table,
        "in.pos.weight": model.places.table,
        "block.0.both_weight": np.concatenate([one.query.weight.T, one.key.weight.T]),
        "block.0.both_bias": np.concatenate([one.query.bias, one.key.bias]),
        "block.0.ln.weight": one.norm.gain,
        "block.0.ln.bias": one.norm.shift,
        "block.1.both_weight": np.concatenate([two.query.weight.T, two.key.weight.T]),
        "block.1.both_bias": np.concatenate([two.query.bias, two.key.bias]),
        "block.1.ln.weight": two.norm.gain,
        "block.1.ln.bias": two.norm.shift,
        "lm_head.weight": model.head.weight.T,
        "lm_head.bias": model.head.bias,
    }
    state = NAMES.to_state(model)
    assert state.keys() == expected.keys()
    for name, array in expected.items():
        assert_array_equal(state[name], array, err_msg=name, strict=True)


def test_the_tables_order_is_the_order_of_the_stack():
    model = make(np.random.default_rng(0))
    names = Names(NAMES.text.replace("query+key", "key+query"))
    state = names.to_state(model)
    for i, layer in enumerate(model.layers):
        assert_array_equal(state[f"block.{i}.both_weight"], np.concatenate([layer.key.weight.T, layer.query.weight.T]))
    assert_same(names.from_state(map_tree(np.zeros_like, model), state), model)


def test_layers_beyond_the_ninth_keep_their_numbers():
    state = NAMES.to_state(make(np.random.default_rng(0), count=12))
    assert {name.split(".")[1] for name in state if name.startswith("block")} == {str(i) for i in range(12)}


@given(letters("DFV"), st.integers(1, 3), st.booleans(), st.sampled_from([np.float16, np.float32, np.float64]), rngs)
def test_there_and_back_is_exact(n, count, head, dtype, rng):
    model = make(rng, n.D, n.F, n.V, count, head, dtype)
    other = make(rng, n.D, n.F, n.V, count, head, np.float64)
    assert_same(NAMES.from_state(other, NAMES.to_state(read_only(model))), model)


@given(rngs)
def test_neither_side_sees_the_others_memory(rng):
    model = make(rng)
    state = NAMES.to_state(model)
    back = NAMES.from_state(model, state)
    kept = map_tree(np.copy, model)
    for array in state.values():
        assert array.flags.c_contiguous
        array[...] = 7
    assert_same(model, kept)
    assert_same(back, kept)
    for array in named_parameters(back).values():
        assert array.flags.c_contiguous and array.flags.owndata


def test_settings_come_from_the_template():
    model = make(np.random.default_rng(0))
    assert NAMES.from_state(replace(model, rate=0.25), NAMES.to_state(model)).rate == 0.25


def test_whole_numbers_become_float64_and_lists_arrays():
    model = make(np.random.default_rng(0))
    state = {name: np.round(9 * array).astype(int) for name, array in NAMES.to_state(model).items()}
    for given_state in (state, {name: array.tolist() for name, array in state.items()}):
        back = named_parameters(NAMES.from_state(model, given_state))
        assert all(array.dtype == np.float64 for array in back.values())
        assert_array_equal(back["layers.1.key.weight"], state["block.1.both_weight"][4:].T)


# ── What does not fit ────────────────────────────────────────────────────────────────────────────

def test_all_missing_and_all_extra_names_are_named_together():
    model = make(np.random.default_rng(0))
    state = NAMES.to_state(model)
    del state["in.pos.weight"], state["block.1.ln.bias"]
    with pytest.raises(ValueError, match=r"^missing in the state: block\.1\.ln\.bias, in\.pos\.weight$"):
        NAMES.from_state(model, state)
    state |= {"odd": np.zeros(2), "block.2.ln.bias": np.zeros(3)}
    with pytest.raises(ValueError, match=r"^missing in the state: block\.1\.ln\.bias, in\.pos\.weight; "
                                         r"unknown in the state: block\.2\.ln\.bias, odd$"):
        NAMES.from_state(model, state)
    state = NAMES.to_state(model) | {"odd": np.zeros(2)}
    with pytest.raises(ValueError, match=r"^unknown in the state: odd$"):
        NAMES.from_state(model, state)


@pytest.mark.parametrize("name", sorted(NAMES.to_state(make(np.random.default_rng(0)))))
def test_a_misshapen_array_is_named(name):
    model = make(np.random.default_rng(0))
    state = NAMES.to_state(model)
    for wrong in (state[name][1:], state[name][..., :-1], state[name][None]):
        with pytest.raises(ValueError, match=rf"^{name} has shape {str(wrong.shape).replace('(', '.').replace(')', '.')}: expected"):
            NAMES.from_state(model, state | {name: wrong})


@pytest.mark.parametrize("wrong", [np.full((5, 3), "1"), np.full((5, 3), None), np.ones((5, 3), complex)], ids=lambda a: str(a.dtype))
def test_what_holds_no_real_numbers_is_named(wrong):
    model = make(np.random.default_rng(0))
    with pytest.raises(TypeError, match=r"^in\.tok\.weight must hold real numbers"):
        NAMES.from_state(model, NAMES.to_state(model) | {"in.tok.weight": wrong})


def test_a_part_without_a_name_is_named():
    with pytest.raises(ValueError, match=r"^layers\.0\.query has no name on the other side$"):
        Names("words in.tok\nplaces in.pos").to_state(replace(make(np.random.default_rng(0)), words=Embedding(np.ones((2, 3)))))


def test_a_part_that_cannot_be_left_out_is_named():
    with pytest.raises(ValueError, match=r"^the model has no layers\.\*\.query, and block\.\*\.both_ cannot be left out$"):
        NAMES.to_state(make(np.random.default_rng(0), count=0))
    without_head = Names(NAMES.text.replace("?", ""))
    with pytest.raises(ValueError, match=r"^the model has no head, and lm_head cannot be left out$"):
        without_head.to_state(make(np.random.default_rng(0), head=False))


# ── Sizes ────────────────────────────────────────────────────────────────────────────────────────

def test_sizes_are_read_off_a_state():
    state = {"a": np.ones((2, 3)), "b": np.ones(4), "x.0.w": 0, "x.0.b": 0, "x.7.w": 0, "x.10.w": 0, "y.1": 0, "xx.3": 0}
    assert matrix_shape(state, "a") == (2, 3)
    assert layer_count(state, "x.") == 3
    assert layer_count(state, "z.") == 0
    with pytest.raises(ValueError, match=r"^b has shape \(4,\): expected a matrix$"):
        matrix_shape(state, "b")
    with pytest.raises(ValueError, match="^missing in the state: c$"):
        matrix_shape(state, "c")
