"""The scalar loops against values worked out by hand and against central differences."""

import ast
import math
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import loops

EXACT = dict(rtol=1e-12, atol=1e-13)
ROOT_HALF = math.sqrt(0.5)
T, F = True, False


@pytest.fixture
def rng():
    return np.random.default_rng(2017)


def differences(f, x, dy, step=1e-5):
    """∂(Σ dy ∘ f)/∂x by central differences, x changed in place and put back"""
    dx = np.zeros(x.shape)
    for i in np.ndindex(*x.shape):
        kept = x[i]
        x[i] = kept + step
        above = np.sum(dy * f())
        x[i] = kept - step
        dx[i] = (above - np.sum(dy * f())) / (2 * step)
        x[i] = kept
    return dx


def check(f, arguments, gradients, dy):
    """each gradient against the differences of f() in the argument at its place"""
    assert len(arguments) == len(gradients)
    for place, (argument, gradient) in enumerate(zip(arguments, gradients)):
        expected = differences(f, argument, dy)
        assert_allclose(gradient, expected, rtol=1e-7, atol=1e-8, err_msg=f"argument {place}")
        assert np.abs(expected).max() > 1e-3, f"argument {place} is not tested"


def attention_arrays(rng, D, M=None):
    """wq, bq, wk, bk, wv, bv, wo, bo for queries of width D and a memory of width M"""
    widths = [D, M or D, M or D, D]
    return [rng.normal(size=shape) for width in widths for shape in ((width, D), (D,))]


def feed_arrays(rng, D, hidden):
    return [rng.normal(size=shape) for shape in ((D, hidden), (hidden,), (hidden, D), (D,))]


def norm_arrays(rng, D):
    return [rng.normal(size=D), rng.normal(size=D)]


def test_nothing_is_vectorised():
    tree = ast.parse(Path(loops.__file__).read_text(encoding="utf-8"))
    used = {node.attr for node in ast.walk(tree)
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "np"}
    assert used <= {"zeros", "full", "asarray", "ndindex"}
    assert not any(isinstance(node, ast.MatMult) for node in ast.walk(tree))


# ── Foundations ──────────────────────────────────────────────────────────────────────────────────

def test_linear(rng):
    x, weight, bias, dy = (rng.normal(size=shape) for shape in ((2, 3, 4), (4, 5), (5,), (2, 3, 5)))
    assert_allclose(loops.linear(x, weight, bias), x @ weight + bias, **EXACT)
    check(lambda: loops.linear(x, weight, bias), (weight, bias, x), loops.linear_backward(x, weight, dy), dy)


def test_dropout():
    x, keep = np.array([1.0, 2.0, 3.0]), np.array([T, F, T])
    assert_allclose(loops.dropout(x, keep, 0.2), [1.25, 0, 3.75], **EXACT)
    assert_array_equal(loops.dropout(x, keep, 1.0), [0, 0, 0])


# ── Attention ────────────────────────────────────────────────────────────────────────────────────

@pytest.mark.parametrize("x, expected", [
    ([1e4, 1e4 - 1, -1e4], [0.7310585786300049, 0.2689414213699951, 0]),
    ([-1e4] * 3, [1 / 3] * 3),
    ([-math.inf] * 3, [0, 0, 0]),
    ([[0, math.log(3)], [math.log(3), 0], [0, 0]], [[0.25, 0.75], [0.75, 0.25], [0.5, 0.5]]),
])
def test_softmax(x, expected):
    assert_allclose(loops.softmax(np.array(x)), expected, **EXACT)


def test_softmax_of_integers():
    expected = [0.0900305731703805, 0.2447284710547976, 0.6652409557748218]
    assert_allclose(loops.softmax(np.array([1, 2, 3])), expected, **EXACT)


