"""Tiled attention: the plain page's numbers, forward and backward, whatever the tiles."""

import threading
import tracemalloc
from contextlib import contextmanager

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from numpy_transformer import causal_mask, check_gradients, scaled_dot_product_attention
from numpy_transformer.attention import tiled
from numpy_transformer.attention.tiled import tiled_attention
from strategies import (
    assert_close, assert_keeps_dtype, assert_pure_and_linear, assert_same_for_layouts, held_bytes, letters, rngs)


def both(f, *arguments, dy, **named):
    y, backward = f(*arguments, **named)
    return y, *backward(dy)


def plain_mask(mask, causal, T, S):
    if not causal:
        return mask
    return causal_mask(T, S) if mask is None else mask & causal_mask(T, S)


@given(letters("BHTSKM", least=1), rngs, st.sampled_from([None, "shared", "own"]), st.booleans(),
       st.integers(1, 7), st.integers(1, 7), st.sampled_from([1.0, 30.0]), st.sampled_from([1, 3]))
def test_the_same_numbers_as_the_plain_page(size, rng, masked, causal, query_block, key_block, scale, threads):
    B, H, T, S, K, M = size.B, size.H, 3 * size.T, 3 * size.S, size.K, size.M
    q, k, v = scale * rng.normal(size=(B, H, T, K)), rng.normal(size=(B, H, S, K)), rng.normal(size=(B, H, S, M))
    mask = None
    if masked:
        mask = rng.random((T, S) if masked == "shared" else (B, 1, T, S)) < 0.6
        mask[..., 0, :] = False  # a query that may see no key
    dy = rng.normal(size=(B, H, T, M))
    expected = both(scaled_dot_product_attention, q, k, v, plain_mask(mask, causal, T, S), dy=dy)
    found = both(tiled_attention, q, k, v, mask, causal=causal, query_block=query_block, key_block=key_block,
                 threads=threads, dy=dy)
    for one, other in zip(found, expected):
        assert_close(one, other, 1e-12)


def test_threads_work_at_the_same_time():
    """Each of the two waits until the other is there."""
    barrier = threading.Barrier(2, timeout=5)
    tiled.over_heads(lambda head: barrier.wait(), 2, 2)


def test_an_upstream_gradient_of_another_shape_is_refused():
    x = np.ones((2, 4, 3))
    with pytest.raises(ValueError, match=r"^d_output has shape \(2, 3, 4\): expected \(2, 4, 3\)"):
        tiled_attention(x, x, x)[1](np.ones((2, 3, 4)))


@pytest.mark.parametrize("threads, expected", [(1, [None] * 4), (2, [1] * 4)])
def test_beside_threads_of_ours_blas_has_one(monkeypatch, threads, expected):
    """Else the threads of one wait for the other's: two took twice as long as they need, and longer than one."""
    limit, seen, score_tile = [None], [], tiled.score_tile

    @contextmanager
    def limit_blas_threads(most):
        limit.append(most)
        yield
        limit.pop()

    monkeypatch.setattr(tiled, "limit_blas_threads", limit_blas_threads)
    monkeypatch.setattr(tiled, "score_tile", lambda *given: (seen.append(limit[-1]), score_tile(*given))[1])
    x = np.ones((2, 3, 4))
    _, backward = tiled_attention(x, x, x, threads=threads)
    backward(x)
    assert seen == expected and limit == [None]


@pytest.mark.parametrize("of_q, of_k", [(1e4, 1e-2), (1e-2, 1e4), (1e2, 1.0), (1.0, 1e2)])
def test_long_queries_meet_short_keys(of_q, of_k):
    """Scores of about ±100, whose exp float32 does not hold: that they are large must show whichever side is short."""
    rng = np.random.default_rng(0)
    q, k, v = (scale * rng.normal(size=(2, 5, 3)).astype(np.float32) for scale in (of_q, of_k, 1.0))
    found, _ = tiled_attention(q, k, v)
    assert_close(found, scaled_dot_product_attention(*(x.astype(np.float64) for x in (q, k, v)))[0], 1e-4)


