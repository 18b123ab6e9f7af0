"""The division by √d_k: what it keeps level, and what collapses without it."""

import numpy as np
import pytest
from attention.sqrt_dk import KEYS, QUERIES, WIDTHS, gradient_norms, scores_of, table

from numpy_transformer.attention.scaled_dot_product import attention_weights
from numpy_transformer.attention.softmax import softmax


@pytest.mark.parametrize("width", WIDTHS)
def test_variance_of_a_dot_product(width):
    rng = np.random.default_rng(width)
    n = 2000
    q, k = rng.standard_normal((2, n, 1, width))
    products = (q @ k.swapaxes(-1, -2)).ravel()
    # E[(q·k)⁴] = 3d² + 6d, so the sampled variance scatters by d √((2 + 6/d) / n).
    error = np.sqrt((2 + 6 / width) / n)
    assert abs(products.mean()) < 4 * np.sqrt(width / n)
    assert abs(products.var() / width - 1) < 4 * error
    # What the page divides by: log(w₁/w₂) is the difference of two scaled scores, so its variance is 2.
    other = rng.standard_normal((n, 1, width))
    weights, _ = attention_weights(q, np.concatenate([k, other], axis=-2))
    difference = np.log(weights[:, 0, 0] / weights[:, 0, 1])
    assert abs(difference.var() / 2 - 1) < 4 * error


def sharpness(weights):
    """Mean entropy of the rows, and the mean Frobenius norm of softmax's Jacobian diag(y) − y yᵀ"""
    logs = np.log(weights, where=weights > 0, out=np.zeros_like(weights))
    jacobian = weights[:, :, None] * (np.eye(weights.shape[-1]) - weights[:, None, :])
    return -(weights * logs).sum(axis=-1).mean(), np.linalg.norm(jacobian, axis=(-2, -1)).mean()


def test_entropy_and_jacobian_stay_level_only_under_scaling():
    unscaled = np.array([sharpness(softmax(scores_of(width))[0]) for width in WIDTHS])
    scaled = np.array([sharpness(softmax(scores_of(width) / np.sqrt(width))[0]) for width in WIDTHS])
    assert np.ptp(scaled, axis=0).max() < 0.1
    assert (scaled.min(axis=0) > [0.8 * np.log(KEYS), 0.35]).all()
    assert (np.diff(unscaled, axis=0)[:, 0] < 0).all()
    assert unscaled[-1, 0] < 0.1 and unscaled[-1, 1] < 0.05
    assert (unscaled[0] > 0.8 * scaled[0]).all()


def test_gradient_norms_stay_level_only_under_scaling():
    norms = gradient_norms()
    assert list(norms) == WIDTHS == [2**n for n in range(1, 11)]
    assert all(len(one) == QUERIES for pair in norms.values() for one in pair)
    unscaled, scaled = (np.array([pair[which].mean() for pair in norms.values()]) for which in (0, 1))
    assert scaled.min() > 0.3 and scaled.max() < 0.37
    assert (np.diff(unscaled) < 0.01).all()
    assert unscaled[0] > 0.3 and unscaled[WIDTHS.index(512)] < 0.06 and unscaled[-1] < 0.045
    assert np.median(norms[512][0]) < 1e-3 < 0.25 < np.median(norms[512][1])


def test_the_table_shows_these_norms():
    lines = table().splitlines()
    assert len(lines) == 1 + len(WIDTHS) and max(map(len, lines)) < 60
    for line, (width, (unscaled, scaled)) in zip(lines[1:], gradient_norms().items()):
        numbers = [float(number) for number in line.replace("(", " ").replace(")", " ").split()]
        expected = [width, unscaled.mean(), np.median(unscaled), scaled.mean(), np.median(scaled)]
        np.testing.assert_allclose(numbers, expected, atol=5.1e-4)
