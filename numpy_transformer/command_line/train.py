"""`train`: from a corpus to a translator in a file."""

import argparse
import hashlib
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from ..model.config import TransformerConfig
from ..model.transformer import Transformer
from ..training.adam import Adam
from ..training.loop import Progress, TrainingConfig, mean_loss, training_steps
from ..training.memory import keep_freed_memory
from ..training.progress_line import ProgressLine
from ..translation.corpus import SHOWCASE, generate_corpus, split_corpus
from ..translation.parallel_text import read_parallel_text, split_by_source
from ..translation.translator import Translator, score
from ..translation.vocabulary import Vocabulary, tokenise

Pairs = Sequence[tuple[str, str]]  # a source and its target


@dataclass(frozen=True)
class Data:
    """Sentences to learn from and sentences to be tested on, under the name of each kind of test."""

    training: Pairs
    tests: dict[str, Pairs]
    showcase: Sequence[str]  # sources whose translations are shown at the end

    @property
    def fingerprint(self) -> str:
        """A short name for exactly these training sentences in this order."""
        return hashlib.sha256(repr([tuple(pair) for pair in self.training]).encode()).hexdigest()[:16]


def embedded_data() -> Data:
    """The corpus that is written by the book itself."""
    split = split_corpus(generate_corpus())
    another = next(pair.source for pair in split.unseen if pair.source not in SHOWCASE)
    return Data(split.training, {"held-out sentences": split.held_out, "unseen combinations": split.unseen},
                (*SHOWCASE, another))


