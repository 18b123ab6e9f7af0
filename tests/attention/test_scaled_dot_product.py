import loops
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal
from strategies import (
    assert_close, assert_keeps_dtype, assert_pure_and_linear, assert_same, assert_same_for_layouts, held_bytes, letters,
    masks, rates, read_only, rngs,
)

from numpy_transformer.attention.masks import causal_mask, padding_mask
from numpy_transformer.attention.scaled_dot_product import attention_weights, scaled_dot_product_attention
from numpy_transformer.foundations.dropout import dropout
from numpy_transformer.foundations.gradient_check import check_gradients

T, F = True, False
QUIET = dict(over="raise", invalid="raise", divide="raise")


def seeded(seed=0):
    return np.random.default_rng(seed)


@st.composite
def cases(draw):
    """A generator, q, k and v of a drawn rank with all sizes different, and a mask or None"""
    n, rng = draw(letters("BTSKM")), draw(rngs)
    leading = draw(st.sampled_from([(), (n.B,), (1, n.B), (n.B, 1), (2, 3)]))
    q, k, v = (rng.normal(size=(*leading, *shape)) for shape in ((n.T, n.K), (n.S, n.K), (n.S, n.M)))
    return rng, q, k, v, draw(st.none() | masks((*leading, n.T, n.S)))


def weights_under(mask):
    return lambda q, k: attention_weights(q, k, mask)


def attention_under(mask, rate=0.0, seed=None):
    """Attention as a function of q, k and v alone: the same draw at every call"""
    return lambda q, k, v: scaled_dot_product_attention(
        q, k, v, mask, dropout_rate=rate, rng=None if seed is None else seeded(seed))


# ── Gradients and second opinions ────────────────────────────────────────────────────────────────

@given(cases())
def test_gradients_of_the_weights(case):
    rng, q, k, _, mask = case
    assert list(check_gradients(weights_under(mask), q, k, rng=rng, coordinates=20)) == ["q", "k"]


@given(cases(), rates)
def test_gradients(case, rate):
    rng, q, k, v, mask = case
    assert list(check_gradients(attention_under(mask), q, k, v, rng=rng, coordinates=20)) == ["q", "k", "v"]
    check_gradients(attention_under(mask, rate, seed=1), q, k, v, rng=rng, coordinates=20)


@given(cases())
def test_scalar_loops_agree_on_the_weights(case):
    rng, q, k, _, mask = case
    weights, backward = attention_weights(q, k, mask)
    d_weights = rng.normal(size=weights.shape)
    assert_close(weights, loops.attention_weights(q, k, mask))
    expected = loops.attention_weights_backward(q, k, mask, d_weights)
    for found, gradient in zip(backward(d_weights), expected, strict=True):
        assert_close(found, gradient)


@given(cases(), st.none() | rates)
def test_scalar_loops_agree(case, rate):
    rng, q, k, v, mask = case
    keep_scale = None
    if rate is not None:
        keep_scale, _ = dropout(np.ones((*q.shape[:-1], k.shape[-2])), rate, seeded(1))
    output, backward = attention_under(mask, rate or 0.0, seed=1)(q, k, v)
    d_output = rng.normal(size=output.shape)
    assert_close(output, loops.attention(q, k, v, mask, keep_scale))
    expected = loops.attention_backward(q, k, v, mask, d_output, keep_scale)
    for found, gradient in zip(backward(d_output), expected, strict=True):
        assert_close(found, gradient)


@given(cases(), rates)
def test_manners(case, rate):
    rng, q, k, v, mask = case
    mask = None if mask is None else read_only(mask)
    for f, arguments in ((weights_under(mask), (q, k)), (attention_under(mask, rate, seed=1), (q, k, v)),
                         (attention_under(mask), (q, k, v))):
        assert_pure_and_linear(f, *arguments, rng=rng)
        assert_same_for_layouts(f, *arguments, rng=rng)
        assert_keeps_dtype(f, *arguments, rng=rng)


@given(cases())
def test_float16_stays_float16(case):
    rng, q, k, v, mask = case
    assert_keeps_dtype(attention_under(mask), q, k, v, rng=rng, dtype=np.float16, near=0.05)


@given(cases())
def test_a_mask_in_other_memory(case):
    rng, q, k, v, mask = case
    mask = np.array(True) if mask is None else mask
    shape = (*q.shape[:-1], k.shape[-2])
    expected = scaled_dot_product_attention(q, k, v, np.ascontiguousarray(np.broadcast_to(mask, shape)))[0]
    for other in (np.broadcast_to(mask, shape), np.asfortranarray(mask)):
        assert_same(scaled_dot_product_attention(q, k, v, other)[0], expected)


