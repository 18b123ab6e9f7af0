"""Every shape comment of the book is executed, with all letters of different size.

To cover a new page, add a function below: `@scenario("part.page")` names the page it is about, the body calls the
page's public functions forward and backward, until every commented line has run. Where a function means by a letter
whatever length it is given, `free={"split_heads": "T"}` lets that letter have one size in each of its calls; `T=None`
does so for the whole page, `T=9` gives it another size.
"""

import importlib
import tempfile
from pathlib import Path

import numpy as np
import pytest

import numpy_transformer
from shape_tracer import verify

SIZES = {"B": 2, "T": 5, "S": 7, "H": 3, "K": 4, "D": 12, "F": 11, "V": 13}
B, T, S, H, K, D, F, V = SIZES.values()
ROOT = Path(numpy_transformer.__file__).parent

NOT_ENTERED = {  # pages, or whole parts, that no scenario needs to run
    "command_line": "commands, made of what the other pages define",
    "foundations.blas_threads": "asks the library, computes nothing",
    "foundations.pullback": "defines the convention and computes nothing",
    "model.config": "sizes and choices",
    "training.memory": "asks the system, computes nothing",
    "training.progress_line": "text only",
    "training.schedule": "one number a step",
    "translation.corpus": "sentences only",
    "translation.parallel_text": "sentences only",
    "translation.vocabulary": "tokens and numbers only",
    "variations.published_model": "names only",
    "variations.torch_interchange": "names only",
}
ANY_SHAPE = {  # pages that take arrays of every shape, so that a comment could only say (...)
    "foundations.checks": "returns what it was given",
    "foundations.gradient_check": "differentiates any function",
    "foundations.parameters": "walks trees of any arrays",
    "variations.renaming": "gives any arrays other names",
}

scenarios = []


def scenario(*names, free=None, **letters):
    """Register a run over the named pages; without names, over all."""
    def register(run):
        run.names, run.free = names, free or {}
        run.letters = {letter: size for letter, size in {**SIZES, **letters}.items() if size is not None}
        scenarios.append(run)
        return run
    return register


def page(name):
    return importlib.import_module(f"numpy_transformer.{name}")


def pages():
    """Return all pages by name, in the order of their files."""
    files = [f.relative_to(ROOT).with_suffix("") for f in sorted(ROOT.rglob("*.py")) if not f.stem.startswith("__")]
    return {".".join(f.parts): page(".".join(f.parts)) for f in files}


def rng():
    return np.random.default_rng(0)


def normal(*shape, dtype=np.float64):
    return rng().standard_normal(shape).astype(dtype)


def ids(*shape, low=0):
    return rng().integers(low, V, shape)


def both_passes(f, *arguments, **named):
    """Run f forward and its pullback backward; return the result."""
    y, backward = f(*arguments, **named)
    backward(np.ones_like(y))
    return y


# ---------------------------------------------------------------- foundations

@scenario("foundations.dropout")
def dropout():
    for x in (normal(B, T, D), normal(D)):
        both_passes(page("foundations.dropout").dropout, x, 0.3, rng())


@scenario("foundations.linear", I=D, O=F)
def linear():
    layer = page("foundations.linear").Linear.init(rng(), D, F)
    for x in (normal(B, T, D), normal(D), normal(0, D)):
        both_passes(layer, x)


@scenario("foundations.parameters")
def parameters():
    p = page("foundations.parameters")
    tree = (normal(3, 4), (normal(5),))
    p.from_vector(tree, p.to_vector(tree))


@scenario("foundations.sums")
def sums():
    p = page("foundations.sums")
    p.ones.cache_clear()  # else a vector kept from before is not made here
    p.row_sums(normal(B, T, D)), p.column_sums(normal(T, D))


# ---------------------------------------------------------------- attention

@scenario("attention.softmax")
def softmax():
    for x in (normal(B, H, T, S), normal(S), normal(T, S, dtype=np.float16), np.full((T, S), -np.inf)):
        both_passes(page("attention.softmax").softmax, x)


@scenario("attention.masks")
def masks():
    page("attention.masks").causal_mask(T, S)
    page("attention.masks").padding_mask(ids(B, S), 0)


@scenario("attention.scaled_dot_product")
def scaled_dot_product():
    attend = page("attention.scaled_dot_product").scaled_dot_product_attention
    mask = page("attention.masks").causal_mask(T, S)
    for leading in ((), (B, H)):
        both_passes(attend, normal(*leading, T, K), normal(*leading, S, K), normal(*leading, S, 17), mask,
                    dropout_rate=0.3, rng=rng())


