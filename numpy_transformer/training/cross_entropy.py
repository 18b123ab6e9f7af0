"""Cross-entropy: how surprised the model is by the right answer."""

import numpy as np

from ..foundations.checks import as_float, as_ids, check_number, check_rank, check_shape
from ..foundations.pullback import Array


def cross_entropy(logits: Array, targets: Array, *, ignore_index: int | None = None, label_smoothing: float = 0.0):
    """The mean over all counted tokens of −log p(target), with p = softmax(logits).

        lossₙ = − Σ_v q_nv log p_nv = log Σ_v exp z_nv − Σ_v q_nv z_nv

    q is 1 at the target and 0 elsewhere; label smoothing ε takes ε of that 1 and spreads it evenly,
    q_v = (1 − ε)[v = target] + ε/V, so that the model need not push a logit to infinity (Szegedy et
    al. 2015, section 7; Vaswani et al. 2017, section 5.4). ∂/∂z_v of the log of the sum is p_v:

        dz_nv = (p_nv − q_nv) / number of counted tokens

    The log-sum-exp is taken with the row's maximum subtracted and added again. −log of a computed p
    would be infinite as soon as p rounds to 0.

    Parameters: logits (..., V), z; targets, integers (...) in [0, V) or equal to `ignore_index`,
    whose tokens (padding) count neither in the sum nor in the mean; label_smoothing in [0, 1].
    Returns loss, a float (0.0 if no token counts), and backward(d_loss=1.0) → dlogits (..., V).
    Raises ValueError, TypeError or IndexError for what does not fit.
    """
    logits = as_float("logits", logits)                                    # (..., V)
    check_rank("logits", logits, 1, "(..., V)")
    check_number("label_smoothing", label_smoothing, 0, 1)
    targets = np.asarray(targets)                                          # (...)
    check_shape("targets", targets, logits.shape[:-1])
    shape, V = logits.shape, logits.shape[-1]
    counted = (targets != ignore_index).reshape(-1)                        # (N,)
    labels = np.where(targets == ignore_index, 0, targets)                 # (...)  any class will do: its row counts 0
    labels = as_ids("targets", labels, V).reshape(-1)                      # (N,)
    count = max(int(counted.sum()), 1)
    rows = logits.reshape(-1, V)                                           # (N, V)
    everyone = np.arange(len(rows))                                        # (N,)

    shift = rows.max(axis=-1, keepdims=True)                               # (N, 1)
    e = rows - shift                                                       # (N, V)
    right = (1 - label_smoothing) * e[everyone, labels]                    # (N,)
    if label_smoothing:
        right += label_smoothing * e.mean(axis=-1)                         # (N,)  Σ q z, all shifted alike
    np.exp(e, out=e)
    total = e.sum(axis=-1, keepdims=True)                                  # (N, 1)
    surprise = np.log(total[:, 0]) - right                                 # (N,)  shifts cancel: Σ q = 1
    loss = float(surprise[counted].sum(dtype=np.float64)) / count

    def backward(d_loss=1.0):
        dz = e / total                                                     # (N, V)  p
        dz -= label_smoothing / V                                          # (N, V)
        dz[everyone, labels] -= 1 - label_smoothing                        # (N,)
        weight = counted * (d_loss / count)                                # (N,)
        dz *= weight[:, None].astype(dz.dtype)                             # (N, V)
        return dz.reshape(shape)                                           # (..., V)

    return loss, backward