def test_integers_and_lists_are_computed_in_float64():
    q, k, v = [[1, 0], [0, 1]], [[1, 0], [0, 1], [1, 1]], np.array([[1, 2], [3, 4], [5, 6]], np.int16)
    output, backward = scaled_dot_product_attention(q, k, v)
    expected, _ = scaled_dot_product_attention(*(np.array(a, np.float64) for a in (q, k, v)))
    assert_same(output, expected)
    assert [g.dtype for g in backward(np.ones((2, 2)))] == [np.float64] * 3
    assert attention_weights(q, k)[0].dtype == np.float64


# ── Properties ───────────────────────────────────────────────────────────────────────────────────

@given(cases())
def test_weights_are_a_distribution_over_the_keys_a_query_may_see(case):
    _, q, k, _, mask = case
    weights, _ = attention_weights(q, k, mask)
    seen = np.broadcast_to(True if mask is None else mask, weights.shape)
    assert_array_equal(weights > 0, seen)
    assert_close(weights.sum(axis=-1), seen.any(axis=-1).astype(float), 1e-14)


@given(cases())
def test_what_is_hidden_has_no_influence_and_no_gradient(case):
    rng, q, k, v, mask = case
    seen = np.broadcast_to(True if mask is None else mask, (*q.shape[:-1], k.shape[-2]))
    hidden_key, blind_query = ~seen.any(axis=-2), ~seen.any(axis=-1)
    with np.errstate(**QUIET):
        output, backward = scaled_dot_product_attention(q, k, v, mask)
        dq, dk, dv = backward(rng.normal(size=output.shape))
    for array in (output[blind_query], dq[blind_query], dk[hidden_key], dv[hidden_key]):
        assert_array_equal(array, 0)
    k, v = k.copy(), v.copy()
    k[hidden_key], v[hidden_key] = 1e3 * rng.normal(size=(2, 1))
    assert_close(scaled_dot_product_attention(q, k, v, mask)[0], output)
    k[~hidden_key] += 1
    v[~hidden_key] += 1
    if seen.any():
        changed = scaled_dot_product_attention(q, k, v, mask)[0] != output
        assert changed[~blind_query].any()


@given(cases(), st.data())
def test_the_order_of_the_keys_does_not_matter_and_that_of_the_queries_is_kept(case, data):
    _, q, k, v, mask = case
    T, S = q.shape[-2], k.shape[-2]
    keys, queries = data.draw(st.permutations(range(S))), data.draw(st.permutations(range(T)))
    full = np.array(np.broadcast_to(True if mask is None else mask, (*q.shape[:-1], S)))
    output, _ = scaled_dot_product_attention(q, k, v, mask)
    other, _ = scaled_dot_product_attention(q[..., queries, :], k[..., keys, :], v[..., keys, :],
                                            full[..., queries, :][..., keys])
    assert_close(other, output[..., queries, :])


@given(cases())
def test_each_leading_index_is_an_attention_of_its_own(case):
    _, q, k, v, mask = case
    output, _ = scaled_dot_product_attention(q, k, v, mask)
    full = np.broadcast_to(True if mask is None else mask, (*q.shape[:-1], k.shape[-2]))
    for n in np.ndindex(q.shape[:-2]):
        assert_close(output[n], scaled_dot_product_attention(q[n], k[n], v[n], full[n])[0])


@pytest.mark.parametrize("B", [1, 2])
@pytest.mark.parametrize("rate", [0.0, 0.3])
@pytest.mark.parametrize("padded", [False, True])
def test_no_query_sees_the_future(B, rate, padded):
    rng, T, K = seeded(4), 5, 3
    q, k, v = rng.normal(size=(3, B, 2, T, K))
    mask = causal_mask(T)
    if padded:
        mask = mask & padding_mask(np.array([[1, 1, 0, 1, 1], [1, 1, 1, 1, 0]][:B]), 0)
    before, _ = attention_under(mask, rate, seed=3)(q, k, v)
    for t in range(T):
        other = q.copy(), k.copy(), v.copy()
        for array in other:
            array[:, :, t] = rng.normal(size=(B, 2, K))
        after, _ = attention_under(mask, rate, seed=3)(*other)
        assert_close(after[:, :, :t], before[:, :, :t])
        assert (after[:, :, t] != before[:, :, t]).any()


