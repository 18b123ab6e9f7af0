"""Tiled attention: the same numbers without ever holding the T × S weights.

For a long text the weights are the largest thing there is: at T = S = 4096 and 8 heads half a gigabyte,
several times over while the gradient is computed. But a query's output needs only two sums over the
keys, Σ exp(s) v and Σ exp(s), and sums can be taken a tile at a time, a few hundred queries by a few
hundred keys (R × C below) that stay in the cache. The backward pass computes each tile anew instead of keeping it
(Rabe and Staats 2021; Dao et al. 2022, algorithms 1 and 4, where the c below may grow on the way).
"""

import math
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from ..foundations.blas_threads import limit_blas_threads
from ..foundations.checks import as_float, check_count, check_shape, check_width
from ..foundations.pullback import Array
from .masks import check_mask


def tiled_attention(q: Array, k: Array, v: Array, mask: Array | None = None, *, causal: bool = False,
                    query_block: int = 256, key_block: int = 512, threads: int = 1):
    """scaled_dot_product_attention(q, k, v, mask) in memory that grows with T + S, not with T·S.

        p = exp(s − c)      output = Σₛ p v / Σₛ p      for any c that is the same for the whole row

    A common factor cancels, so c need not be the row's maximum, only near enough that no exp
    overflows and not all of them vanish. |s| ≤ |q| max|k| / √K bounds every score before any is
    known; if the bound is small it serves as c, else the maxima are found first, tile by tile.

    With L = c + log Σ p, the weights are w = exp(s − L). Going back, with Δ = Σ d_output ⊙ output:

        ds = w ⊙ (d_output vᵀ − Δ)      dq = ds k / √K      dk = dsᵀ q / √K      dv = wᵀ d_output

    since Δ = Σₛ dw w, the inner sum of softmax's pullback. Three steps cost no pass over the tile of
    their own, because a column rides along in a product: [q, −c] [k, 1]ᵀ subtracts c, p [v, 1] makes
    Σ p beside Σ p v, and [d_output, −Δ] [v, 1]ᵀ subtracts Δ.

    Parameters: as there, and `causal`, which hides the future (the last query sees every key) and
    skips the tiles that lie in it altogether; heads are shared out to `threads` threads, at best one
    for each core, while BLAS keeps to one. Returns output (..., T, M) and backward(d_output) →
    dq, dk, dv. Raises ValueError if q or k holds NaN or infinity, or if a score overflows.

    The pullback holds q, k, v, the output and L: T·K + S·K + S·M + T·M + T numbers per leading index.
    """
    q, k, v = as_float("q", q), as_float("k", k), as_float("v", v)     # (..., T, K), (..., S, K), (..., S, M)
    check_width("k", k, q.shape[-1])
    if not q.ndim == k.ndim == v.ndim >= 2 or not q.shape[:-2] == k.shape[:-2] == v.shape[:-2] or k.shape[-2] != v.shape[-2]:
        raise ValueError(f"q has shape {q.shape}, k {k.shape}, v {v.shape}: expected (..., T, K), (..., S, K), (..., S, M)")
    for name, block in (("query_block", query_block), ("key_block", key_block), ("threads", threads)):
        check_count(name, block)
    (*leading, T, K), (S, M) = q.shape, v.shape[-2:]
    check_count("width of q", K)
    scale = 1 / math.sqrt(K)
    if mask is not None:
        check_mask(mask, (*leading, T, S))
        mask = np.broadcast_to(mask, (*leading, T, S))                 # (..., T, S)  a view, not a copy for each head
    heads = list(np.ndindex(*leading))
    shown_or_hidden = q.dtype.type(0), q.dtype.type(-np.inf)

    def tiles(head):
        """Yield query slice, key slice and what to add to the scores there, for every tile that is not all hidden."""
        for i in range(0, T, query_block):
            rows = slice(i, min(i + query_block, T))
            end = min(rows.stop + S - T, S) if causal else S  # of the keys that the last of these queries sees
            for j in range(0, end, key_block):
                columns = slice(j, min(j + key_block, end))
                last = columns.stop - 1 - (S - T)  # the query from which on all keys of the tile are seen
                seen = None if mask is None else mask[(*heads[head], rows, columns)]           # (R, C)
                if causal and i < last:
                    places = np.arange(i, rows.stop)[:, None] + (S - T) >= np.arange(j, columns.stop)  # (R, C)
                    seen = places if seen is None else seen & places                          # (R, C)
                yield rows, columns, None if seen is None else np.where(seen, *shown_or_hidden)

    N = math.prod(leading)
    q_heads, k_heads, v_heads = (x.reshape(N, *x.shape[-2:]) for x in (q, k, v))              # (N, T, K), (N, S, K), (N, S, M)
    output, L = np.zeros((N, T, M), q.dtype), np.zeros((N, T, 1), q.dtype)                    # (N, T, M), (N, T, 1)

    def forward(head):
        Q, k, v = q_heads[head] * scale, k_heads[head], beside(v_heads[head], 1)              # (T, K), (S, K), (S, M + 1)
        with np.errstate(over="ignore", invalid="ignore"):
            lengths = np.sqrt(np.vecdot(k, k))                                                # (S,)
            c = np.sqrt(np.vecdot(Q, Q))[:, None] * lengths.max(initial=0)                    # (T, 1)
        if not c.max(initial=0) <= 40:  # else s ≥ −c, so exp(s − c) ≥ exp(−80), which float32 still holds
            c = np.full((T, 1), -np.inf, q.dtype)                                             # (T, 1)
            for rows, columns, hidden in tiles(head):
                s = score_tile(Q[rows], k[columns], hidden)                                   # (I, J)
                c[rows] = np.maximum(c[rows], s.max(axis=-1, keepdims=True))                  # (I, 1)
            if not (c < np.inf).all():
                raise ValueError("q or k holds NaN or infinity, or is so large that a score overflows")
            c[c == -np.inf] = 0
        Q, k = beside(Q, -c[:, 0]), beside(k, 1)                                              # (T, K + 1), (S, K + 1)
        sums = np.zeros((T, M + 1), q.dtype)                                                  # (T, M + 1)
        for rows, columns, hidden in tiles(head):
            p = score_tile(Q[rows], k[columns], hidden)                                       # (R, C)
            np.exp(p, out=p)
            sums[rows] += p @ v[columns]                                                      # (R, M + 1)
        total = np.where(sums[:, M:] > 0, sums[:, M:], 1)                                     # (T, 1)  1 where no key is seen
        output[head] = sums[:, :M] / total                                                    # (T, M)
        L[head] = c + np.log(total)                                                           # (T, 1)

    over_heads(forward, N, threads)

    def backward(d_output):                                                                   # (..., T, M)
        check_shape("d_output", d_output, (*leading, T, M))
        d_out = d_output.reshape(N, T, M)                                                     # (N, T, M)
        dq, dk, dv = (np.zeros_like(x) for x in (q_heads, k_heads, v_heads))                  # (N, T, K), (N, S, K), (N, S, M)

        def one_head(head):
            Q, k = beside(q_heads[head] * scale, -L[head, :, 0]), beside(k_heads[head], 1)    # (T, K + 1), (S, K + 1)
            v = beside(v_heads[head], 1)                                                      # (S, M + 1)
            delta = np.vecdot(d_out[head], output[head])                                      # (T,)
            d = beside(d_out[head], -delta)                                                   # (T, M + 1)
            for rows, columns, hidden in tiles(head):
                w = score_tile(Q[rows], k[columns], hidden)                                   # (R, C)
                np.exp(w, out=w)
                ds = d[rows] @ v[columns].T                                                   # (R, C)
                ds *= w                                                                       # (R, C)
                dv[head, columns] += w.T @ d[rows, :M]                                        # (C, M)
                dk[head, columns] += ds.T @ Q[rows, :K]                                       # (C, K)
                dq[head, rows] += ds @ k[columns, :K]                                         # (R, K)
            dq[head] *= scale                                                                 # (T, K)

        over_heads(one_head, N, threads)
        return dq.reshape(q.shape), dk.reshape(k.shape), dv.reshape(v.shape)                  # (..., T, K), (..., S, K), (..., S, M)

    return output.reshape(*leading, T, M), backward                                           # (..., T, M)


def beside(x: Array, column) -> Array:
    """[x, column]: x (N, I) with one more column, a number or an array (N,)."""
    wide = np.empty((len(x), x.shape[1] + 1), x.dtype)                                        # (N, I + 1)
    wide[:, :-1], wide[:, -1] = x, column
    return wide


def score_tile(Q: Array, k: Array, hidden: Array | None) -> Array:
    """Q kᵀ + hidden for Q (R, N), k (C, N) and hidden (R, C), which is 0 or −inf."""
    s = Q @ k.T                                                                               # (R, C)
    if hidden is not None:
        s += hidden                                                                           # (R, C)
    return s


def over_heads(f, count, threads):
    """Call f for every head; NumPy lets other threads work while it computes.

    BLAS must not then use all cores for each product: with two threads here and two there, everything took twice as long.
    """
    if threads == 1:
        for head in range(count):
            f(head)
        return
    with limit_blas_threads(1), ThreadPoolExecutor(threads) as pool:
        list(pool.map(f, range(count)))