def test_softmax_of_the_fruit_example():
    weights = loops.softmax(np.array([1.2, 1.15, 0.15]))
    assert_allclose(weights, [0.4346, 0.4134, 0.1521], atol=5e-5)
    assert_allclose(weights @ [[5, 2], [4, 3], [1, 9]], [3.9784, 3.4779], atol=5e-5)
    assert_allclose(loops.softmax(np.array([2.0, 0, -1])), [0.84, 0.11, 0.04], atol=5e-3)


@pytest.mark.parametrize("c", [1e4, -1e4])
def test_softmax_ignores_a_shift(c):
    x = np.array([0.5, -1.25, 2.0])  # exact in binary, so that x + c rounds nothing away
    assert_array_equal(loops.softmax(x + c), loops.softmax(x))


def test_softmax_backward(rng):
    dx = loops.softmax_backward(np.array([1e4, 1e4 - 1, -1e4]), np.array([1.0, 0, 0]))
    assert_allclose(dx, [0.1966119332414819, -0.1966119332414819, 0], **EXACT)
    x, dy = rng.normal(size=(2, 2, 4, 3))
    check(lambda: loops.softmax(x), [x], [loops.softmax_backward(x, dy)], dy)


def test_query_that_may_see_no_key():
    q, k, v = np.eye(2), np.array([[1.0, 0], [0, 1], [1, 1]]), np.array([[1.0, 2], [3, 4], [5, 6]])
    keep = np.array([[T, F, T], [F, F, F]])
    assert_allclose(loops.attention_weights(q, k, keep), [[0.5, 0, 0.5], [0, 0, 0]], **EXACT)
    assert_allclose(loops.attention(q, k, v, keep), [[3, 4], [0, 0]], **EXACT)
    dq, dk, dv = loops.attention_backward(q, k, v, keep, np.eye(2))
    assert_allclose(dq, [[0, ROOT_HALF], [0, 0]], **EXACT)
    assert_allclose(dk, [[-ROOT_HALF, 0], [0, 0], [ROOT_HALF, 0]], **EXACT)
    assert_allclose(dv, [[0.5, 0], [0, 0], [0.5, 0]], **EXACT)


def test_mask_excludes_and_does_not_merely_discourage():
    q, k, v = np.array([[1e6]]), np.array([[0.0], [1e6]]), np.array([[1.0], [2.0]])
    assert_array_equal(loops.attention(q, k, v, np.array([[T, F]])), [[1]])


def test_causal_mask():
    assert_array_equal(loops.causal_mask(3), np.tril(np.ones((3, 3), dtype=bool)))
    assert_array_equal(loops.causal_mask(2, 5), [[T, T, T, T, F], [T] * 5])
    assert_array_equal(loops.causal_mask(3, 2), [[F, F], [T, F], [T, T]])
    assert loops.causal_mask(0, 4).shape == (0, 4)
    out = loops.attention(np.zeros((3, 2)), np.ones((3, 2)), np.eye(3), loops.causal_mask(3))
    assert_allclose(out, [[1, 0, 0], [0.5, 0.5, 0], [1 / 3] * 3], **EXACT)
    out = loops.attention(np.zeros((2, 3)), np.ones((5, 3)), np.eye(5), loops.causal_mask(2, 5))
    assert_allclose(out, [[0.25, 0.25, 0.25, 0.25, 0], [0.2] * 5], **EXACT)


def test_padding_mask_hides_a_key_of_one_sample():
    mask = loops.padding_mask(np.array([[7, 7, 7], [7, 7, 0], [7, 7, 7]]), 0)
    assert mask.shape == (3, 1, 1, 3) and mask.dtype == bool
    q, v = np.zeros((3, 2, 3, 4)), np.zeros((3, 2, 3, 3)) + np.eye(3)
    out = loops.attention(q, q, v, mask)
    assert_allclose(out[1], np.broadcast_to([0.5, 0.5, 0], (2, 3, 3)), **EXACT)
    assert_allclose(out[[0, 2]], np.full((2, 2, 3, 3), 1 / 3), **EXACT)