@given(cases())
def test_rate_zero_or_no_generator_is_attention_without_dropout(case):
    rng, q, k, v, mask = case
    plain, _ = scaled_dot_product_attention(q, k, v, mask)
    assert_same(scaled_dot_product_attention(q, k, v, mask, dropout_rate=0.0, rng=rng)[0], plain)
    assert_same(scaled_dot_product_attention(q, k, v, mask, dropout_rate=0.7)[0], plain)
    silent, backward = scaled_dot_product_attention(q, k, v, mask, dropout_rate=1, rng=rng)
    assert_same((silent, *backward(np.ones(silent.shape))), tuple(0 * a for a in (plain, q, k, v)))


def test_dropout_is_drawn_for_each_weight_by_itself_and_by_the_seed():
    q, k = np.zeros((3, 4, 20, 2)), np.zeros((3, 4, 30, 2))
    v = np.broadcast_to(np.eye(30), (3, 4, 30, 30))  # equal scores and v = 1: the output is the weights
    output, _ = attention_under(None, 0.25, seed=1)(q, k, v)
    assert_close(np.unique(output), [0, 1 / 30 / 0.75])
    kept = output != 0
    assert abs(kept.mean() - 0.75) < 4 * np.sqrt(0.25 * 0.75 / kept.size)
    for axis in range(4):
        assert (kept.any(axis=axis) & ~kept.all(axis=axis)).any()
    assert_same(attention_under(None, 0.25, seed=1)(q, k, v)[0], output)
    assert (attention_under(None, 0.25, seed=2)(q, k, v)[0] != output).any()


# ── Values ───────────────────────────────────────────────────────────────────────────────────────

def test_fruit_among_apple_banana_and_chair():
    q, k = np.array([[1.0, 0.5]]), np.array([[0.9, 0.6], [0.8, 0.7], [0.1, 0.1]])
    v = np.array([[5.0, 2], [4, 3], [1, 9]])
    assert_close(attention_weights(q, k)[0], [[0.4096, 0.3954, 0.1950]], 5e-5)
    assert_close(scaled_dot_product_attention(q, k, v)[0], [[3.8247, 3.7601]], 5e-5)
    # Without the division, which q √2 undoes, the weights are those of softmax([1.2, 1.15, 0.15]).
    assert_close(attention_weights(q * np.sqrt(2), k)[0], [[0.4346, 0.4134, 0.1521]], 5e-5)
    assert_close(scaled_dot_product_attention(q * np.sqrt(2), k, v)[0], [[3.9784, 3.4779]], 5e-5)


def test_a_query_that_may_see_no_key():
    q, k, v = (np.array(a, np.float64) for a in ([[1, 0], [0, 1]], [[1, 0], [0, 1], [1, 1]], [[1, 2], [3, 4], [5, 6]]))
    keep = np.array([[T, F, T], [F, F, F]])
    with np.errstate(**QUIET):
        assert_close(attention_weights(q, k, keep)[0], [[0.5, 0, 0.5], [0, 0, 0]])
        output, backward = scaled_dot_product_attention(q, k, v, keep)
        dq, dk, dv = backward(np.eye(2))
    r = 0.7071067811865475
    assert_close(output, [[3, 4], [0, 0]])
    assert_close(dq, [[0, r], [0, 0]])
    assert_close(dk, [[-r, 0], [0, 0], [r, 0]])
    assert_close(dv, [[0.5, 0], [0, 0], [0.5, 0]])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_hidden_means_excluded_not_merely_small(dtype):
    q, k, v = (np.array(a, dtype) for a in ([[1e6]], [[0], [1e6]], [[1], [2]]))
    assert_array_equal(scaled_dot_product_attention(q, k, v, np.array([[T, F]]))[0], [[1]])
    assert_array_equal(scaled_dot_product_attention(q, k, v, np.array([[F, T]]))[0], [[2]])
    assert_array_equal(scaled_dot_product_attention(q, k, v)[0], [[2]])


def uniform(mask, *leading, S):
    """The weights when all scores are equal: shared evenly among the keys that the mask shows"""
    q = np.zeros((*leading, 2))
    k, v = np.zeros((*leading[:-1], S, 2)), np.broadcast_to(np.eye(S), (*leading[:-1], S, S))
    return scaled_dot_product_attention(q, k, v, mask)[0]


def test_true_means_may_attend():
    expected = [[1, 0, 0], [0.5, 0.5, 0], [1 / 3] * 3]
    assert_close(uniform(np.tri(3) > 0, 3, S=3), expected)
    for dtype in (np.int64, np.float64, np.uint8):
        with pytest.raises(TypeError, match=f"mask must be a boolean array.* not {np.dtype(dtype)}"):
            uniform(np.tri(3).astype(dtype), 3, S=3)


