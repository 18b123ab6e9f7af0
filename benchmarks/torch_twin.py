"""The same operations in PyTorch, eager and on the CPU: the only file that imports it.

Everything is built for an operation of the book, from its arrays: `ways(operation)` names what can be
timed, `twin(operation, label)` builds it, with the same two methods as the operation: `passes` gives
the calls to be timed, `values` what they compute, under the book's names.

A twin starts from copies of the book's own arrays and is written as its users would write it:
`F.linear` with weights (O, I); one fused projection for all that reads the same rows; attention both
by `F.scaled_dot_product_attention` ("sdpa") and product by product ("explicit"); the fused Adam.
Of several ways the comparison keeps the fastest.
"""

import math
from functools import cache, partial

import numpy as np
import torch
import torch.nn.functional as F

from numpy_transformer.foundations.parameters import named_parameters
from numpy_transformer.layers.positional_encoding import sinusoidal_positions
from numpy_transformer.training.batches import BOS

from .operations import upstream_gradient
from .training import LEARNING_RATE

VERSION = torch.__version__
set_threads = torch.set_num_threads


def leaf(array):
    return torch.from_numpy(np.array(array)).requires_grad_(array.dtype.kind == "f")


class Parameters:
    """The leaves for a tree of the book's parameters. Query, key and value of a self-attention lie in
    one weight, key and value of a cross-attention too, and `unpack` takes their gradients apart again."""

    def __init__(self, tree):
        self.places, stacks = {}, {}  # the book's name → a leaf's name and rows
        for name, array in named_parameters(tree).items():
            owner, _, kind = name.rpartition(".")
            attention, _, projection = owner.rpartition(".")
            if attention.endswith("cross_attention"):
                projection = {"key": "kv", "value": "kv"}.get(projection, projection)
            elif projection in ("query", "key", "value"):
                projection = "qkv"
            owner = f"{attention}.{projection}.{kind}".lstrip(".")
            stack = stacks.setdefault(owner, [])
            start = sum(map(len, stack))
            stack.append(array.T if kind == "weight" else array)
            self.places[name] = owner, start, start + len(stack[-1])
        self.leaves = {owner: leaf(np.concatenate(stack)) for owner, stack in stacks.items()}

    def __getitem__(self, name):
        return self.leaves[name.lstrip(".")]

    def unpack(self, gradients, prefix=""):
        named = dict(zip(self.leaves, gradients))
        parts = {name: named[owner][start:stop] for name, (owner, start, stop) in self.places.items()}
        return {prefix + name: part.T if name.endswith("weight") else part for name, part in parts.items()}


class Net:
    """Every layer of the book over the leaves of one tree; names are the tree's own."""

    def __init__(self, tree, heads=1, explicit=False, dropout=0.0):
        self.p, self.heads, self.explicit, self.dropout = Parameters(tree), heads, explicit, dropout

    def linear(self, name, x):
        return F.linear(x, self.p[f"{name}.weight"], self.p[f"{name}.bias"])

    def norm(self, name, x):
        return F.layer_norm(x, x.shape[-1:], self.p[f"{name}.gain"], self.p[f"{name}.shift"], 1e-5)

    def feed_forward(self, name, x):
        return self.linear(f"{name}.contract", F.relu(self.linear(f"{name}.expand", x)))

    def split(self, x):
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def self_attention(self, name, x, causal=False):
        q, k, v = map(self.split, self.linear(f"{name}.qkv", x).chunk(3, -1))
        return self.linear(f"{name}.output", attend(self.explicit, q, k, v, causal).transpose(1, 2).flatten(2))

    def cross_attention(self, name, x, k, v):
        q = self.split(self.linear(f"{name}.query", x))
        return self.linear(f"{name}.output", attend(self.explicit, q, k, v).transpose(1, 2).flatten(2))

    def keys_and_values(self, name, memory):
        return map(self.split, self.linear(f"{name}.kv", memory).chunk(2, -1))

    def drop(self, x):
        return F.dropout(x, self.dropout) if self.dropout else x

    def encoder_layer(self, name, x):
        x = x + self.drop(self.self_attention(f"{name}.attention", self.norm(f"{name}.attention_norm", x)))
        return x + self.drop(self.feed_forward(f"{name}.feed_forward", self.norm(f"{name}.feed_forward_norm", x)))

    def decoder_layer(self, name, x, memory):
        normed = self.norm(f"{name}.self_attention_norm", x)
        x = x + self.drop(self.self_attention(f"{name}.self_attention", normed, True))
        k, v = self.keys_and_values(f"{name}.cross_attention", memory)
        normed = self.norm(f"{name}.cross_attention_norm", x)
        x = x + self.drop(self.cross_attention(f"{name}.cross_attention", normed, k, v))
        return x + self.drop(self.feed_forward(f"{name}.feed_forward", self.norm(f"{name}.feed_forward_norm", x)))

    def embed(self, side, ids, positions):
        table = self.p[f"{side}_embedding.table"]
        return self.drop(F.embedding(ids, table) * math.sqrt(table.shape[1]) + positions[: ids.shape[1]])

    def encode(self, layers, source, positions):
        x = self.embed("source", source, positions)
        for index in range(layers):
            x = self.encoder_layer(f"encoder.layers.{index}", x)
        return self.norm("encoder.norm", x)

    def logits(self, layers, source, target, positions):
        memory, x = self.encode(layers, source, positions), self.embed("target", target, positions)
        for index in range(layers):
            x = self.decoder_layer(f"decoder.layers.{index}", x, memory)
        return self.linear("output", self.norm("decoder.norm", x))


