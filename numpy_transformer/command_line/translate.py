"""`translate`: sentences in, translations out."""

import argparse
import sys
from pathlib import Path

from ..translation.heat_map import cross_attention_map
from ..translation.translator import Translator


def translate(arguments: argparse.Namespace) -> int:
    """Translate the sentences given, or each line of standard input. Returns the exit status."""
    if not Path(arguments.model).exists():
        command = "python -m numpy_transformer train"
        if arguments.model != "model.npz":
            command += f" --output {arguments.model}"
        raise FileNotFoundError(f"there is no model in {arguments.model} yet: run '{command}' first (about a minute)")
    translator, _, _ = Translator.load(arguments.model)
    sentences = arguments.sentences or [line.strip() for line in sys.stdin if line.strip()]
    if not sentences:
        raise ValueError("there is nothing to translate")
    for sentence in sentences:
        translator.ids(sentence)  # refuse an empty or too long sentence before anything is printed
        for word in translator.unknown(sentence):
            print(f"unknown word, read as <unk>: {word}", file=sys.stderr)
    for sentence, translation in zip(sentences, translator.translate(
            sentences, beam=arguments.beam, workers=arguments.workers)):
        print(translation)
        if arguments.attention:
            print(cross_attention_map(translator, sentence, translation))
    return 0