def test_mask_of_two_axes_means_queries_by_keys(rng):
    q, k, v = rng.normal(size=(3, 3, 2, 3, 4))
    mask = loops.causal_mask(3)
    every = np.broadcast_to(mask, (3, 2, 3, 3))
    assert_array_equal(loops.attention(q, k, v, mask), loops.attention(q, k, v, every))


def test_one_input_three_uses():
    x = np.eye(2)
    dx = sum(loops.attention_backward(x, x, x, None, np.eye(2)))
    near, far = 0.982558742416878, 0.017441257583122
    assert_allclose(dx, [[near, far], [far, near]], atol=1e-14)


@pytest.mark.parametrize("case", ["plain", "masked", "dropped out"])
def test_attention_backward(rng, case):
    q, k, v, dy = (rng.normal(size=(2, 1, *shape)) for shape in ((3, 4), (5, 4), (5, 2), (3, 2)))
    mask = keep_scale = None
    if case != "plain":
        mask = rng.random((2, 1, 3, 5)) < 0.6
        mask[0, 0, 1] = False
    if case == "dropped out":
        keep_scale = (rng.random((2, 1, 3, 5)) < 0.8) / 0.8
    check(lambda: loops.attention(q, k, v, mask, keep_scale), (q, k, v),
          loops.attention_backward(q, k, v, mask, dy, keep_scale), dy)
    d_weights = rng.normal(size=(2, 1, 3, 5))
    check(lambda: loops.attention_weights(q, k, mask), (q, k),
          loops.attention_weights_backward(q, k, mask, d_weights), d_weights)


def test_sizes_of_one(rng):
    q, k, v, dy = rng.normal(size=(4, 1, 1, 1, 3))
    assert_array_equal(loops.attention_weights(q, k), np.ones((1, 1, 1, 1)))
    assert_array_equal(loops.attention(q, k, v), v)
    for gradient, expected in zip(loops.attention_backward(q, k, v, None, dy), (0 * q, 0 * k, dy)):
        assert_array_equal(gradient, expected)


@pytest.mark.parametrize("B, queries, keys", [(0, 2, 3), (2, 0, 3), (2, 3, 0)])
def test_empty_batch_or_sequence(B, queries, keys):
    q, k, v = np.ones((B, queries, 4)), np.ones((B, keys, 4)), np.ones((B, keys, 5))
    out = loops.attention(q, k, v)
    assert_array_equal(out, np.full((B, queries, 5), 1.0 if keys else 0.0))
    for gradient, argument in zip(loops.attention_backward(q, k, v, None, out), (q, k, v)):
        assert gradient.shape == argument.shape


def test_multi_head_scales_by_the_width_of_a_head():
    x, memory = np.ones((1, 1, 8)), np.array([[[1.0] * 8, [0.0] * 8]])
    eye, zero = np.eye(8), np.zeros(8)
    q, k = loops.project_heads(x, eye, zero, 2), loops.project_heads(memory, eye, zero, 2)
    weights = [0.8807970779778823, 0.1192029220221177]
    assert_allclose(loops.attention_weights(q, k), [[[weights]] * 2], **EXACT)
    out = loops.multi_head(x, memory, None, eye, zero, eye, zero, eye, zero, eye, zero, 2)
    assert_allclose(out, np.full((1, 1, 8), weights[0]), **EXACT)


@pytest.mark.parametrize("queries, keys", [(2, 5), (5, 2)])
def test_multi_head_is_the_concatenation_of_its_heads(rng, queries, keys):
    B, D, M, H = 3, 4, 6, 2
    x, memory = rng.normal(size=(B, queries, D)), rng.normal(size=(B, keys, M))
    p = attention_arrays(rng, D, M)
    mask = rng.random((B, 1, queries, keys)) < 0.7
    q, k, v = (loops.linear(source, p[i], p[i + 1]) for source, i in ((x, 0), (memory, 2), (memory, 4)))
    heads = [loops.attention(q[..., own], k[..., own], v[..., own], mask[:, 0]) for own in (slice(0, 2), slice(2, 4))]
    expected = loops.linear(np.concatenate(heads, axis=-1), p[6], p[7])
    assert_allclose(loops.multi_head(x, memory, mask, *p, H), expected, **EXACT)
    p[0], p[1] = np.zeros((D, D)), np.zeros(D)  # q = 0: every key weighs the same
    mean = loops.linear(np.broadcast_to(v.mean(axis=1, keepdims=True), (B, queries, D)), p[6], p[7])
    assert_allclose(loops.multi_head(x, memory, None, *p, H), mean, **EXACT)