def file_data(path: str, held_out: int, seed: int, max_length: int) -> Data:
    """Read a file of tab-separated pairs, say what was read and dropped, and keep some sources for testing."""
    pairs, report = read_parallel_text(path)
    print(report)
    fits = [pair for pair in pairs if max(len(tokenise(text)) for text in pair) < max_length]
    if len(fits) < len(pairs):
        print(f"{len(pairs) - len(fits):,} pairs dropped: longer than {max_length - 1} tokens (--max-length)")
    if len({source for source, _ in fits}) < 2:
        raise ValueError(f"{path} holds {len(fits)} usable pairs: too few to train on some and test on others")
    training, test = split_by_source(fits, min(held_out, len({source for source, _ in fits}) // 10 + 1), seed)
    print(f"{len(training):,} pairs to train on, {len(test):,} held out")
    return Data(training, {"held-out sentences": test}, list(dict.fromkeys(source for source, _ in test))[:10])


def train(arguments: argparse.Namespace) -> int:
    """Train, save, test, and show translations. Returns the exit status."""
    output = Path(arguments.output)
    check_writable(output)
    data = embedded_data() if arguments.data is None else file_data(
        arguments.data, arguments.held_out, arguments.seed, arguments.max_length)
    if arguments.resume:
        translator, progress, config = resume(output, data, arguments)
    else:
        translator, progress, config = begin(data, arguments)
    model = translator.model
    print(f"{len(data.training):,} pairs; vocabularies of {len(translator.source_vocabulary):,} and "
          f"{len(translator.target_vocabulary):,} tokens; {model.parameter_count():,} parameters, "
          f"{model.parameter_count(embeddings=False):,} without embeddings")

    translator = run(translator, progress, config, data, arguments)
    report(translator, data)
    print(f"\nThe model is in {output}. Translate with it:\n"
          f'  python -m numpy_transformer translate{"" if output == Path("model.npz") else f" --model {output}"} '
          f'"{data.showcase[0]}"')
    return 0


def begin(data: Data, arguments: argparse.Namespace) -> tuple[Translator, Progress, TrainingConfig]:
    """A new model, its vocabularies built from the training sentences alone."""
    source = Vocabulary.build((tokenise(text, lower=True) for text, _ in data.training), arguments.minimum_count)
    target = Vocabulary.build((tokenise(text) for _, text in data.training), arguments.minimum_count)
    config = TransformerConfig(
        len(source), len(target), width=arguments.width, heads=arguments.heads, hidden=4 * arguments.width,
        encoder_layers=arguments.layers, decoder_layers=arguments.layers, max_length=arguments.max_length,
        dropout_rate=arguments.dropout, norm_first=not arguments.post_norm, final_norm=not arguments.post_norm)
    training = training_config(arguments)
    model = Transformer.init(np.random.default_rng(arguments.seed), config)
    return Translator(model, config, source, target), Progress(model, Adam(0.0).init(model)), training


def training_config(arguments: argparse.Namespace) -> TrainingConfig:
    return TrainingConfig(steps=arguments.steps, batch_size=arguments.batch_size, warmup_steps=arguments.warmup_steps,
                          cooldown_steps=arguments.steps // 3, seed=arguments.seed)


def check_agreement(path: Path, arguments: argparse.Namespace, saved: dict) -> None:
    """Refuse settings, given in so many words, that contradict those of the run that is resumed."""
    for name, value in saved.items():
        asked = getattr(arguments, name)
        if name in arguments.explicit and asked != value:
            raise ValueError(f"{path} is a run of another configuration: --{name.replace('_', '-')} is {value}, not {asked}")


def resume(path: Path, data: Data, arguments: argparse.Namespace) -> tuple[Translator, Progress, TrainingConfig]:
    """Go on from a saved run, with its own settings; refuse what contradicts them."""
    translator, optimiser, notes = Translator.load(path)
    if optimiser is None or "training" not in notes:
        raise ValueError(f"{path} holds a model but no training to resume")
    config = TrainingConfig(**notes["training"])
    if notes["data"] != data.fingerprint:
        raise ValueError(f"{path} was trained on other sentences: give the --data and --seed that it began with")
    check_agreement(path, arguments, {
        "width": translator.config.width, "heads": translator.config.heads, "dropout": translator.config.dropout_rate,
        "layers": translator.config.encoder_layers, "max_length": translator.config.max_length,
        "post_norm": not translator.config.norm_first, "batch_size": config.batch_size,
        "warmup_steps": config.warmup_steps, "seed": config.seed, "steps": config.steps})
    print(f"resuming {path} at step {optimiser.step} of {config.steps}")
    return translator, Progress(translator.model, optimiser), config


def run(translator: Translator, progress: Progress, config: TrainingConfig, data: Data,
        arguments: argparse.Namespace) -> Translator:
    """Train the translator's model and return a translator with the last one."""
    notes = {"training": asdict(config), "data": data.fingerprint}
    examples = [translator.example(*pair) for pair in data.training]
    held_out = [translator.example(*pair) for pair in next(iter(data.tests.values()))][:500]

    def save(progress: Progress) -> None:
        replace(translator, model=progress.model).save(arguments.output, optimiser=progress.optimiser, notes=notes)

    steps = training_steps(progress, examples, config, arguments.workers)
    progress = take_steps(steps, progress, config.steps, arguments, save, lambda model: mean_loss(model, held_out))
    return replace(translator, model=progress.model)


def take_steps(steps: Iterator[Progress], progress: Progress, last: int, arguments: argparse.Namespace,
               save: Callable[[Progress], None], validate: Callable) -> Progress:
    """Take the steps, show the progress, save now and then; after Ctrl-C save and raise KeyboardInterrupt."""
    keep_freed_memory()
    line = ProgressLine(progress.step, last, seconds=arguments.minutes and 60 * arguments.minutes)
    begun = saved = time.monotonic()
    first = progress.step
    with open_log(arguments) as log, InterruptLater() as interrupt:
        for progress in steps:
            line.update(progress.step, progress.loss, progress.tokens)
            if log:
                print(progress.step, repr(progress.loss), sep="\t", file=log, flush=True)
            if progress.step % arguments.validate_every == 0:
                line.note(f"held-out loss {validate(progress.model):.4f} at step {progress.step}")
            now = time.monotonic()
            if now - saved > arguments.save_every:
                save(progress)
                saved = now
            if interrupt.asked or (arguments.minutes and now - begun > 60 * arguments.minutes):
                break
    line.close()
    save(progress)
    if interrupt.asked:
        raise KeyboardInterrupt(f"stopped after step {progress.step}, which is kept in {arguments.output}; "
                                "the same command with --resume goes on from there")
    taken = progress.step - first
    print(f"{taken} steps in {time.monotonic() - begun:.1f} s; the last step's loss was {progress.loss!r}" if taken
          else f"all {last} steps had been taken already")
    return progress


def open_log(arguments: argparse.Namespace):
    if arguments.log is None:
        return nullcontext()
    return open(arguments.log, "a" if arguments.resume else "w", encoding="utf-8")


class InterruptLater:
    """Let Ctrl-C end the training between two steps, never in the middle of one. A second Ctrl-C ends it at once."""

    def __enter__(self):
        self.asked = False
        self.former = signal.signal(signal.SIGINT, self.ask)
        return self

    def ask(self, *_) -> None:
        self.asked = True
        signal.signal(signal.SIGINT, self.former)

    def __exit__(self, *_) -> None:
        signal.signal(signal.SIGINT, self.former)


def report(translator: Translator, data: Data) -> None:
    """Translate what was held out, and show some of it."""
    for name, pairs in data.tests.items():
        expected: dict[str, list[str]] = {}
        for source, target in pairs:
            expected.setdefault(source, []).append(target)
        result = score(translator.translate(list(expected)), expected.values())
        print(f"{name + ':':<20} {result.exact:>4} of {result.sentences} exactly right = {result.exact_match:.1%}, "
              f"token error rate {result.token_error_rate:.2%}")
    print()
    for source, target in zip(data.showcase, translator.translate(data.showcase)):
        print(f"  {source}\n    {target}")


def check_writable(path: Path) -> None:
    """Find out before hours of training, not after, that the model cannot be written."""
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a directory: --output names a file")
    probe = path.parent / f".{path.name}.probe"
    with open(probe, "wb"):
        pass
    probe.unlink()