def attend(explicit, q, k, v, causal=False):
    if not explicit:
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal)
    return weigh(q, k, causal) @ v


def weigh(q, k, causal=False):
    scores = q @ k.transpose(-1, -2) * (1 / math.sqrt(q.shape[-1]))
    if causal:
        scores = scores.masked_fill(future(*scores.shape[-2:]), -math.inf)
    return F.softmax(scores, -1)


@cache
def future(T, S):
    return torch.ones(T, S, dtype=torch.bool).triu(1)


class Way:
    """One way to do an operation: a function of leaves, timed forward and backward as the book's is.

    `inputs` are leaves by the names of their gradients in the book; `prefix` stands before the names
    of the parameters' own.
    """

    def __init__(self, forward, parameters=None, inputs=None, prefix="0."):
        self.forward, self.parameters, self.inputs, self.prefix = forward, parameters, inputs or {}, prefix

    def backward(self):
        """Return y and the call that computes every gradient."""
        y = self.forward()
        leaves = [*(self.parameters.leaves.values() if self.parameters else ()), *self.inputs.values()]
        dy = [torch.from_numpy(array) for array in upstream_gradient(y.detach().numpy() if y.ndim else 0.0)]
        return y, partial(torch.autograd.grad, y, leaves, dy or None, retain_graph=True)

    def passes(self):
        return {"forward": self.forward, "backward": self.backward()[1]}

    def values(self):
        y, backward = self.backward()
        gradients = list(backward())
        inputs = gradients[len(gradients) - len(self.inputs):]
        named = self.parameters.unpack(gradients, self.prefix) if self.parameters else {}
        named |= dict(zip(self.inputs, inputs))
        return {"y": y.detach().numpy(), **{f"gradient {n}".strip(): array for n, array in arrays(named).items()}}


class Training:
    """What changes parameters in place: an update, or a whole step."""

    def __init__(self, passes, values):
        self.passes, self.values = lambda: passes, values


TWINS = {}  # by an operation's name, or its class: a function that builds a way, the ways' labels, the passes that have no twin


def twin_of(name, *labels, without=()):
    def register(build):
        TWINS[name] = build, labels or ("eager",), without
        return build
    return register


def entry(operation):
    return TWINS.get(operation.name) or TWINS.get(type(operation).__name__)


def ways(operation):
    """Return the labels of the ways by pass: nothing if the operation has no twin."""
    if not entry(operation):
        return {}
    _, labels, without = entry(operation)
    return {variant: labels for variant in operation.work if variant not in without}


def twin(operation, label):
    return entry(operation)[0](operation, *([label == "explicit"] if label != "eager" else []))