def test_multi_head_backward(rng):
    x, memory, dy = rng.normal(size=(1, 2, 4)), rng.normal(size=(1, 3, 6)), rng.normal(size=(1, 2, 4))
    p = attention_arrays(rng, 4, 6)
    mask = np.array([[T, F, T], [T, T, T]])
    keep_scale = (rng.random((1, 2, 2, 3)) < 0.8) / 0.8
    gradients = list(loops.multi_head_backward(x, memory, mask, *p, 2, dy, keep_scale))
    # A shift of every key moves a query's scores alike, so the softmax hides it: d_bias of the key is 0.
    assert_allclose(gradients[3], np.zeros(4), atol=1e-12)
    gradients.pop(3)
    check(lambda: loops.multi_head(x, memory, mask, *p, 2, keep_scale), (*p[:3], *p[4:], x, memory), gradients, dy)


# ── Layers ───────────────────────────────────────────────────────────────────────────────────────

@pytest.mark.parametrize("x, expected", [
    ([1.0, 2, 3, 4], [-1.3416354199689269, -0.447211806656309, 0.447211806656309, 1.3416354199689269]),
    ([1.0, 0, 0, 0], [1.7320046213947808] + [-0.5773348737982603] * 3),
    ([0.0, 1e-3], [-0.1561737618886061, 0.1561737618886061]),
])
def test_layer_norm(x, expected):
    D = len(x)
    assert_allclose(loops.layer_norm(np.array(x), np.ones(D), np.zeros(D)), expected, **EXACT)


def test_layer_norm_of_a_constant_row():
    x, gain, shift, dy = np.full(4, 3.0), np.ones(4), np.arange(4.0), np.array([1.0, 0, 0, 0])
    assert_array_equal(loops.layer_norm(x, gain, shift), shift)
    d_gain, d_shift, dx = loops.layer_norm_backward(x, gain, dy)
    assert_allclose(dx, [237.17082451262843] + [-79.05694150420948] * 3, **EXACT)
    assert_array_equal(d_gain, np.zeros(4))
    assert_array_equal(d_shift, dy)


def test_layer_norm_backward(rng):
    _, _, dx = loops.layer_norm_backward(np.array([1.0, 2, 3, 4]), np.ones(4), np.array([1.0, 0, 0, 0]))
    expected = [0.2683303038930342, -0.3577683720252976, -0.0894434346310114, 0.1788815027632748]
    assert_allclose(dx, expected, **EXACT)
    x, dy = rng.normal(size=(2, 2, 3, 4))
    gain, shift = norm_arrays(rng, 4)
    check(lambda: loops.layer_norm(x, gain, shift, 1e-2), (gain, shift, x),
          loops.layer_norm_backward(x, gain, dy, 1e-2), dy)
    d_gain, d_shift, _ = loops.layer_norm_backward(x, gain, np.ones(x.shape))
    assert_allclose(d_shift, [6] * 4, **EXACT)
    assert_allclose(d_gain, loops.layer_norm(x, np.ones(4), np.zeros(4)).sum(axis=(0, 1)), **EXACT)


def test_relu_and_its_kink():
    x = np.array([-1.0, 0, 1])
    assert_array_equal(loops.relu(x), [0, 0, 1])
    assert_array_equal(loops.relu_backward(x, np.ones(3)), [0, 0, 1])


