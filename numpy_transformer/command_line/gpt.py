"""`train --model gpt` and `generate`: a text in, more of its kind out."""

import argparse
import hashlib
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np

from ..training import checkpoint
from ..training.adam import Adam
from ..training.loop import Progress, TrainingConfig
from ..variations.generation import CharacterVocabulary, generate, gpt_training_steps, text_loss
from ..variations.gpt import GPT, GPTConfig
from .train import check_agreement, check_writable, take_steps, training_config


def train_gpt(arguments: argparse.Namespace) -> int:
    """Train a GPT on the characters of a text, save it, and show what it writes. Returns the exit status."""
    output = Path(arguments.output)
    check_writable(output)
    if arguments.data is None:
        raise ValueError("--model gpt learns from a text: name one with --data FILE.txt")
    try:
        text = Path(arguments.data).read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{arguments.data} is not UTF-8 text: byte {error.start} is 0x{error.object[error.start]:02x}") from None
    if len(text) < 20 * arguments.max_length:
        raise ValueError(f"{arguments.data} holds {len(text)} characters: at least {20 * arguments.max_length} are needed")
    fingerprint = hashlib.sha256(text.encode()).hexdigest()[:16]
    if arguments.resume:
        loaded = checkpoint.load(output, GPT, GPTConfig)
        if loaded.optimiser is None or loaded.notes.get("data") != fingerprint:
            raise ValueError(f"{output} was not trained on this text: give the --data that it began with")
        vocabulary, config = CharacterVocabulary(loaded.notes["characters"]), TrainingConfig(**loaded.notes["training"])
        shape, progress = loaded.config, Progress(loaded.model, loaded.optimiser)
        check_agreement(output, arguments, {
            "width": shape.width, "heads": shape.heads, "layers": shape.layers, "max_length": shape.max_length,
            "dropout": shape.dropout_rate, "batch_size": config.batch_size, "warmup_steps": config.warmup_steps,
            "seed": config.seed, "steps": config.steps})
    else:
        vocabulary = CharacterVocabulary.build(text)
        # Each batch is another cut of the text, so nothing needs smoothing, and a deep narrow stack wants a lower rate.
        config = replace(training_config(arguments), rate_factor=0.3, label_smoothing=0.0)
        shape = GPTConfig(len(vocabulary), arguments.width, arguments.heads, 4 * arguments.width, arguments.layers,
                          arguments.max_length, arguments.dropout)
        model = GPT.init(np.random.default_rng(arguments.seed), shape)
        progress = Progress(model, Adam(0.0).init(model))
    ids = vocabulary.encode(text)
    training, held_out = ids[: -len(ids) // 20], ids[-len(ids) // 20 :]
    print(f"{len(training):,} characters to train on, {len(held_out):,} held out; {len(vocabulary)} different ones")
    notes = {"characters": vocabulary.characters, "training": asdict(config), "data": fingerprint}
    progress = take_steps(
        gpt_training_steps(progress, training, config), progress, config.steps, arguments,
        lambda p: checkpoint.save(output, p.model, shape, optimiser=p.optimiser, notes=notes),
        lambda gpt: text_loss(gpt, held_out[:2000]))
    print(f"loss per held-out character: {text_loss(progress.model, held_out):.4f}\n")
    written = generate(progress.model, training[None, :1], count=400, temperature=0.8, rng=np.random.default_rng(0))
    print(vocabulary.decode(written[0]))
    print(f"\nThe model is in {output}. Let it write with:\n  python -m numpy_transformer generate --model {output} \"def \"")
    return 0


def write(arguments: argparse.Namespace) -> int:
    """Continue a text. Returns the exit status."""
    if not Path(arguments.model).exists():
        raise FileNotFoundError(f"there is no model in {arguments.model} yet: run 'python -m numpy_transformer train "
                                f"--model gpt --data FILE.txt --output {arguments.model}' first")
    loaded = checkpoint.load(arguments.model, GPT, GPTConfig)
    vocabulary = CharacterVocabulary(loaded.notes["characters"])
    if not arguments.prompt:
        raise ValueError("the prompt is empty: there is nothing to go on from")
    prompt = vocabulary.encode(arguments.prompt)
    ids = generate(loaded.model, prompt[None], count=arguments.count, temperature=arguments.temperature,
                   top_k=arguments.top_k, top_p=arguments.top_p, rng=np.random.default_rng(arguments.seed))
    print(arguments.prompt + vocabulary.decode(ids[0]))
    return 0
