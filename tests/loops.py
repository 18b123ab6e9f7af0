"""Every operation of the book once more, one scalar at a time: a second opinion.

The pages compute with whole arrays and with gradients that were simplified by hand. Here nothing is
simplified: sums are loops, Jacobians are written out entry by entry, and NumPy only holds the numbers.
Slow, and meant for arrays of a few dozen entries.

`f_backward(arguments of f, dy)` runs f again and returns ∂loss/∂argument, parameters before inputs; a bias
that no gradient depends on is left out. Masks are boolean, True = may attend, None = attend to everything.
Letters as in the book: B batch · T, S query and key length · D width · H heads · K width of a head · V vocabulary.
"""

import math
from itertools import product

import numpy as np

# ── Scalars ──────────────────────────────────────────────────────────────────────────────────────


def dot(a, b):
    """Σᵢ aᵢ bᵢ, rounded once"""
    return math.fsum(float(x) * float(y) for x, y in zip(a, b, strict=True))


def elementwise(f, *arrays):
    """yᵢ = f(aᵢ, bᵢ, …) for arrays of one shape"""
    y = np.zeros(arrays[0].shape)
    for i in np.ndindex(*y.shape):
        y[i] = f(*(float(array[i]) for array in arrays))
    return y


def add(a, b):
    """yᵢ = aᵢ + bᵢ"""
    return elementwise(lambda u, w: u + w, a, b)


def allowed(mask, index):
    """The mask's entry for scores[index]: axes align from the right, an axis of length 1 repeats."""
    if mask is None:
        return True
    own = index[len(index) - mask.ndim:]
    return bool(mask[tuple(0 if n == 1 else i for n, i in zip(mask.shape, own, strict=True))])


# ── Foundations ──────────────────────────────────────────────────────────────────────────────────

def linear(x, weight, bias):
    """yₒ = Σᵢ xᵢ Wᵢₒ + bₒ for x (..., I), W (I, O), b (O,)"""
    y = np.zeros((*x.shape[:-1], weight.shape[1]))
    for i in np.ndindex(*y.shape):
        y[i] = dot(x[i[:-1]], weight[:, i[-1]]) + bias[i[-1]]
    return y


def linear_backward(x, weight, dy):
    """∂yₒ/∂Wᵢₒ = xᵢ, ∂yₒ/∂bₒ = 1, ∂yₒ/∂xᵢ = Wᵢₒ → d_weight, d_bias, dx"""
    rows = list(np.ndindex(*x.shape[:-1]))
    d_weight, d_bias, dx = np.zeros(weight.shape), np.zeros(weight.shape[1]), np.zeros(x.shape)
    for i, o in np.ndindex(*weight.shape):
        d_weight[i, o] = math.fsum(dy[(*n, o)] * x[(*n, i)] for n in rows)
    for o in range(weight.shape[1]):
        d_bias[o] = math.fsum(dy[(*n, o)] for n in rows)
    for i in np.ndindex(*x.shape):
        dx[i] = dot(dy[i[:-1]], weight[i[-1]])
    return d_weight, d_bias, dx


def dropout(x, keep, rate):
    """yᵢ = xᵢ / (1 − rate) where keepᵢ, else 0; linear in x, so dx is dropout(dy, keep, rate)"""
    return elementwise(lambda u, kept: u / (1 - rate) if kept and rate < 1 else 0.0, x, keep)


# ── Attention ────────────────────────────────────────────────────────────────────────────────────

def softmax(x):
    """yᵢ = exp(xᵢ − m) / Σⱼ exp(xⱼ − m), m = max x, along the last axis; a row of all −∞ gives zeros"""
    y = np.zeros(x.shape)
    for n in np.ndindex(*x.shape[:-1]):
        row = [float(value) for value in x[n]]
        largest = max(row, default=-math.inf)
        if largest > -math.inf:
            e = [math.exp(value - largest) for value in row]
            y[n] = [value / math.fsum(e) for value in e]
    return y


def softmax_jacobian(y, dy):
    """dxⱼ = Σᵢ dyᵢ ∂yᵢ/∂xⱼ with ∂yᵢ/∂xⱼ = yᵢ(δᵢⱼ − yⱼ), from the softmax's own output y"""
    dx = np.zeros(y.shape)
    for *n, j in np.ndindex(*y.shape):
        p, g = y[tuple(n)], dy[tuple(n)]
        dx[(*n, j)] = math.fsum(g[i] * p[i] * ((i == j) - p[j]) for i in range(len(p)))
    return dx