def function_of_arrays(name, function, *labels):
    """Register the twin of an operation without parameters of its own."""
    def build(operation, *explicit):
        leaves = [leaf(array) for array in operation.arguments if isinstance(array, np.ndarray)]
        inputs = {str(i): x for i, x in enumerate(leaves) if x.requires_grad}
        inputs = {"": leaves[0]} if len(inputs) == 1 else inputs
        return Way(lambda: function(*explicit, *leaves), inputs=inputs)
    TWINS[name] = build, labels or ("eager",), ()


function_of_arrays("dropout", lambda x: F.dropout(x, 0.1))
function_of_arrays("softmax", lambda x: F.softmax(x, -1))
function_of_arrays("attention_weights", lambda q, k: weigh(q, k))
function_of_arrays("scaled_dot_product_attention", attend, "sdpa", "explicit")
function_of_arrays("causal scaled_dot_product", lambda e, q, k, v, mask: attend(e, q, k, v, True), "sdpa", "explicit")
function_of_arrays("tiled_attention", attend, "sdpa")
function_of_arrays("causal tiled_attention", lambda e, q, k, v: attend(e, q, k, v, True), "sdpa")
function_of_arrays("relu", F.relu)
function_of_arrays("gelu", F.gelu)
function_of_arrays("gelu_tanh", lambda x: F.gelu(x, approximate="tanh"))
function_of_arrays("cross_entropy", lambda x, targets: F.cross_entropy(
    x.flatten(0, 1), targets.flatten(), label_smoothing=0.1))


def layer(name, run, *labels):
    """Register the twin of a layer: run(net, *inputs) over the leaves of its parameters."""
    def build(operation, explicit=False):
        tree = getattr(operation.function, "__self__", operation.function)
        net = Net(tree, heads_of(tree), explicit)
        leaves = [leaf(array) for array in operation.arguments if isinstance(array, np.ndarray)]
        inputs = {str(i): x for i, x in enumerate(leaves, 1) if x.requires_grad}
        return Way(lambda: run(net, *leaves), net.p, inputs, "0." if inputs else "")
    TWINS[name] = build, labels or ("eager",), ()


def heads_of(tree):
    for part in (tree, *(getattr(tree, name, None) for name in ("attention", "self_attention"))):
        if hasattr(part, "heads"):
            return part.heads
    return 1


def decoder_layer(net, x, memory, mask):
    return net.decoder_layer("", x, memory)


layer("Linear", lambda net, x: net.linear("", x))
layer("LayerNorm", lambda net, x: net.norm("", x))
layer("Embedding", lambda net, ids: F.embedding(ids, net.p["table"]))
layer("LearnedPositions", lambda net, x: x + net.p["table"])
layer("FeedForward", lambda net, x: net.feed_forward("", x))
layer("MultiHeadAttention", lambda net, x: net.self_attention("", x), "sdpa", "explicit")
layer("EncoderLayer", lambda net, x: net.encoder_layer("", x), "sdpa", "explicit")
layer("DecoderLayer", decoder_layer, "sdpa", "explicit")


def optimiser_of(parameters, rate):
    return torch.optim.Adam(list(parameters.leaves.values()), rate, betas=(0.9, 0.98), eps=1e-9, fused=True)


@twin_of("Adam")
def adam(operation):
    model, gradient, _ = operation.arguments
    p, g = Parameters(model), Parameters(gradient)
    for name, parameter in p.leaves.items():
        parameter.grad = g[name].detach()
    optimiser = optimiser_of(p, LEARNING_RATE)
    return Training({"update": optimiser.step}, lambda: optimiser.step() or arrays(p.unpack(p.leaves.values())))


@twin_of("clip_gradients")
def clip(operation):
    p = Parameters(operation.arguments[0])
    for parameter in p.leaves.values():
        parameter.grad = parameter.detach().clone()
    call = partial(torch.nn.utils.clip_grad_norm_, list(p.leaves.values()), 1.0)  # in place, unlike the book's
    return Training({"clip": call}, lambda: call() and arrays(p.unpack([x.grad for x in p.leaves.values()], "0.")))