@pytest.mark.parametrize("T, S", [(0, 5), (5, 0), (0, 0), (1, 1), (1, 9), (9, 1)])
@pytest.mark.parametrize("causal", [False, True])
def test_sizes_of_none_and_one(T, S, causal):
    rng = np.random.default_rng(0)
    q, k, v, dy = (rng.normal(size=(2, n, 3)) for n in (T, S, S, T))
    with np.errstate(all="raise", under="ignore"):
        found = both(tiled_attention, q, k, v, causal=causal, query_block=2, key_block=2, dy=dy)
    for one, other in zip(found, both(scaled_dot_product_attention, q, k, v, plain_mask(None, causal, T, S), dy=dy)):
        assert_close(one, other)


@given(letters("TSKM"), rngs, st.booleans())
def test_gradients(size, rng, causal):
    q, k, v = (rng.normal(size=shape) for shape in ((size.T, size.K), (size.S, size.K), (size.S, size.M)))
    mask = rng.random((size.T, size.S)) < 0.7
    f = lambda q, k, v: tiled_attention(q, k, v, mask, causal=causal, query_block=2, key_block=3)
    check_gradients(f, q, k, v, rng=rng)
    assert_pure_and_linear(f, q, k, v, rng=rng)
    assert_keeps_dtype(f, q, k, v, rng=rng)
    assert_same_for_layouts(f, q, k, v, rng=rng)


def test_scores_that_no_bound_keeps_small():
    """In float32 a score of 10⁴ has an error of its own; exp must not overflow for it, nor all weights vanish."""
    rng = np.random.default_rng(0)
    q, k, v, dy = (size * rng.normal(size=(6, 4)).astype(np.float32) for size in (100, 100, 1, 1))
    with np.errstate(over="raise", invalid="raise", divide="raise"):
        for one, other in zip(both(tiled_attention, q, k, v, query_block=4, key_block=3, dy=dy),
                              both(scaled_dot_product_attention, q, k, v, dy=dy)):
            assert one.dtype == np.float32
            assert_close(one, other, 1e-3)


def test_an_excluded_key_is_excluded_and_not_merely_small():
    y, _ = tiled_attention(np.array([[1e6]]), np.array([[0.0], [1e6]]), np.array([[1.0], [2.0]]), np.array([[True, False]]))
    assert y.tolist() == [[1.0]]


def test_tiles_in_the_future_are_not_computed(monkeypatch):
    computed = []
    original = tiled.score_tile
    monkeypatch.setattr(tiled, "score_tile", lambda Q, k, hidden: computed.append((len(Q), len(k))) or original(Q, k, hidden))
    x = np.random.default_rng(0).normal(size=(8, 2))
    for causal, count in ((False, 16), (True, 10)):
        computed.clear()
        _, backward = tiled_attention(x, x, x, causal=causal, query_block=2, key_block=2)
        assert computed == [(2, 2)] * count
        backward(x)
        assert computed == [(2, 2)] * count * 2


def test_a_tile_ends_with_the_last_key_that_one_of_its_queries_sees(monkeypatch):
    computed = []
    original = tiled.score_tile
    monkeypatch.setattr(tiled, "score_tile", lambda Q, k, hidden: computed.append((len(Q), len(k))) or original(Q, k, hidden))
    q, k = np.random.default_rng(0).normal(size=(2, 9, 2))
    tiled_attention(q[:5], k, k, causal=True, query_block=2, key_block=8)  # query 0 sees keys 0 … 4
    assert computed == [(2, 6), (2, 8), (1, 8), (1, 1)]
    computed.clear()
    tiled_attention(q, k[:4], k[:4], causal=True, query_block=3, key_block=8)  # queries 0 … 4 see no key
    assert computed == [(3, 1), (3, 4)]


def test_tiles_that_need_no_mask_get_none(monkeypatch):
    masked = []
    original = tiled.score_tile
    monkeypatch.setattr(tiled, "score_tile", lambda Q, k, hidden: masked.append(hidden is not None) or original(Q, k, hidden))
    x = np.random.default_rng(0).normal(size=(8, 2))
    tiled_attention(x, x, x, causal=True, query_block=2, key_block=2)
    assert sum(masked) == 4 and len(masked) == 10