def test_masks_broadcast_from_the_right():
    rows = np.array([[1, 0, 0], [0.5, 0.5, 0], [1 / 3] * 3])
    assert_close(uniform(np.tri(3) > 0, 3, 2, 3, S=3), np.broadcast_to(rows, (3, 2, 3, 3)))
    padding = np.ones((3, 1, 1, 3), bool)
    padding[1, 0, 0, 2] = False
    expected = np.full((3, 2, 3, 3), 1 / 3)
    expected[1] = [0.5, 0.5, 0]
    assert_close(uniform(padding, 3, 2, 3, S=3), expected)
    with pytest.raises(ValueError, match=r"mask has shape \(2, 3\), .* \(2, 1, 4, 3\)"):
        uniform(np.ones((2, 3), bool), 2, 1, 4, S=3)


def test_the_last_query_sees_every_key():
    assert_close(uniform(causal_mask(2, 5), 2, S=5), [[0.25] * 4 + [0], [0.2] * 5])
    assert_close(uniform(causal_mask(3, 2), 3, S=2), [[0, 0], [1, 0], [0.5, 0.5]])


def test_one_array_as_q_k_and_v():
    x, dy = read_only((np.eye(2), np.eye(2)))
    output, backward = scaled_dot_product_attention(x, x, x)
    gradients = backward(dy)
    a, b = 0.982558742416878, 0.017441257583122
    assert_close(sum(gradients), [[a, b], [b, a]])
    assert_close(output, attention_weights(np.eye(2), np.eye(2))[0])
    assert_same(backward(dy), gradients)
    assert_array_equal(x, np.eye(2))


def test_one_array_as_q_k_and_v_with_finite_differences():
    def self_attention(x):
        output, backward = scaled_dot_product_attention(x, x, x, causal_mask(4))
        return output, lambda dy: sum(backward(dy))

    check_gradients(self_attention, seeded().normal(size=(2, 4, 3)), rng=seeded())


# ── Sizes of none and one ────────────────────────────────────────────────────────────────────────

@pytest.mark.parametrize("B, T, S", [(0, 3, 4), (2, 0, 4), (2, 3, 0), (0, 0, 0)])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("rate", [0.0, 0.3])
def test_nothing_to_attend(B, T, S, masked, rate):
    q, k, v = np.ones((B, T, 5)), np.ones((B, S, 5)), np.ones((B, S, 6))
    with np.errstate(all="raise"):
        output, backward = attention_under(np.ones((T, S), bool) if masked else None, rate, seed=0)(q, k, v)
        gradients = backward(np.ones((B, T, 6)))
    assert_array_equal(output, np.zeros((B, T, 6)))
    assert [g.shape for g in gradients] == [q.shape, k.shape, v.shape]
    for gradient in gradients:
        assert_array_equal(gradient, np.zeros(gradient.shape))


def test_one_query_and_one_key():
    q, k, v, dy = seeded().normal(size=(4, 1, 1, 3))
    assert_array_equal(attention_weights(q, k)[0], [[[1]]])
    output, backward = scaled_dot_product_attention(q, k, v)
    assert_same((output, *backward(dy)), (v, 0 * q, 0 * k, dy))


# ── Memory ───────────────────────────────────────────────────────────────────────────────────────

@given(letters("BHTSKM"), st.sampled_from([np.float32, np.float64]), st.booleans(), st.none() | rates)
def test_the_pullback_holds_what_the_page_says(n, dtype, masked, rate):
    rng = seeded()
    q, k, v = (rng.normal(size=(n.B, n.H, *shape)).astype(dtype) for shape in ((n.T, n.K), (n.S, n.K), (n.S, n.M)))
    mask = rng.random((n.B, n.H, n.T, n.S)) < 0.5 if masked else None
    _, backward = attention_under(mask, rate or 0.0, seed=0)(q, k, v)
    numbers = n.T * n.K + n.S * n.K + n.S * n.M + n.T * n.S
    bytes_of_bits = 0
    if rate is not None:
        numbers += n.T * n.S
        bytes_of_bits = n.T * n.S
    assert held_bytes(backward) == n.B * n.H * (numbers * np.dtype(dtype).itemsize + bytes_of_bits)


def test_the_count_of_held_bytes_counts():
    a, b = np.ones((3, 4)), np.ones(5, np.float32)
    view = a[1:].T

    def outer():
        return a.sum() + view.sum() + inner()

    def inner():
        return b.sum()

    assert held_bytes(outer) == 12 * 8 + 5 * 4
    assert held_bytes(inner) == 5 * 4


# ── Refused ──────────────────────────────────────────────────────────────────────────────────────

def ones(*shape):
    return np.ones(shape)