def test_gelu():
    assert_allclose(loops.gelu(np.array([0.0, 1, -1])), [0, 0.8413447460685429, -0.15865525393145707], **EXACT)
    assert_allclose(loops.gelu(np.array([-10.0])), [-7.619853024160527e-23], rtol=1e-12)  # Φ(−10) does not cancel
    assert_allclose(loops.gelu_tanh(np.array([0.0, 1, -1])), [0, 0.8411919906082768, -0.15880800939172324], **EXACT)


@pytest.mark.parametrize("name", ["relu", "gelu", "gelu_tanh"])
def test_activation_backward(rng, name):
    f, backward = getattr(loops, name), getattr(loops, name + "_backward")
    x, dy = 2 * rng.normal(size=(2, 3, 4))
    check(lambda: f(x), [x], [backward(x, dy)], dy)
    p = feed_arrays(rng, 4, 5)
    check(lambda: loops.feed_forward(x, *p, f), (*p, x),
          loops.feed_forward_backward(x, *p, dy, f, backward), dy)


def test_embedding(rng):
    table, ids = rng.normal(size=(4, 3)), np.array([[1, 1, 2], [1, 0, 1]])
    assert_array_equal(loops.embedding(table, ids), table[ids])
    assert_array_equal(loops.embedding_backward(table, ids, np.ones((2, 3, 3)))[:, 0], [1, 4, 1, 0])
    dy = rng.normal(size=(2, 3, 3))
    check(lambda: loops.embedding(table, ids), [table], [loops.embedding_backward(table, ids, dy)], dy)


def test_tied_embedding():
    table, ids = np.array([[1.0, 2], [3, 4], [5, 6]]), np.array([0, 2])
    C, none = np.array([[1.0, 0, 0], [0, 1, 0]]), np.zeros(3)
    logits = loops.linear(loops.embedding(table, ids), table.T, none)
    assert np.sum(C * logits) == 44
    d_output, _, dx = loops.linear_backward(loops.embedding(table, ids), table.T, C)
    assert_array_equal(d_output.T + loops.embedding_backward(table, ids, dx), [[2, 4], [5, 6], [3, 4]])


def test_sinusoidal_positions():
    table = loops.sinusoidal_positions(2, 5)
    assert_array_equal(table[0], [0, 1, 0, 1, 0])
    assert_allclose(table[1], [0.8414709848078965, 0.5403023058681398, 0.0251162229097738,
                               0.9996845379152098, 0.000630957302615], atol=1e-15)
    assert_array_equal(loops.sinusoidal_positions(6, 1)[:, 0], [math.sin(p) for p in range(6)])
    assert_allclose(loops.sinusoidal_positions(2, 4)[1], [0.8414709848, 0.5403023059, 0.0099998333, 0.9999500004],
                    atol=5e-11)
    assert_allclose(loops.sinusoidal_positions(2, 4, base=100.0)[1, 2:], [math.sin(0.1), math.cos(0.1)], **EXACT)


# ── Model ────────────────────────────────────────────────────────────────────────────────────────

def silent(arrays, count):
    """the same parameters with the last `count` arrays, an output projection, zero"""
    return [*arrays[:-count], *(0 * array for array in arrays[-count:])]


def test_silent_sublayers_leave_the_residual_path(rng):
    D = 4
    x, memory = rng.normal(size=(2, 3, D)), rng.normal(size=(2, 5, D))
    attention, feed = silent(attention_arrays(rng, D), 2), silent(feed_arrays(rng, D, 6), 2)
    norms = [norm_arrays(rng, D) for _ in range(3)]
    assert_array_equal(loops.encoder_layer(x, None, attention, feed, *norms[:2], 2), x)
    assert_array_equal(loops.decoder_layer(x, memory, None, None, attention, attention, feed, *norms, 2), x)
    once = loops.layer_norm(x, *norms[0])
    twice = loops.layer_norm(once, *norms[1])
    thrice = loops.layer_norm(twice, *norms[2])
    assert_array_equal(loops.encoder_layer(x, None, attention, feed, *norms[:2], 2, norm_first=False), twice)
    assert_array_equal(
        loops.decoder_layer(x, memory, None, None, attention, attention, feed, *norms, 2, norm_first=False), thrice)