@scenario("attention.tiled", M=6)
def tiled():
    q, k, v = normal(B, H, T, K), normal(B, H, S, K), normal(B, H, S, 6)
    tiled_attention = page("attention.tiled").tiled_attention
    for queries in (q, 100 * q):  # scores that a bound keeps small, and scores whose maxima have to be found
        for mask in (None, rng().random((T, S)) < 0.7, rng().random((B, 1, T, S)) < 0.7):
            both_passes(tiled_attention, queries, k, v, mask, causal=True, query_block=2, key_block=3)


@scenario("attention.multi_head", free={"split_heads": "T", "merge_heads": "T", "__call__": "S", "_attend_and_output": "S"})
def multi_head():
    layer = page("attention.multi_head").MultiHeadAttention.init(rng(), D, H)
    x, memory, mask = normal(B, T, D), normal(B, S, D), page("attention.masks").causal_mask(T, S)
    both_passes(layer, x, memory, mask)
    both_passes(layer.self_attention, x)  # here the memory is x, and S is T
    layer.attend(x, *layer.keys_and_values(memory), mask)
    layer.weights(x, memory, mask)


# ---------------------------------------------------------------- layers

@scenario("layers.layer_norm")
def layer_norm():
    for x in (normal(B, T, D), normal(D)):
        both_passes(page("layers.layer_norm").LayerNorm.init(D), x)


@scenario("layers.normal_distribution")
def normal_distribution():
    p = page("layers.normal_distribution")
    p.taylor_coefficients(normal(7))
    for x in (normal(B, T, D), normal(p.BLOCK + 5)):
        p.normal_distribution(x)


@scenario("layers.feed_forward")
def feed_forward():
    p = page("layers.feed_forward")
    for activation in (p.relu, p.gelu, p.gelu_tanh):
        for x in (normal(B, T, D), normal(D)):
            both_passes(p.FeedForward.init(rng(), D, F, activation=activation, dropout_rate=0.3), x, rng())


@scenario("layers.embedding")
def embedding():
    layer = page("layers.embedding").Embedding.init(rng(), V, D)
    for some in (ids(B, T), ids(1)[0]):
        both_passes(layer, some)


@scenario("layers.positional_encoding")
def positional_encoding():
    p = page("layers.positional_encoding")
    p.sinusoidal_positions(T, D)
    for layer in (p.SinusoidalPositions(17, D), p.LearnedPositions.init(rng(), 17, D)):
        for x in (normal(B, T, D), normal(T, D)):
            both_passes(layer, x)
            layer(x, 3)


@scenario("layers.residual")
def residual():
    norm = page("layers.layer_norm").LayerNorm.init(D)
    sublayer = page("layers.feed_forward").FeedForward.init(rng(), D, F)
    for norm_first in (True, False):
        y, backward = page("layers.residual").residual(sublayer, norm, normal(B, T, D), norm_first=norm_first,
                                                       dropout_rate=0.3, rng=rng())
        backward(np.ones_like(y))


# ---------------------------------------------------------------- model

@scenario("model.encoder")
def encoder():
    p, norm = page("model.encoder"), page("layers.layer_norm").LayerNorm.init(D)
    for norm_first, last in ((True, norm), (False, None)):
        layers = tuple(p.EncoderLayer.init(rng(), D, H, F, norm_first=norm_first) for _ in range(2))
        both_passes(p.Encoder(layers, last), normal(B, S, D), np.ones((B, 1, 1, S), bool), rng())


@scenario("model.decoder", free={"LayerCache": "T", "look_back": "T"})  # a cache holds 0, 1, 2 … words
def decoder():
    p, norm = page("model.decoder"), page("layers.layer_norm").LayerNorm.init(D)
    causal, memory, memory_mask = page("attention.masks").causal_mask(T), normal(B, S, D), np.ones((B, 1, 1, S), bool)
    for norm_first, last in ((True, norm), (False, None)):
        layers = tuple(p.DecoderLayer.init(rng(), D, H, F, norm_first=norm_first) for _ in range(2))
        stack = p.Decoder(layers, last)
        both_passes(stack, normal(B, T, D), memory, causal, memory_mask, rng())
        caches = tuple(layer.start(memory) for layer in layers)
        for _ in range(2):
            _, caches = stack.step(normal(B, 1, D), caches, memory_mask)


def make_transformer(**choices):
    sizes = {"width": D, "heads": H, "hidden": F, "encoder_layers": 2, "decoder_layers": 2, "max_length": 17}
    config = page("model.config").TransformerConfig(V, V, **sizes, **choices)
    return page("model.transformer").Transformer.init(rng(), config), config


