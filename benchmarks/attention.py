"""Attention: the scores of every query with every key, and what has to be done to each of them."""

from functools import partial

import numpy as np

from numpy_transformer.attention.masks import causal_mask, padding_mask
from numpy_transformer.attention.multi_head import MultiHeadAttention
from numpy_transformer.attention.scaled_dot_product import attention_weights, scaled_dot_product_attention
from numpy_transformer.attention.softmax import softmax

from .foundations import linear_flops
from .measure import Setting, Sizes
from .operations import Operation, Work, normal, optional, total

tiled_attention = optional("attention.tiled", "tiled_attention")


def attention_flops(scores: int, K: int) -> tuple[int, int]:
    """For each score, forward: 2K for q·k, 2K for its share of the mean, 1 for the scale, 5 for
    softmax; backward: 2K each for dv, dw, dq and dk, 4 for softmax, 1 for the scale."""
    return scores * (4 * K + 6), scores * (8 * K + 5)


def multi_head_flops(B: int, T: int, S: int, D: int, H: int) -> tuple[int, int]:
    """Two projections of T rows (query, output), two of S rows (key, value), and the attention;
    backward one sum more, of the memory's two gradients."""
    of_x, of_memory = linear_flops(B * T, D, D), linear_flops(B * S, D, D)
    return total(of_x, of_x, of_memory, of_memory, attention_flops(B * H * T * S, D // H), (0, B * S * D))


def operations(setting: Setting, sizes: Sizes | None = None) -> list[Operation]:
    s, dtype, w = sizes or setting.sizes, setting.dtype, setting.itemsize
    B, T, S, D, H, K = s.B, s.T, s.T, s.D, s.H, s.K
    scores, vectors = B * H * T * S, B * H * T * K              # S = T: q, k, v and output are all of one size
    rng = np.random.default_rng(0)
    x = normal(rng, B, H, T, S, dtype=dtype)                    # (B, H, T, S)
    q, k, v = (normal(rng, B, H, T, K, dtype=dtype) for _ in range(3))  # (B, H, T, K), (B, H, S, K), (B, H, S, K)
    words = normal(rng, B, T, D, dtype=dtype)                   # (B, T, D)
    ids = rng.integers(0, s.V, (B, S))                          # (B, S)
    multi_head = MultiHeadAttention.init(rng, D, H, dtype=dtype)
    causal = causal_mask(T, S)                                  # (T, S)
    pairs = B * H * T * (T + 1) // 2                            # scores that a causal mask leaves
    many, few, heads = f"({B}, {H}, {T}, {S})", f"({B}, {H}, {T}, {K})", f"({B}, {T}, {D}), {H} heads"

    def attention_work(scores):
        forward, backward = attention_flops(scores, K)
        return {"forward": Work(forward, w * 4 * vectors),      # q, k, v → output
                "backward": Work(backward, w * 7 * vectors)}    # q, k, v, d_output → dq, dk, dv

    forward, backward = multi_head_flops(B, T, S, D, H)
    parameters = 4 * (D * D + D)
    rows = [
        Operation("causal_mask", f"({T}, {S})", causal_mask, (T, S), {"forward": Work(T * S, T * S)}),
        Operation("padding_mask", f"({B}, {S})", padding_mask, (ids, 0), {"forward": Work(B * S, 9 * B * S)}),
        Operation("softmax", many, softmax, (x,), {
            "forward": Work(5 * scores, 2 * w * scores),        # max, −, exp, sum, ÷
            "backward": Work(4 * scores, 3 * w * scores)}),     # dy y, sum, −, product; dy, y → dx
        Operation("attention_weights", many, attention_weights, (q, k), {
            "forward": Work(scores * (2 * K + 6), w * (2 * vectors + scores)),       # q, k → weights
            "backward": Work(scores * (4 * K + 5), w * (4 * vectors + 2 * scores))}),  # q, k, w, dw → dq, dk
        Operation("scaled_dot_product_attention", few, scaled_dot_product_attention, (q, k, v), attention_work(scores)),
        Operation("causal scaled_dot_product", few, scaled_dot_product_attention, (q, k, v, causal),
                  attention_work(pairs)),
        Operation("MultiHeadAttention", heads, multi_head.self_attention, (words,), {
            "forward": Work(forward, w * (parameters + 2 * B * T * D)),              # x, parameters → y
            "backward": Work(backward + B * T * D, w * (2 * parameters + 3 * B * T * D))}),  # x, dy → gradient, dx
    ]
    if tiled_attention:
        rows[-1:-1] = [
            Operation("tiled_attention", few, tiled_attention, (q, k, v), attention_work(scores)),
            Operation("causal tiled_attention", few, partial(tiled_attention, causal=True), (q, k, v),
                      attention_work(pairs)),
        ]
    return rows