@pytest.mark.parametrize("norm_first", [True, False])
def test_layers_step_by_step(rng, norm_first):
    D = 4
    x, memory = rng.normal(size=(1, 3, D)), rng.normal(size=(1, 5, D))
    own, cross, feed = attention_arrays(rng, D), attention_arrays(rng, D), feed_arrays(rng, D, 6)
    n1, n2, n3 = (norm_arrays(rng, D) for _ in range(3))
    mask, memory_mask = loops.causal_mask(3), np.array([[[[T, T, F, T, F]]]])

    def step(x, sublayer, norm):
        return x + sublayer(loops.layer_norm(x, *norm)) if norm_first else loops.layer_norm(x + sublayer(x), *norm)

    y = step(x, lambda u: loops.multi_head(u, u, mask, *own, 2), n1)
    encoded = step(y, lambda u: loops.feed_forward(u, *feed, loops.gelu), n3)
    assert_allclose(loops.encoder_layer(x, mask, own, feed, n1, n3, 2, norm_first, loops.gelu), encoded, **EXACT)
    y = step(y, lambda u: loops.multi_head(u, memory, memory_mask, *cross, 2), n2)
    decoded = step(y, lambda u: loops.feed_forward(u, *feed), n3)
    out = loops.decoder_layer(x, memory, mask, memory_mask, own, cross, feed, n1, n2, n3, 2, norm_first)
    assert_allclose(out, decoded, **EXACT)


@pytest.mark.parametrize("norm_first", [True, False])
def test_transformer_sees_neither_the_future_nor_the_padding(rng, norm_first):
    D, H, V = 4, 2, 7
    source, target = np.array([[3, 4, 5, 0], [6, 3, 0, 0]]), np.array([[1, 3, 4], [1, 5, 6]])
    tables = rng.normal(size=(2, V, D))
    encoder = [(attention_arrays(rng, D), feed_arrays(rng, D, 5), norm_arrays(rng, D), norm_arrays(rng, D))]
    decoder = [(attention_arrays(rng, D), attention_arrays(rng, D), feed_arrays(rng, D, 5),
                *(norm_arrays(rng, D) for _ in range(3)))]
    final = [norm_arrays(rng, D), norm_arrays(rng, D)] if norm_first else [None, None]
    output = rng.normal(size=(D, V)), rng.normal(size=V)
    positions = loops.sinusoidal_positions(5, D)
    hidden = loops.padding_mask(source, 0)

    def logits(source, target):
        return loops.transformer_forward(source, target, hidden, loops.causal_mask(3), *tables, positions,
                                         encoder, decoder, *final, output, H, norm_first=norm_first)

    before = logits(source, target)
    memory = loops.encoder_layer(loops.embed(source, tables[0], positions), hidden, *encoder[0], H, norm_first)
    memory = loops.layer_norm(memory, *final[0]) if norm_first else memory
    x = loops.embed(target, tables[1], positions)
    x = loops.decoder_layer(x, memory, loops.causal_mask(3), hidden, *decoder[0], H, norm_first)
    x = loops.layer_norm(x, *final[1]) if norm_first else x
    assert_allclose(before, x @ output[0] + output[1], **EXACT)
    later = target.copy()
    later[:, 1] = [6, 2]
    changed = logits(source, later) != before
    assert not changed[:, :1].any() and changed[:, 1:].any(axis=-1).all()
    padded = source.copy()
    padded[~hidden[:, 0, 0]] = 2
    assert_array_equal(logits(padded, target), before)
    padded[:, 1] = 2
    assert (logits(padded, target) != before).any(axis=-1).all()