def arrays(tensors):
    return {name: tensor.detach().numpy() for name, tensor in tensors.items()}


def positions(length, width, dtype):
    return torch.from_numpy(sinusoidal_positions(length, width, dtype=dtype))


@twin_of("Transformer", "sdpa", "explicit")
def transformer(operation, explicit):
    model = operation.function.func
    source, target = map(torch.from_numpy, operation.arguments)
    table = model.source_embedding.table
    net = Net(model, model.encoder.layers[0].attention.heads, explicit)
    clocks = positions(max(source.shape[1], target.shape[1]), table.shape[1], table.dtype)
    return Way(lambda: net.logits(len(model.encoder.layers), source, target, clocks), net.p, prefix="")


@twin_of("Step", "sdpa", "explicit")
def step(operation, explicit):
    c, batch = operation.configuration, operation.configuration.batch()
    source, target, wanted = map(torch.from_numpy, (batch.source, batch.target_input, batch.target_output))
    clocks = positions(c.T, c.D, operation.dtype)

    def loss_of(net):
        loss = F.cross_entropy(net.logits(c.L, source, target, clocks).flatten(0, 1), wanted.flatten())
        loss.backward()
        return loss

    def training(dropout_rate):
        net = optimiser = None

        def one_step():
            nonlocal net, optimiser
            if net is None:
                net = Net(operation.model(), c.H, explicit, dropout_rate)
                optimiser = optimiser_of(net.p, LEARNING_RATE)
            optimiser.zero_grad(set_to_none=True)
            loss_of(net)
            optimiser.step()

        return one_step

    def values():
        net = Net(operation.model(), c.H, explicit)
        loss = loss_of(net).detach().numpy()
        gradients = arrays(net.p.unpack([x.grad for x in net.p.leaves.values()]))
        return {"y": loss, **{f"gradient {name}": array for name, array in gradients.items()}}

    return Training({name: training(rate) for name, (rate, _) in operation.variants.items()}, values)


@twin_of("Decode", "sdpa", "explicit", without=("uncached",))
def decode(operation, explicit):
    """Greedy decoding over keys and values that lie in arrays made for the whole length."""
    model, source, words = operation.model(operation.dtype), torch.from_numpy(operation.source()), operation.words
    c, L = model.source_embedding.table, len(model.decoder.layers)
    net = Net(model, model.encoder.layers[0].attention.heads, explicit)
    clocks = positions(max(source.shape[1], words), c.shape[1], c.dtype)
    names = [f"decoder.layers.{index}" for index in range(L)]

    def one_word(name, x, keys, values, memory, t):
        normed = net.norm(f"{name}.self_attention_norm", x)
        q, k, v = map(net.split, net.linear(f"{name}.self_attention.qkv", normed).chunk(3, -1))
        keys[:, :, t : t + 1], values[:, :, t : t + 1] = k, v
        y = attend(explicit, q, keys[:, :, : t + 1], values[:, :, : t + 1])
        x = x + net.linear(f"{name}.self_attention.output", y.transpose(1, 2).flatten(2))
        x = x + net.cross_attention(f"{name}.cross_attention", net.norm(f"{name}.cross_attention_norm", x), *memory)
        return x + net.feed_forward(f"{name}.feed_forward", net.norm(f"{name}.feed_forward_norm", x))

    @torch.inference_mode()
    def greedy():
        memory = net.encode(L, source, clocks)
        memories = [tuple(net.keys_and_values(f"{name}.cross_attention", memory)) for name in names]
        room = (2, len(source), net.heads, words, c.shape[1] // net.heads)
        caches = [torch.empty(room, dtype=memory.dtype) for _ in names]
        written = torch.full((len(source), words + 1), BOS)
        for t in range(words):
            x = net.embed("target", written[:, t : t + 1], clocks[t:])
            for name, kept, one_memory in zip(names, caches, memories):
                x = one_word(name, x, *kept, one_memory, t)
            written[:, t + 1] = net.linear("output", net.norm("decoder.norm", x[:, 0])).argmax(-1)
        return written[:, 1:]

    return Training(dict.fromkeys(operation.variants, greedy), lambda: {"y": greedy().numpy()})