SHARED = [  # q, k, then the error
    (ones(3), ones(3), ValueError, r"^q has shape \(3,\): expected \(\.\.\., T, K\)"),
    (ones(3), ones(4, 3), ValueError, r"^q has shape \(3,\)"),
    (ones(), ones(4, 3), ValueError, r"^q has shape \(\)"),
    (ones(2, 3), ones(4, 5), ValueError, r"^k has shape \(4, 5\): its last axis must be 3 wide"),
    (ones(2, 3), ones(3, 2), ValueError, r"^k has shape \(3, 2\)"),
    (ones(2, 3), ones(3), ValueError, r"^q has shape \(2, 3\), k \(3,\): their leading axes differ"),
    (ones(2, 3), ones(2, 4, 3), ValueError, r"^q has shape \(2, 3\), k \(2, 4, 3\): their leading axes differ"),
    (ones(5, 2, 3), ones(6, 4, 3), ValueError, r"^q has shape \(5, 2, 3\), k \(6, 4, 3\): their leading axes differ"),
    (ones(5, 2, 3), ones(1, 4, 3), ValueError, r"^q has shape \(5, 2, 3\), k \(1, 4, 3\)"),
    (ones(5, 6, 2, 3), ones(6, 5, 4, 3), ValueError, r"^q has shape \(5, 6, 2, 3\), k \(6, 5, 4, 3\)"),
    (ones(2, 3).astype(complex), ones(4, 3), TypeError, "^q must hold real numbers, not dtype complex128"),
    (ones(2, 3), ones(4, 3).astype(str), TypeError, "^k must hold real numbers, not dtype <U"),
]


@pytest.mark.parametrize("q, k, error, message", SHARED)
def test_queries_and_keys_that_do_not_fit(q, k, error, message):
    with pytest.raises(error, match=message):
        attention_weights(q, k)
    with pytest.raises(error, match=message):
        scaled_dot_product_attention(q, k, np.ones(k.shape))


@pytest.mark.parametrize("v, error, message", [
    (ones(5, 7), ValueError, r"^k has shape \(4, 3\), v \(5, 7\): they differ before the last axis"),
    (ones(1, 7), ValueError, r"^k has shape \(4, 3\), v \(1, 7\)"),
    (ones(4), ValueError, r"^k has shape \(4, 3\), v \(4,\)"),
    (ones(1, 4, 7), ValueError, r"^k has shape \(4, 3\), v \(1, 4, 7\)"),
    (ones(4, 7).astype(complex), TypeError, "^v must hold real numbers, not dtype complex128"),
])
def test_values_that_do_not_fit(v, error, message):
    with pytest.raises(error, match=message):
        scaled_dot_product_attention(ones(2, 3), ones(4, 3), v)


@pytest.mark.parametrize("mask, error, message", [
    (np.ones((3, 4), bool), ValueError, r"^mask has shape \(3, 4\), which does not broadcast to the scores' \(2, 4\)"),
    (np.ones((4, 2), bool), ValueError, r"^mask has shape \(4, 2\)"),
    (np.ones((1, 2, 4), bool), ValueError, r"^mask has shape \(1, 2, 4\)"),
    (np.ones((2, 4), int), TypeError, "^mask must be a boolean array, True = may attend, not int64"),
    (np.zeros((2, 4)), TypeError, "^mask must be a boolean array, True = may attend, not float64"),
    ([[True] * 4] * 2, TypeError, "^mask must be a boolean array, True = may attend, not list"),
])
def test_masks_that_do_not_fit(mask, error, message):
    for attempt in (lambda: attention_weights(ones(2, 3), ones(4, 3), mask),
                    lambda: scaled_dot_product_attention(ones(2, 3), ones(4, 3), ones(4, 5), mask)):
        with pytest.raises(error, match=message):
            attempt()


@pytest.mark.parametrize("rate", [-0.1, 1.5, np.nan, "0.1", None])
def test_rates_out_of_range(rate):
    for rng in (None, seeded()):
        with pytest.raises(ValueError, match=rf"rate must be a number at least 0 and at most 1, not '?{rate}'?$"):
            scaled_dot_product_attention(ones(2, 3), ones(4, 3), ones(4, 5), dropout_rate=rate, rng=rng)


def test_scores_that_are_no_numbers():
    q = ones(2, 3)
    q[1, 2] = np.nan
    with pytest.raises(ValueError, match="NaN"):
        scaled_dot_product_attention(q, ones(4, 3), ones(4, 5))


def test_settings_are_keywords():
    with pytest.raises(TypeError, match="positional"):
        scaled_dot_product_attention(ones(2, 3), ones(4, 3), ones(4, 5), None, 0.1)