def run_transformer(**choices):
    model, _ = make_transformer(**choices)
    source, target = ids(B, S, low=1), ids(B, T, low=1)
    both_passes(model, source, target, pad=0, rng=rng())
    cache = model.start(source, pad=0)
    for t in range(2):
        _, cache = model.step(target[:, t], cache)
    model.attention_maps(source, target, pad=0)


@scenario("model.transformer", free={"_embed": "T"})  # it embeds both sides
def transformer():
    run_transformer()
    run_transformer(tie_embeddings=False, norm_first=False, final_norm=False, learned_positions=True, dropout_rate=0.3)
    run_transformer(share_vocabulary=True)


# ---------------------------------------------------------------- training

@scenario("training.cross_entropy")
def cross_entropy():
    loss = page("training.cross_entropy").cross_entropy
    for leading in ((B, T), (T,), ()):
        targets = np.asarray(ids(*leading) if leading else 3)
        for dtype in (np.float64, np.float16):
            both_passes(loss, normal(*leading, V, dtype=dtype), targets, ignore_index=0, label_smoothing=0.1)


@scenario("training.adam", "training.clipping")
def optimiser():
    layer, gradient = (page("foundations.linear").Linear.init(rng(), D, F) for _ in range(2))
    adam = page("training.adam").Adam(0.1, weight_decay=0.01)
    clipped, _ = page("training.clipping").clip_gradients(gradient, 0.5)
    adam.update(layer, clipped, adam.init(layer))


EXAMPLES = 2 * B * [([3] * (S - 1), [4] * (T - 1))]  # with <eos> and <bos> they are S and T long


@scenario("training.batches", free={"pad_to_longest": "S"})  # it pads both sides
def batches():
    p = page("training.batches")
    list(p.epoch(EXAMPLES, B, rng()))
    p.pad_to_longest([[3] * T, [3]])


@scenario("training.loop")
def loop():
    p, (model, _) = page("training.loop"), make_transformer()
    config = p.TrainingConfig(steps=2, batch_size=B)
    list(p.training_steps(p.Progress(model, page("training.adam").Adam(0.0).init(model)), EXAMPLES, config))
    p.mean_loss(model, EXAMPLES, B)


@scenario("training.workers", B=None, T=None, S=None)
def workers():
    training, batches = page("training.workers"), page("training.batches")
    batch = batches.make_batch([([5, 6, 7], [8, 9]), ([5], [6, 7, 8])])
    with training.Workers(make_transformer()[0], 2) as team:
        team.differentiate(batch)
        team.gradient()
    model, adam = make_transformer()[0], page("training.adam").Adam(0.1)
    training.loss_and_gradient(model, batch)
    memory = bytearray(5 * numpy_transformer.to_vector(model).nbytes)  # what a worker sees, seen from here
    worker = training._Worker(model, 1, 2, memory, model.source_embedding.table.dtype.str)
    worker.differentiate(batch, 1.0, 0.0, (0,))
    worker.norm()
    worker.step(adam, 0, None, 0.5)


@scenario("training.checkpoint")
def checkpoint():
    p, (model, config) = page("training.checkpoint"), make_transformer()
    with tempfile.TemporaryDirectory() as folder:
        p.save(Path(folder) / "model.npz", model, config, optimiser=page("training.adam").Adam(0.0).init(model))
        p.load(Path(folder) / "model.npz")


# ---------------------------------------------------------------- translation

def decode(decoder, batch=B, **options):
    model, _ = make_transformer()
    return decoder(model, ids(batch, S, low=1), start=1, end=2, pad=0, max_length=T, **options)


@scenario("translation.greedy")
def greedy():
    decode(page("translation.greedy").greedy_decode)


@scenario("translation.greedy", B=0, T=0)
def greedy_without_sentences():
    decode(page("translation.greedy").greedy_decode, batch=0)


@scenario("translation.beam_search")
def beam_search():
    decode(page("translation.beam_search").beam_search, beam=3)


def make_translator():
    p, vocabulary = page("translation.translator"), page("translation.vocabulary").Vocabulary
    words = vocabulary.build([list("abcdefghi")])
    assert len(words) == V
    return p.Translator(*make_transformer(), words, words)


@scenario("translation.translator", T=None)  # translations are as long as they are
def translator():
    make_translator().translate([" ".join("abcdefghi"[i : i + S - 1]) for i in range(B)])


@scenario("translation.heat_map")
def heat_map():
    page("translation.heat_map").cross_attention_map(make_translator(), "a b c d e f", "a b c d")


# ---------------------------------------------------------------- variations