def test_memory_grows_with_the_length_and_not_with_its_square():
    peaks = []
    for T in (512, 1024):
        x = np.random.default_rng(0).normal(size=(1, T, 8)).astype(np.float32)
        tracemalloc.start()
        y, backward = tiled_attention(x, x, x, query_block=32, key_block=32)
        backward(y)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 2.5 * peaks[0] and peaks[1] < 1024 * 1024 * 4 / 4


def test_what_the_pullback_holds():
    rng = np.random.default_rng(0)
    H, T, S, K, M = 2, 7, 5, 3, 4
    q, k, v = rng.normal(size=(H, T, K)), rng.normal(size=(H, S, K)), rng.normal(size=(H, S, M))
    _, backward = tiled_attention(q, k, v)
    numbers = 8 * H * (T * K + S * K + S * M + T * M + T)
    assert held_bytes(backward) == numbers
    padding = np.array([True, True, True, False, True]).reshape(1, 1, S)
    _, backward = tiled_attention(q, k, v, padding)
    assert held_bytes(backward) == numbers + padding.nbytes  # one mask for all heads is not copied for each


@pytest.mark.parametrize("dtype, large", [(np.float32, 1e20), (np.float64, 1e200)])
def test_a_bound_that_overflows_where_no_score_does(dtype, large):
    q, k = np.array([[large, 0.0]], dtype), np.array([[0.0, large], [0.0, 1.0]], dtype)
    v = np.array([[1.0], [3.0]], dtype)
    assert tiled_attention(q, k, v)[0] == scaled_dot_product_attention(q, k, v)[0] == 2


ONES = np.ones((2, 3, 4))


@pytest.mark.parametrize("attempt, error, message", [
    (lambda: tiled_attention(ONES, np.ones((2, 5, 3)), np.ones((2, 5, 4))), ValueError, r"^k has shape \(2, 5, 3\): its last axis must be 4"),
    (lambda: tiled_attention(ONES, np.ones((3, 5, 4)), np.ones((3, 5, 4))), ValueError, r"^q has shape \(2, 3, 4\), k \(3, 5, 4\)"),
    (lambda: tiled_attention(ONES, ONES, np.ones((2, 5, 4))), ValueError, r"v \(2, 5, 4\): expected"),
    (lambda: tiled_attention(ONES, ONES, np.ones((1, 3, 4))), ValueError, r"v \(1, 3, 4\): expected"),
    (lambda: tiled_attention(np.ones(4), np.ones(4), np.ones(4)), ValueError, r"^q has shape \(4,\)"),
    (lambda: tiled_attention(ONES, ONES, ONES, np.ones((3, 3))), TypeError, "^mask must be a boolean array"),
    (lambda: tiled_attention(ONES, ONES, ONES, np.ones((4, 3), bool)), ValueError, r"^mask has shape \(4, 3\)"),
    (lambda: tiled_attention(ONES, ONES, ONES, query_block=0), ValueError, "^query_block must .* not 0"),
    (lambda: tiled_attention(ONES, ONES, ONES, key_block=0), ValueError, "^key_block must .* not 0"),
    (lambda: tiled_attention(ONES, ONES, ONES, threads=0), ValueError, "^threads must .* not 0"),
    (lambda: tiled_attention(np.nan * ONES, ONES, ONES), ValueError, "q or k holds NaN"),
    (lambda: tiled_attention(np.nan * ONES, ONES, ONES, threads=2), ValueError, "q or k holds NaN"),
    (lambda: tiled_attention(ONES, np.inf * ONES, ONES), ValueError, "q or k holds NaN or infinity"),
    (lambda: tiled_attention(ONES * 1j, ONES, ONES), TypeError, "^q must hold real numbers"),
])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_refused(attempt, error, message):
    with pytest.raises(error, match=message):
        attempt()


@pytest.mark.parametrize("score", [-19, -39, -41, -60, -79, -81, -1000])
def test_a_key_alone_has_all_the_weight_however_far_it_is(score):
    q, k, v = (np.array([[x]], np.float32) for x in (1, score, 3))
    y, backward = tiled_attention(q, k, v)
    assert y == 3 and backward(np.ones_like(y))[2] == 1
