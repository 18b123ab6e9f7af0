"""Cross-entropy: how surprised the model is by the right answer."""

import numpy as np

from ..foundations.checks import as_float, as_ids, check_number, check_rank, check_shape
from ..foundations.pullback import Array
from ..foundations.sums import row_sums


def cross_entropy(logits: Array, targets: Array, *, ignore_index: int | None = None, label_smoothing: float = 0.0):
    """The mean of −log p(target) over all counted tokens, with p = softmax(logits), or of what smoothing makes of it.

        lossₙ = − Σ_v q_nv log p_nv = log Σ_v exp z_nv − Σ_v q_nv z_nv      since Σ_v q_nv = 1

    q is 1 at the target and 0 elsewhere; label smoothing ε takes ε of that 1 and spreads it evenly, so
    that q is 1 − ε + ε/V at the target and ε/V elsewhere, and the model need not push a logit to infinity
    (Szegedy et al. 2015, section 7; Vaswani et al. 2017, section 5.4). ∂/∂z_v of the log of the sum is p_v:

        dz_nv = (p_nv − q_nv) / number of counted tokens

    The log-sum-exp is taken with the row's maximum subtracted and added again. −log of a computed p
    would be infinite as soon as p rounds to 0. float16 is computed in float32 and cast back.

    Parameters: logits (..., V), z; targets, integers (...) in [0, V) or equal to `ignore_index`,
    whose tokens (padding) count neither in the sum nor in the mean; label_smoothing in [0, 1].
    Returns loss, a float (0.0 if no token counts), and backward(d_loss=1.0) → d_logits (..., V).
    Raises ValueError, TypeError or IndexError for what does not fit, and ValueError if a counted row
    of logits holds NaN or +inf, or nothing but −inf.
    """
    logits = as_float("logits", logits)                                    # (..., V)
    check_rank("logits", logits, 1, "(..., V)")
    check_number("label_smoothing", label_smoothing, 0, 1)
    targets = np.asarray(targets)                                          # (...)
    check_shape("targets", targets, logits.shape[:-1])
    shape, given, V = logits.shape, logits.dtype, logits.shape[-1]
    counted = targets != ignore_index                                      # (...)
    labels = np.where(counted, targets, np.zeros_like(targets))            # (...)  what is ignored may be any number
    labels = as_ids("targets", labels, V)[counted]                         # (N,)
    nothing_ignored = labels.size == targets.size
    rows = logits.reshape(-1, V) if nothing_ignored else logits[counted]   # (N, V)  the counted rows alone
    if given == np.float16:
        rows = rows.astype(np.float32)                                     # (N, V)
    n, count = np.arange(len(rows)), max(len(rows), 1)                     # (N,)

    shift = rows.max(axis=-1, keepdims=True)                               # (N, 1)
    if not np.isfinite(shift).all():
        raise ValueError(f"logits of shape {shape} hold NaN, +inf or a row of -inf: cross_entropy needs finite scores")
    with np.errstate(over="ignore"):  # a difference too large for the dtype is -inf, and its exp is 0
        z = rows - shift                                                   # (N, V)
    qz = label_smoothing / V * row_sums(z) if label_smoothing else np.zeros(len(z), z.dtype)  # (N,)  Σ q z
    if label_smoothing < 1:
        qz += (1 - label_smoothing) * z[n, labels]                         # (N,)
    e = np.exp(z, out=z)                                                   # (N, V)  in place: z is used up
    total = row_sums(e)[:, None]                                           # (N, 1)
    surprise = np.log(total[:, 0]) - qz                                    # (N,)  the shifts cancel: Σ q = 1
    loss = float(surprise.sum(dtype=np.float64)) / count

    def backward(d_loss=1.0):
        d_rows = e / total                                                 # (N, V)  p
        if label_smoothing:
            d_rows -= label_smoothing / V                                  # (N, V)
        d_rows[n, labels] -= 1 - label_smoothing                           # (N,)
        d_rows *= float(d_loss) / count                                    # (N, V)
        if nothing_ignored:
            return d_rows.astype(given, copy=False).reshape(shape)         # (..., V)
        d_logits = np.zeros(shape, given)                                  # (..., V)
        d_logits[counted] = d_rows                                         # (N, V)
        return d_logits                                                    # (..., V)

    return loss, backward