@scenario("variations.bert")
def bert():
    p = page("variations.bert")
    model = p.from_bert(p.to_bert(p.Bert.init(rng(), V, D, H, F, 2, max_length=17)), heads=H)
    hidden = both_passes(model, ids(B, S), np.ones((B, 1, 1, S), bool), ids(B, S) % 2)
    both_passes(model.pool, hidden)


def gpt_of(max_length, **choices):
    p = page("variations.gpt")
    config = p.GPTConfig(V, width=D, heads=H, hidden=F, layers=2, max_length=max_length, **choices)
    return p.GPT.init(rng(), config)


@scenario("variations.gpt", free={"GPTCache": "T", "_embed": "T", "_read": "TS"})
def gpt():
    model, text = gpt_of(17, dropout_rate=0.3), ids(B, T)
    both_passes(model, text, rng())
    cache = model.start(text)
    for _ in range(2):
        _, cache = model.step(text[:, 0], cache)
    sizes = {"attn.c_attn": (D, 3 * D), "attn.c_proj": (D, D), "mlp.c_fc": (D, F), "mlp.c_proj": (F, D),
             "ln_1": (D,), "ln_2": (D,)}
    arrays = {"wte.weight": normal(V, D), "wpe.weight": normal(17, D), "ln_f.weight": normal(D), "ln_f.bias": normal(D)}
    for name, shape in sizes.items():
        arrays |= {f"h.0.{name}.weight": normal(*shape), f"h.0.{name}.bias": normal(shape[-1])}
    page("variations.gpt").from_gpt2(arrays, heads=H)


@scenario("variations.generation", free={"continuation": "T", "text_loss": "T"})
def generation():
    p, model = page("variations.generation"), gpt_of(T)
    vocabulary = p.CharacterVocabulary("abc")
    for choices in ({"temperature": 0}, {"top_k": 3, "top_p": 0.9}):
        p.generate(model, ids(B, T), count=9, rng=rng(), **choices)
    vocabulary.decode(vocabulary.encode("abba"))
    config = page("training.loop").TrainingConfig(steps=2, batch_size=B)
    start = page("training.loop").Progress(model, page("training.adam").Adam(0.0).init(model))
    list(p.gpt_training_steps(start, ids(29), config))
    p.text_loss(model, ids(2 * T + 3))


@scenario("variations.grouped_query_attention", B=11, H=6, G=2, R=3, D=24)
def grouped_query_attention():
    layer = page("variations.grouped_query_attention").GroupedQueryAttention.init(rng(), 24, 6, 2)
    x, memory, mask = normal(11, T, 24), normal(11, S, 24), page("attention.masks").causal_mask(T, S)
    both_passes(layer, x, memory, mask)
    layer.attend(x, *layer.keys_and_values(memory), mask)
    layer.weights(x, memory, mask)


# ---------------------------------------------------------------- the whole book

@scenario(T=None, S=None)  # all pages, each as the others use it
def whole_book():
    run_transformer(learned_positions=True, dropout_rate=0.3, activation="gelu")
    loop()


# ---------------------------------------------------------------- the verdict

@pytest.fixture(scope="module")
def report():
    modules = pages()
    for run in scenarios:
        names = run.names or [name for name in modules if name not in ANY_SHAPE]
        run.pages = [modules[name] for name in names if name in modules]
    return verify(modules.values(), *scenarios)


def test_no_shape_comment_is_wrong(report):
    assert not report.mismatched, "\n" + "\n".join(report.mismatched)


def test_every_shape_comment_is_reached(report):
    assert not report.unreached, "\n" + "\n".join(report.unreached)


def test_every_shape_comment_is_tied_to_a_statement(report):
    assert not report.untied, "\n" + "\n".join(report.untied)


def test_every_array_has_a_shape_comment(report):
    missing = [line for name, module in pages().items() if name not in ANY_SHAPE for line in report.uncommented(module)]
    assert not missing, "\n" + "\n".join(missing)


def test_every_page_is_entered():
    entered = {name for run in scenarios for name in run.names} | ANY_SHAPE.keys()
    excused = [name for name in pages() if {name, name.split(".")[0]} & NOT_ENTERED.keys()]
    forgotten = pages().keys() - entered - set(excused)
    assert not forgotten, f"write a scenario for {', '.join(forgotten)}"
    assert entered <= pages().keys()


def test_the_book_was_looked_at(report):
    comments = [len(page.comments) for page in report.pages]
    print(f"\n{len(report.verified)} shape comments on {sum(map(bool, comments))} of {len(comments)} pages")
    assert len(report.verified) == sum(comments) > 450 and sum(map(bool, comments)) > 25