def softmax_backward(x, dy):
    """dxⱼ = Σᵢ dyᵢ yᵢ(δᵢⱼ − yⱼ), y = softmax(x)"""
    return softmax_jacobian(softmax(x), dy)


def causal_mask(T, S=None):
    """query t may attend to key s iff s ≤ t + S − T: the last query sees every key"""
    S = T if S is None else S
    return np.asarray([[s <= t + S - T for s in range(S)] for t in range(T)], dtype=bool).reshape(T, S)


def padding_mask(ids, pad):
    """mask[b, 0, 0, s] = (ids[b, s] ≠ pad), shape (B, 1, 1, S)"""
    B, S = ids.shape
    return np.asarray([ids[b, s] != pad for b in range(B) for s in range(S)], dtype=bool).reshape(B, 1, 1, S)


def attention_weights(q, k, mask=None):
    """wₜₛ = softmaxₛ(qₜ · kₛ / √K) over the keys that query t may see; q (..., T, K), k (..., S, K)"""
    *leading, T, K = q.shape
    scores = np.full((*leading, T, k.shape[-2]), -math.inf)
    for *n, t, s in np.ndindex(*scores.shape):
        if allowed(mask, (*n, t, s)):
            scores[(*n, t, s)] = dot(q[(*n, t)], k[(*n, s)]) / math.sqrt(K)
    return softmax(scores)


def attention_weights_backward(q, k, mask, d_weights):
    """dqₜ = Σₛ d_scoresₜₛ kₛ / √K, dkₛ = Σₜ d_scoresₜₛ qₜ / √K → dq, dk"""
    T, K, S = *q.shape[-2:], k.shape[-2]
    d_scores = softmax_jacobian(attention_weights(q, k, mask), d_weights)
    dq, dk = np.zeros(q.shape), np.zeros(k.shape)
    for *n, t, c in np.ndindex(*q.shape):
        dq[(*n, t, c)] = math.fsum(d_scores[(*n, t, s)] * k[(*n, s, c)] for s in range(S)) / math.sqrt(K)
    for *n, s, c in np.ndindex(*k.shape):
        dk[(*n, s, c)] = math.fsum(d_scores[(*n, t, s)] * q[(*n, t, c)] for t in range(T)) / math.sqrt(K)
    return dq, dk


def scaled_weights(q, k, mask, keep_scale):
    """mₜₛ wₜₛ: the weights after dropout, keep_scale m (..., T, S) holding 0 or 1 / (1 − rate)"""
    weights = attention_weights(q, k, mask)
    return weights if keep_scale is None else elementwise(lambda w, m: w * m, weights, keep_scale)


def attention(q, k, v, mask=None, keep_scale=None):
    """outₜ = Σₛ mₜₛ wₜₛ vₛ; q (..., T, K), k (..., S, K), v (..., S, any width)"""
    weights = scaled_weights(q, k, mask, keep_scale)
    out = np.zeros((*q.shape[:-1], v.shape[-1]))
    for *n, t, c in np.ndindex(*out.shape):
        out[(*n, t, c)] = math.fsum(weights[(*n, t, s)] * v[(*n, s, c)] for s in range(v.shape[-2]))
    return out


def attention_backward(q, k, v, mask, d_out, keep_scale=None):
    """dvₛ = Σₜ mₜₛ wₜₛ d_outₜ, d_weightsₜₛ = mₜₛ (d_outₜ · vₛ), and on through the softmax → dq, dk, dv"""
    weights = scaled_weights(q, k, mask, keep_scale)
    dv, d_weights = np.zeros(v.shape), np.zeros(weights.shape)
    for *n, s, c in np.ndindex(*v.shape):
        dv[(*n, s, c)] = math.fsum(weights[(*n, t, s)] * d_out[(*n, t, c)] for t in range(q.shape[-2]))
    for *n, t, s in np.ndindex(*weights.shape):
        m = 1.0 if keep_scale is None else keep_scale[(*n, t, s)]
        d_weights[(*n, t, s)] = m * dot(d_out[(*n, t)], v[(*n, s)])
    return *attention_weights_backward(q, k, mask, d_weights), dv