def test_embed_scales_by_the_root_of_the_width():
    table, positions = np.array([[1.0, 2, 3, 4]]), np.array([[0.5] * 4, [0.25] * 4, [9.0] * 4])
    assert_array_equal(loops.embed(np.array([[0, 0]]), table, positions), [[[2.5, 4.5, 6.5, 8.5],
                                                                            [2.25, 4.25, 6.25, 8.25]]])


# ── Training ─────────────────────────────────────────────────────────────────────────────────────

@pytest.mark.parametrize("logits, target, loss, gradient", [
    ([1000.0, 0], 1, 1000, [1, -1]),
    ([1e4, -1e4, 0], 1, 20000, [1, -1, 0]),
    ([0.0, 0], 0, 0.6931471805599453, [-0.5, 0.5]),
])
def test_cross_entropy(logits, target, loss, gradient):
    z, targets = np.array([logits]), np.array([target])
    assert_allclose(loops.cross_entropy(z, targets), loss, **EXACT)
    assert_allclose(loops.cross_entropy_backward(z, targets), [gradient], **EXACT)


def test_ignored_tokens_do_not_count():
    z, targets = np.array([[0.0, 0], [3, 1]]), np.array([0, -1])
    assert_allclose(loops.cross_entropy(z, targets, -1), 0.6931471805599453, **EXACT)
    assert_allclose(loops.cross_entropy_backward(z, targets, -1), [[-0.5, 0.5], [0, 0]], **EXACT)
    targets[:] = -1
    assert loops.cross_entropy(z, targets, -1, 0.1) == 0.0
    assert_array_equal(loops.cross_entropy_backward(z, targets, -1, 0.1), np.zeros((2, 2)))


def test_label_smoothing():
    z, targets = np.array([[2.0, 1, 0, -1, -2], [5, 4, 3, 2, 1]]), np.array([0, -1])
    gradient = [-0.2835913534411693, 0.2141216572527366, 0.0661285444362687, 0.0116849207961243, -0.0083437690439604]
    assert_allclose(loops.cross_entropy(z, targets, -1, 0.1), 0.6519143959375934, **EXACT)
    assert_allclose(loops.cross_entropy_backward(z, targets, -1, 0.1), [gradient, [0] * 5], **EXACT)


@pytest.mark.parametrize("smoothing", [0.0, 0.3])
def test_cross_entropy_backward(rng, smoothing):
    z, targets = rng.normal(size=(2, 3, 4)), np.array([[3, 0, 1], [0, 2, 2]])
    check(lambda: loops.cross_entropy(z, targets, 0, smoothing), [z],
          [loops.cross_entropy_backward(z, targets, 0, smoothing)], 1.0)


def test_adam():
    steps = loops.adam([0.0], [[0.01], [0.01], [0.02]], 0.1, 0.9, 0.999, 1e-2)
    assert_allclose(np.ravel(steps), [-0.05, -0.1, -0.15669768185273983], **EXACT)
    # No gradient, so only the decay moves p, and it is not divided by the root of v.
    decayed = loops.adam([2.0], [[0.0]] * 2, 0.1, weight_decay=0.5)
    assert_allclose(np.ravel(decayed), [2 * 0.95, 2 * 0.95**2], **EXACT)
    # Without ε the first step is lr · sign(g); each parameter keeps its own moments, each step its own rate.
    first, second = loops.adam([0.0, 1.0], [[3.0, -4.0]] * 2, lambda step: 0.1 / step, epsilon=0.0)
    assert_allclose([first, second], [[-0.1, 1.1], [-0.15, 1.15]], **EXACT)


def test_warmup_schedule():
    first = loops.warmup_schedule(1, 512, 4000)
    assert_allclose(first, 1.746928107421711e-7, rtol=1e-12)
    assert_allclose(loops.warmup_schedule(2, 512, 4000), 2 * first, rtol=1e-12)
    peak = loops.warmup_schedule(4000, 512, 4000)
    assert_allclose(peak, 6.987712429686843e-4, rtol=1e-12)
    assert_allclose(loops.warmup_schedule(16000, 512, 4000), peak / 2, rtol=1e-12)
    for step, warmup in ((0, 4000), (1, 0), (1, -1)):
        with pytest.raises(ValueError):
            loops.warmup_schedule(step, 512, warmup)


