import loops
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.testing import assert_array_equal
from strategies import masks, read_only

from numpy_transformer.attention.masks import causal_mask, check_mask, padding_mask

lengths = st.integers(0, 7)


@given(lengths, lengths)
def test_causal(T, S):
    mask = causal_mask(T, S)
    assert mask.dtype == bool and mask.shape == (T, S)
    assert_array_equal(mask, loops.causal_mask(T, S))
    if T:
        assert mask[-1].all()  # bottom-right: the last query sees every key
    hidden = max(T - S, 0)
    assert not mask[:hidden].any()  # more queries than keys: the first may see none
    assert_array_equal(mask.sum(axis=1), [max(S - T + 1 + t, 0) for t in range(T)])


@given(lengths)
def test_as_many_keys_as_queries_unless_said_otherwise(T):
    assert_array_equal(causal_mask(T), causal_mask(T, T))
    assert_array_equal(causal_mask(np.int64(T)), np.tri(T) > 0)


def test_causal_by_hand():
    assert_array_equal(causal_mask(3), [[True, False, False], [True, True, False], [True, True, True]])
    assert_array_equal(causal_mask(2, 5), [[True, True, True, True, False], [True] * 5])
    assert_array_equal(causal_mask(3, 1), [[False], [False], [True]])


id_arrays = hnp.arrays(st.sampled_from([np.int64, np.int32, np.uint8]),
                       hnp.array_shapes(min_dims=2, max_dims=2, min_side=0), elements=st.integers(0, 3))


@given(id_arrays, st.integers(0, 4))
def test_padding(ids, pad):
    mask = padding_mask(read_only(ids), pad)
    assert mask.dtype == bool and mask.shape == (len(ids), 1, 1, ids.shape[1])
    assert_array_equal(mask, loops.padding_mask(ids, pad))


def test_padding_by_hand():
    mask = padding_mask([[5, 6, 0], [7, 0, 0]], 0)
    assert_array_equal(mask[:, 0, 0], [[True, True, False], [True, False, False]])
    assert padding_mask([[5, 6, 0]], 9).all() and not padding_mask([[9, 9]], 9).any()


@given(id_arrays)
def test_masks_combine(ids):
    B, S = ids.shape
    T = S + 2
    both = padding_mask(ids, 0) & causal_mask(T, S)
    assert both.shape == (B, 1, T, S)
    check_mask(both, (B, 3, T, S))
    for b, t, s in np.ndindex(B, T, S):
        assert both[b, 0, t, s] == (ids[b, s] != 0 and s <= t + S - T)


@pytest.mark.parametrize("attempt, error, message", [
    (lambda: causal_mask(-1), ValueError, "^T must be a whole number of at least 0, not -1$"),
    (lambda: causal_mask(2.0), ValueError, r"^T must .* not 2\.0"),
    (lambda: causal_mask(True), ValueError, "^T must .* not True"),
    (lambda: causal_mask(None), ValueError, "^T must .* not None"),
    (lambda: causal_mask(2, -3), ValueError, "^S must be a whole number of at least 0, not -3$"),
    (lambda: causal_mask(2, 3.5), ValueError, r"^S must .* not 3\.5"),
    (lambda: causal_mask(2, True), ValueError, "^S must .* not True"),
    (lambda: padding_mask([1, 0], 0), ValueError, r"^ids has shape \(2,\): expected \(B, S\)"),
    (lambda: padding_mask(np.zeros((1, 2, 3), int), 0), ValueError, r"^ids has shape \(1, 2, 3\)"),
    (lambda: padding_mask([[1, 0]], None), ValueError, "^pad must be a whole number of at least 0, not None$"),
    (lambda: padding_mask([[1, 0]], "0"), ValueError, "^pad must .* not '0'"),
    (lambda: padding_mask([[1, 0]], -1), ValueError, "^pad must .* not -1"),
    (lambda: padding_mask(4, 0), ValueError, r"^ids has shape \(\)"),
])
def test_refused(attempt, error, message):
    with pytest.raises(error, match=message):
        attempt()


# ── What attention lets in ───────────────────────────────────────────────────────────────────────

SCORES = (2, 3, 4, 5)


@given(st.data())
def test_a_mask_that_broadcasts_is_let_in(data):
    assert check_mask(data.draw(masks(SCORES)), SCORES) is None


@pytest.mark.parametrize("shape", [(4,), (5, 4), (3, 5), (2, 1, 5), (2, 4, 5), (3, 1, 4, 5), (0,), (6,), (2, 3, 4, 0),
                                   (1, 2, 3, 4, 5), (2, 2, 3, 4, 5)])
def test_a_mask_that_does_not_broadcast(shape):
    with pytest.raises(ValueError, match=rf"^mask has shape \({str(shape)[1:-1]}\), which does not broadcast to the "
                                         r"scores' \(2, 3, 4, 5\)$"):
        check_mask(np.ones(shape, bool), SCORES)


@pytest.mark.parametrize("shape", [(2, 3), (4, 1, 1), (1, 1, 1)])
def test_a_mask_must_not_stretch_the_scores(shape):
    with pytest.raises(ValueError, match="does not broadcast"):
        check_mask(np.ones(shape, bool), (1, 3))


@pytest.mark.parametrize("mask, shown", [
    (np.ones((4, 5), np.int64), "int64"), (np.ones((4, 5)), "float64"), (np.ones((4, 5), np.uint8), "uint8"),
    (np.zeros((4, 5), np.float32), "float32"), (np.ones((4, 5), object), "object"), ([[True] * 5] * 4, "list"),
    (True, "bool"),
])
def test_a_mask_of_numbers_is_refused(mask, shown):
    with pytest.raises(TypeError, match=f"^mask must be a boolean array, True = may attend, not {shown}$"):
        check_mask(mask, SCORES)