def columns(head, weight, heads):
    """The columns of a projection's weight that belong to one head"""
    K = weight.shape[1] // heads
    return slice(head * K, (head + 1) * K)


def project_heads(x, weight, bias, heads):
    """headₕ = x Wₕ + bₕ, Wₕ the (D, K) column block h of W: (B, T, D) → (B, H, T, K)"""
    y = np.zeros((x.shape[0], heads, x.shape[1], weight.shape[1] // heads))
    for h in range(heads):
        own = columns(h, weight, heads)
        y[:, h] = linear(x, weight[:, own], bias[own])
    return y


def multi_head(x, memory, mask, wq, bq, wk, bk, wv, bv, wo, bo, heads, keep_scale=None):
    """y = Σₕ headₕ Wᵒₕ + bᵒ, headₕ = attention(x Wqₕ, memory Wkₕ, memory Wvₕ), Wᵒₕ the row block h of Wᵒ"""
    q = project_heads(x, wq, bq, heads)
    k, v = project_heads(memory, wk, bk, heads), project_heads(memory, wv, bv, heads)
    head = attention(q, k, v, mask, keep_scale)
    H, K = heads, v.shape[-1]
    y = np.zeros((*x.shape[:-1], wo.shape[1]))
    for b, t, o in np.ndindex(*y.shape):
        y[b, t, o] = bo[o] + math.fsum(head[b, h, t, c] * wo[h * K + c, o] for h, c in product(range(H), range(K)))
    return y


def multi_head_backward(x, memory, mask, wq, bq, wk, bk, wv, bv, wo, bo, heads, dy, keep_scale=None):
    """d_headₕ = dy Wᵒₕᵀ, back through each head's attention and its column blocks
    → dwq, dbq, dwk, dbk, dwv, dbv, dwo, dbo, dx, dmemory"""
    q = project_heads(x, wq, bq, heads)
    k, v = project_heads(memory, wk, bk, heads), project_heads(memory, wv, bv, heads)
    head = attention(q, k, v, mask, keep_scale)
    dwo, dbo, d_head = np.zeros(wo.shape), np.zeros(bo.shape), np.zeros(head.shape)
    K = v.shape[-1]
    for h in range(heads):
        own = slice(h * K, (h + 1) * K)
        dwo[own], dbo, d_head[:, h] = linear_backward(head[:, h], wo[own], dy)
    gradient, d_input = [], []
    parts = attention_backward(q, k, v, mask, d_head, keep_scale)
    for source, weight, part in zip((x, memory, memory), (wq, wk, wv), parts):
        d_weight, d_bias, d_source = np.zeros(weight.shape), np.zeros(weight.shape[1]), np.zeros(source.shape)
        for h in range(heads):
            own = columns(h, weight, heads)
            d_weight[:, own], d_bias[own], through_h = linear_backward(source, weight[:, own], part[:, h])
            d_source = add(d_source, through_h)  # every head reads the whole source
        gradient += [d_weight, d_bias]
        d_input.append(d_source)
    return *gradient, dwo, dbo, d_input[0], add(d_input[1], d_input[2])  # memory serves as keys and as values


# ── Layers ───────────────────────────────────────────────────────────────────────────────────────

def standardise(x, epsilon):
    """x̂ᵢ = (xᵢ − μ) / s with s = √(Σ(xᵢ − μ)² / D + ε), for one row → x̂, s"""
    row = [float(value) for value in x]
    mean = math.fsum(row) / len(row)
    s = math.sqrt(math.fsum((value - mean) ** 2 for value in row) / len(row) + epsilon)
    return [(value - mean) / s for value in row], s


def layer_norm(x, gain, shift, epsilon=1e-5):
    """yᵢ = γᵢ x̂ᵢ + βᵢ along the last axis"""
    y = np.zeros(x.shape)
    for n in np.ndindex(*x.shape[:-1]):
        x_hat, _ = standardise(x[n], epsilon)
        y[n] = [gain[i] * x_hat[i] + shift[i] for i in range(len(x_hat))]
    return y


def layer_norm_backward(x, gain, dy, epsilon=1e-5):
    """∂x̂ᵢ/∂xⱼ = (δᵢⱼ − 1/D) / s − x̂ᵢ x̂ⱼ / (D s), ∂yᵢ/∂γᵢ = x̂ᵢ, ∂yᵢ/∂βᵢ = 1 → d_gain, d_shift, dx"""
    D = x.shape[-1]
    d_gain, d_shift, dx = np.zeros(D), np.zeros(D), np.zeros(x.shape)
    for n in np.ndindex(*x.shape[:-1]):
        x_hat, s = standardise(x[n], epsilon)
        for j in range(D):
            jacobian = [((i == j) - 1 / D) / s - x_hat[i] * x_hat[j] / (D * s) for i in range(D)]
            dx[(*n, j)] = math.fsum(dy[(*n, i)] * gain[i] * jacobian[i] for i in range(D))
            d_gain[j] += dy[(*n, j)] * x_hat[j]
            d_shift[j] += dy[(*n, j)]
    return d_gain, d_shift, dx


def through(slope, x, dy):
    """dxᵢ = f′(xᵢ) dyᵢ"""
    return elementwise(lambda u, g: slope(u) * g, x, dy)


def relu(x):
    """max(0, x)"""
    return elementwise(lambda u: max(0.0, u), x)


def relu_backward(x, dy):
    """f′(x) = 1 for x > 0, else 0"""
    return through(lambda u: float(u > 0), x, dy)


def normal_cdf(u):
    """Φ(u) = (1 + erf(u/√2)) / 2 = erfc(−u/√2) / 2, the second form without cancellation for u ≪ 0"""
    return math.erfc(-u / math.sqrt(2)) / 2


def gelu(x):
    """x Φ(x)"""
    return elementwise(lambda u: u * normal_cdf(u), x)


def gelu_backward(x, dy):
    """f′(x) = Φ(x) + x φ(x), φ(x) = exp(−x²/2) / √(2π)"""
    return through(lambda u: normal_cdf(u) + u * math.exp(-u * u / 2) / math.sqrt(2 * math.pi), x, dy)


def gelu_tanh(x):
    """x (1 + tanh a) / 2, a = √(2/π) (x + 0.044715 x³)"""
    return elementwise(lambda u: u * (1 + math.tanh(math.sqrt(2 / math.pi) * (u + 0.044715 * u * u * u))) / 2, x)


def gelu_tanh_backward(x, dy):
    """f′(x) = (1 + tanh a) / 2 + x (1 − tanh² a) a′ / 2, a′ = √(2/π) (1 + 3 · 0.044715 x²)"""
    def slope(u):
        t = math.tanh(math.sqrt(2 / math.pi) * (u + 0.044715 * u * u * u))
        return (1 + t) / 2 + u * (1 - t * t) * math.sqrt(2 / math.pi) * (1 + 3 * 0.044715 * u * u) / 2

    return through(slope, x, dy)


def feed_forward(x, w1, b1, w2, b2, activation=relu):
    """f(x W₁ + b₁) W₂ + b₂"""
    return linear(activation(linear(x, w1, b1)), w2, b2)


def feed_forward_backward(x, w1, b1, w2, b2, dy, activation=relu, activation_backward=relu_backward):
    """the chain rule backwards through W₂, f, W₁ → dw1, db1, dw2, db2, dx"""
    before = linear(x, w1, b1)
    dw2, db2, d_after = linear_backward(activation(before), w2, dy)
    dw1, db1, dx = linear_backward(x, w1, activation_backward(before, d_after))
    return dw1, db1, dw2, db2, dx


def embedding(table, ids):
    """y = table[id] for each id: (...) → (..., D)"""
    y = np.zeros((*ids.shape, table.shape[1]))
    for n in np.ndindex(*ids.shape):
        y[n] = table[int(ids[n])]
    return y


def embedding_backward(table, ids, dy):
    """d_table[v] = Σ dy over every place where the id is v"""
    d_table = np.zeros(table.shape)
    for *n, d in np.ndindex(*dy.shape):
        d_table[int(ids[tuple(n)]), d] += dy[(*n, d)]
    return d_table


def sinusoidal_positions(length, width, base=10000.0):
    """PE[p, 2i] = sin(p / base^(2i/width)), PE[p, 2i+1] = cos of the same angle"""
    table = np.zeros((length, width))
    for p, c in np.ndindex(length, width):
        angle = p / base ** (2 * (c // 2) / width)
        table[p, c] = math.cos(angle) if c % 2 else math.sin(angle)
    return table


# ── Model: attention = (wq, bq, wk, bk, wv, bv, wo, bo), feed = (w1, b1, w2, b2), a norm = (gain, shift) ──

def residual(x, sublayer, norm, norm_first, epsilon):
    """pre-norm x + f(LN(x)), post-norm LN(x + f(x))"""
    if norm_first:
        return add(x, sublayer(layer_norm(x, *norm, epsilon)))
    return layer_norm(add(x, sublayer(x)), *norm, epsilon)


def encoder_layer(x, mask, attention, feed, attention_norm, feed_norm, heads,
                  norm_first=True, activation=relu, epsilon=1e-5):
    """self-attention, then feed-forward, each with its residual and norm"""
    x = residual(x, lambda u: multi_head(u, u, mask, *attention, heads), attention_norm, norm_first, epsilon)
    return residual(x, lambda u: feed_forward(u, *feed, activation), feed_norm, norm_first, epsilon)


def decoder_layer(x, memory, mask, memory_mask, self_attention, cross_attention, feed,
                  self_norm, cross_norm, feed_norm, heads, norm_first=True, activation=relu, epsilon=1e-5):
    """self-attention, cross-attention with queries from x and keys and values from memory, feed-forward"""
    x = residual(x, lambda u: multi_head(u, u, mask, *self_attention, heads), self_norm, norm_first, epsilon)
    x = residual(x, lambda u: multi_head(u, memory, memory_mask, *cross_attention, heads),
                 cross_norm, norm_first, epsilon)
    return residual(x, lambda u: feed_forward(u, *feed, activation), feed_norm, norm_first, epsilon)


def embed(ids, table, positions):
    """√D · table[id] + PE[p], ids (B, T), positions (at least T, D)"""
    x = embedding(table, ids)
    for b, p, c in np.ndindex(*x.shape):
        x[b, p, c] = math.sqrt(table.shape[1]) * x[b, p, c] + positions[p, c]
    return x


def transformer_forward(source, target, source_mask, target_mask, source_table, target_table, positions,
                        encoder_layers, decoder_layers, encoder_norm, decoder_norm, output, heads, **options):
    """logits = Decoder(embed(target), Encoder(embed(source))) Wᵒᵘᵗ + bᵒᵘᵗ, shape (B, T, V); output = (W (D, V), b)
    encoder_layers and decoder_layers: the parameter tuples of each layer; a final norm may be None"""
    epsilon = options.get("epsilon", 1e-5)
    memory = embed(source, source_table, positions)
    for layer in encoder_layers:
        memory = encoder_layer(memory, source_mask, *layer, heads, **options)
    memory = memory if encoder_norm is None else layer_norm(memory, *encoder_norm, epsilon)
    x = embed(target, target_table, positions)
    for layer in decoder_layers:
        x = decoder_layer(x, memory, target_mask, source_mask, *layer, heads, **options)
    x = x if decoder_norm is None else layer_norm(x, *decoder_norm, epsilon)
    return linear(x, *output)


# ── Training ─────────────────────────────────────────────────────────────────────────────────────

def counted(targets, ignore_index):
    """The places whose target counts"""
    return [n for n in np.ndindex(*targets.shape) if ignore_index is None or targets[n] != ignore_index]


def smoothed(target, V, label_smoothing):
    """q_c = (1 − ε) [c = target] + ε/V"""
    return [(1 - label_smoothing) * (c == target) + label_smoothing / V for c in range(V)]


def cross_entropy(logits, targets, ignore_index=None, label_smoothing=0.0):
    """mean over counted tokens of Σ_c q_c (lse(z) − z_c), lse(z) = m + log Σⱼ exp(zⱼ − m), m = max z"""
    losses = []
    for n in counted(targets, ignore_index):
        z = [float(value) for value in logits[n]]
        lse = max(z) + math.log(math.fsum(math.exp(value - max(z)) for value in z))
        losses.append(dot(smoothed(targets[n], len(z), label_smoothing), [lse - value for value in z]))
    return math.fsum(losses) / len(losses) if losses else 0.0


def cross_entropy_backward(logits, targets, ignore_index=None, label_smoothing=0.0):
    """dzⱼ = Σ_c q_c (∂lse/∂zⱼ − δ_cⱼ) / count, ∂lse/∂zⱼ = softmax(z)ⱼ; zeros for ignored tokens"""
    places, V = counted(targets, ignore_index), logits.shape[-1]
    d_logits = np.zeros(logits.shape)
    for n in places:
        p, q = softmax(logits[n]), smoothed(targets[n], V, label_smoothing)
        for j in range(V):
            d_logits[(*n, j)] = math.fsum(q[c] * (p[j] - (c == j)) for c in range(V)) / len(places)
    return d_logits


def adam(parameters, gradients, learning_rate, beta1=0.9, beta2=0.98, epsilon=1e-9, weight_decay=0.0):
    """m ← β₁m + (1−β₁)g, v ← β₂v + (1−β₂)g², p ← p − lr·m̂/(√v̂ + ε) − lr·wd·p, m̂ = m/(1−β₁ˢ), v̂ = v/(1−β₂ˢ)
    parameters: list of scalars, gradients: one such list a step, learning_rate: number or function of the
    step s = 1, 2, … → the parameters after each step"""
    p, history = [float(value) for value in parameters], []
    m, v = [0.0] * len(p), [0.0] * len(p)
    for step, gradient in enumerate(gradients, start=1):
        lr = learning_rate(step) if callable(learning_rate) else learning_rate
        for i, g in enumerate(gradient):
            m[i] = beta1 * m[i] + (1 - beta1) * g
            v[i] = beta2 * v[i] + (1 - beta2) * g * g
            m_hat, v_hat = m[i] / (1 - beta1**step), v[i] / (1 - beta2**step)
            p[i] = p[i] - lr * m_hat / (math.sqrt(v_hat) + epsilon) - lr * weight_decay * p[i]
        history.append(list(p))
    return history


def warmup_schedule(step, width, warmup_steps):
    """lr = D^−½ min(s^−½, s · w^−3/2)"""
    if step < 1 or warmup_steps <= 0:
        raise ValueError(f"step {step} and warmup_steps {warmup_steps} must be positive")
    return width**-0.5 * min(step**-0.5, step * warmup_steps**-1.5)


def clip_gradients(gradients, max_norm):
    """g ← g · max_norm / ‖all g‖ where ‖all g‖ > max_norm; gradients: list of arrays → clipped, norm"""
    norm = math.hypot(*(float(g[i]) for g in gradients for i in np.ndindex(*g.shape)))
    if not (math.isfinite(norm) and max_norm >= 0):
        raise ValueError(f"norm {norm} must be finite, max_norm {max_norm} not negative")
    if norm <= max_norm:
        return gradients, norm
    return [elementwise(lambda u: u / norm * max_norm, g) for g in gradients], norm


# ── Translation: log_probabilities((start, y₁, …, yₙ)) → log P(next token = 0, 1, … V − 1) ──────────────

def beam_score(total, length, alpha):
    """Σ log p / ((5 + length) / 6)^α, length counting EOS"""
    return total / ((5 + length) / 6) ** alpha


def greedy_search(log_probabilities, start, end, max_length):
    """y_n = argmax P(· | y_<n), the smallest id on a tie, until EOS or max_length tokens; without start, with EOS"""
    tokens = []
    while len(tokens) < max_length and end not in tokens:
        row = list(log_probabilities((start, *tokens)))
        tokens.append(row.index(max(row)))
    return tuple(tokens)


def exhaustive_search(log_probabilities, start, end, max_length, alpha):
    """Every possible sequence that ends in EOS or reaches max_length, as (tokens, beam score), best first:
    what a beam as wide as the whole tree must find"""
    found = []

    def extend(tokens, total):
        for token, log_p in enumerate(log_probabilities((start, *tokens))):
            if log_p == -math.inf:
                continue
            longer = (*tokens, token)
            if token == end or len(longer) >= max_length:
                found.append((longer, beam_score(total + log_p, len(longer), alpha)))
            else:
                extend(longer, total + log_p)

    extend((), 0.0)
    return sorted(found, key=lambda hypothesis: (-hypothesis[1], hypothesis[0]))