def test_clipping():
    (a, b), norm = loops.clip_gradients([np.array([3.0]), np.array([[4.0]])], 1.0)
    assert_allclose([a[0], b[0, 0], norm], [0.6, 0.8, 5], **EXACT)
    small = [np.array([0.3, 0.4])]
    assert loops.clip_gradients(small, 1.0)[0] is small
    assert loops.clip_gradients([np.zeros(3)], 0.0)[1] == 0
    (large,), norm = loops.clip_gradients([np.array([3e200, 4e200])], 1.0)
    assert_allclose([*large, norm / 1e200], [0.6, 0.8, 5], **EXACT)
    for values, limit in (([math.inf], 1), ([math.nan], 1), ([1.0], -1)):
        with pytest.raises(ValueError):
            loops.clip_gradients([np.array(values)], limit)


# ── Translation ──────────────────────────────────────────────────────────────────────────────────

END, START = 0, 9


def scripted(table):
    """log-probabilities looked up by what was generated so far; anything unlisted ends for certain"""
    def log_probabilities(tokens):
        assert tokens[0] == START
        return [math.log(p) if p else -math.inf for p in table.get(tokens[1:], (1.0, 0, 0))]

    return log_probabilities


def test_beam_score():
    assert_allclose(loops.beam_score(-3.0, 7, 1.0), -1.5, **EXACT)
    assert loops.beam_score(-3.0, 7, 0.0) == -3.0
    assert_allclose(loops.beam_score(-1.0, 1, 0.6), -1.0, **EXACT)


def test_greedy_search():
    ends_at_once = scripted({(): (0.8, 0.1, 0.1)})
    x_then_y = scripted({(): (0.1, 0.8, 0.1), (1,): (0.2, 0.2, 0.6)})
    assert loops.greedy_search(ends_at_once, START, END, 10) == (END,)
    assert loops.greedy_search(x_then_y, START, END, 10) == (1, 2, END)
    assert loops.greedy_search(x_then_y, START, END, 2) == (1, 2)
    assert loops.greedy_search(lambda tokens: [-1.0] * 3, START, 2, 3) == (0, 0, 0)  # a tie: the smallest id


def test_exhaustive_search_beats_greedy():
    model = scripted({(): (0.0, 0.6, 0.4), (1,): (0.4, 0.3, 0.3), (2,): (0.9, 0.1, 0.0)})
    assert loops.greedy_search(model, START, END, 3) == (1, END)
    found = loops.exhaustive_search(model, START, END, 3, 0.0)
    probability = {(2, END): 0.36, (1, END): 0.24, (1, 1, END): 0.18, (1, 2, END): 0.18, (2, 1, END): 0.04}
    assert [tokens for tokens, _ in found] == list(probability)
    assert_allclose([math.exp(score) for _, score in found], list(probability.values()), **EXACT)
    # With α = 4 the longer sequence wins: log .18 / (8/6)⁴ = −0.543 against log .36 / (7/6)⁴ = −0.551.
    tokens, score = loops.exhaustive_search(model, START, END, 3, 4.0)[0]
    assert tokens == (1, 1, END)
    assert_allclose(score, math.log(0.18) / (8 / 6) ** 4, **EXACT)


def test_exhaustive_search_lists_every_sequence():
    found = loops.exhaustive_search(lambda tokens: [math.log(1 / 3)] * 3, START, END, 3, 0.6)
    assert len({tokens for tokens, _ in found}) == len(found) == 1 + 2 + 4 * 3
    assert all(tokens.index(END) == len(tokens) - 1 if END in tokens else len(tokens) == 3 for tokens, _ in found)
