"""Scaled dot-product attention: a query gathers the values of the keys that match it.

A word's meaning is settled by its neighbours: an apple that is eaten is a fruit, an apple whose
shares are bought is a company. So each word asks (its query q), each word carries a label to be
found by (its key k) and a content to be fetched (its value v). How well q and k match is their dot
product; softmax turns the matches into weights; the result is the weighted mean of the values.

Three words with keys and values of width 2, and the query "fruit":

>>> q = np.array([[1.0, 0.5]])
>>> k = np.array([[0.9, 0.6], [0.8, 0.7], [0.1, 0.1]])       # apple, banana, chair
>>> v = np.array([[5.0, 2.0], [4.0, 3.0], [1.0, 9.0]])
>>> (q @ k.T).round(2)                                       # the matches
array([[1.2 , 1.15, 0.15]])
>>> attention_weights(q, k)[0].round(4)                      # divided by √2, then softmax
array([[0.4096, 0.3954, 0.195 ]])
>>> scaled_dot_product_attention(q, k, v)[0].round(4)
array([[3.8247, 3.7601]])

Why √K: if the entries of q and k are independent with mean 0 and variance 1, then q·k is a sum of K
products of variance 1 and has variance K. At K = 512 scores have a standard deviation of 23, softmax gives
nearly all weight y to one key, and its gradient y(1 − y) nearly vanishes. Divided by √K the variance is 1
at any width.
"""

import math

import numpy as np

from ..foundations.checks import as_float, check_count, check_number, check_rank, check_width
from ..foundations.dropout import dropout
from ..foundations.pullback import Array
from .masks import check_mask
from .softmax import softmax


def attention_weights(q: Array, k: Array, mask: Array | None = None):
    """How much each query takes from each key (Vaswani et al. 2017, equation 1).

        scores = q kᵀ / √K        weights = softmax(scores), 0 where the mask is False

    Each score is a product of one row of q and one of k, so d_scores comes back to both:

        dq = d_scores k / √K        dk = d_scoresᵀ q / √K

    Parameters: q (..., T, K), k (..., S, K), with equal leading axes; mask boolean, True = may
    attend, broadcastable to (..., T, S). Returns weights (..., T, S) and backward(d_weights) →
    dq, dk. A query that may see no key has only zero weights. Raises ValueError if widths or leading
    axes differ or the mask does not fit, TypeError if the mask is not boolean.
    """
    q = as_float("q", q)                                          # (..., T, K)
    k = as_float("k", k)                                          # (..., S, K)
    check_rank("q", q, 2, "(..., T, K)")
    check_width("k", k, q.shape[-1])
    if k.ndim != q.ndim or k.shape[:-2] != q.shape[:-2]:
        raise ValueError(f"q has shape {q.shape}, k {k.shape}: their leading axes differ")
    check_count("width of q", q.shape[-1])
    scale = 1 / math.sqrt(q.shape[-1])  # a Python float, which leaves float32 as it is
    scores = q @ k.swapaxes(-1, -2)                               # (..., T, S)
    scores *= scale                                               # (..., T, S)
    if mask is not None:
        check_mask(mask, scores.shape)
    if mask is not None and not mask.all():  # one that hides nothing costs no pass
        scores += np.where(mask, 0, -np.inf).astype(scores.dtype)  # (..., T, S)  excluded, not merely small
    weights, softmax_backward = softmax(scores)                   # (..., T, S)

    def backward(d_weights):                                      # (..., T, S)
        d_scores = softmax_backward(d_weights)                    # (..., T, S)  0 wherever the weight is 0
        d_scores *= scale                                         # (..., T, S)
        dq = d_scores @ k                                         # (..., T, K)
        dk = d_scores.swapaxes(-1, -2) @ q                        # (..., S, K)
        return dq, dk

    return weights, backward


def scaled_dot_product_attention(q: Array, k: Array, v: Array, mask: Array | None = None, *,
                                 dropout_rate: float = 0.0, rng: np.random.Generator | None = None):
    """Each query's weighted mean of the values (Vaswani et al. 2017, section 3.2.1).

        output = dropout(weights) v

    With w for the weights after dropout, output_td = Σₛ w_ts v_sd, hence

        dw = d_output vᵀ        dv = wᵀ d_output

    and dw goes back through dropout and the weights to q and k.

    Parameters: q (..., T, K), k (..., S, K), v (..., S, M): only q and k must agree in width; mask
    as for attention_weights; dropout on the weights if rng is given. Returns output (..., T, M) and
    backward(d_output) → dq, dk, dv. A query that may see no key gets output 0 and gradient 0.

    The pullback holds q, k, v and the weights: T·K + S·K + S·M + T·S numbers per leading index, and
    with dropout T·S more, and T·S bytes.
    """
    check_number("dropout_rate", dropout_rate, 0, 1)
    v = as_float("v", v)                                          # (..., S, M)
    if v.ndim != np.ndim(k) or v.shape[:-1] != np.shape(k)[:-1]:
        raise ValueError(f"k has shape {np.shape(k)}, v {v.shape}: they differ before the last axis")
    weights, weights_backward = attention_weights(q, k, mask)     # (..., T, S)
    w, dropout_backward = dropout(weights, dropout_rate, rng)     # (..., T, S)
    output = w @ v                                                # (..., T, M)

    def backward(d_output):                                       # (..., T, M)
        dv = w.swapaxes(-1, -2) @ d_output                        # (..., S, M)
        dw = d_output @ v.swapaxes(-1, -2)                        # (..., T, S)
        dq, dk = weights_backward(dropout_backward(dw))           # (..., T, K), (..., S, K)
        return dq, dk, dv

    return output, backward
