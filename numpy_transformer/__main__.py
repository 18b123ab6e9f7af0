"""The command line: train, translate, generate, gradcheck."""

import argparse
import os
import sys

from .foundations.checks import check_number
from .training.loop import TrainingConfig

DESCRIPTION = """\
The Transformer in pure NumPy, as a book that runs.

  train      learn to translate, from the book's own little corpus or from a file of yours
  translate  translate sentences with the trained model
  generate   let a GPT that was trained on a text go on writing
  gradcheck  hold every hand-derived gradient against finite differences
"""


def positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise ValueError
    return value


def amount(text: str) -> float:
    value = float(text)
    check_number("value", value, above=True)
    return value


positive.__name__, amount.__name__ = "whole number of at least 1", "number above 0"  # argparse's words for a bad value


def rate(text: str) -> float:
    value = float(text)
    check_number("rate", value, 0, 1)
    return value


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="numpy-transformer", description=DESCRIPTION,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    default = TrainingConfig()

    train = commands.add_parser("train", help="train a translator", description=(
        "Train a Transformer from nothing and write it to a file. Without --data it learns English to Chinese from a "
        "small corpus that the book generates itself, in about a minute; no file or network is needed. At the end it "
        "translates sentences that it has never seen."))
    add = train.add_argument
    add("--model", choices=["translator", "gpt"], default="translator",
        help="what to train: a translator, or with --data FILE.txt a GPT on the characters of a text (default: %(default)s)")
    add("--data", metavar="FILE", help="learn from this file instead: source, TAB, target on each line, UTF-8 "
                                           "(further columns are ignored), as the files of Tatoeba have it")
    add("--output", metavar="FILE", help="where to write the model (default: model.npz, or gpt.npz for a GPT)")
    add("--resume", action="store_true", help="go on with the run in --output, as if it had not been interrupted")
    add("--steps", type=positive, default=default.steps, metavar="N",
        help="training steps, each on one batch (default: %(default)s)")
    add("--minutes", type=amount, metavar="M", help="stop after M minutes even if steps are left")
    add("--batch-size", type=positive, default=default.batch_size, metavar="B",
        help="sentences in a batch (default: %(default)s)")
    add("--warmup-steps", type=positive, default=default.warmup_steps, metavar="W",
        help="steps over which the learning rate rises, before it falls (default: %(default)s)")
    add("--width", type=positive, default=64, metavar="D", help="width of the model (default: %(default)s)")
    add("--heads", type=positive, default=4, metavar="H", help="attention heads; must divide the width (default: %(default)s)")
    add("--layers", type=positive, default=2, metavar="L", help="layers of encoder and of decoder (default: %(default)s)")
    add("--dropout", type=rate, default=0.1, metavar="P",
        help="part of the activations to silence while training (default: %(default)s)")
    add("--post-norm", action="store_true", help="put each norm after its sublayer, as the paper does, not before")
    add("--max-length", type=positive, default=64, metavar="T",
        help="longest sentence in tokens, its end mark included; longer pairs are dropped (default: %(default)s)")
    add("--minimum-count", type=positive, default=1, metavar="N",
        help="words that occur less often become <unk> (default: %(default)s)")
    add("--held-out", type=positive, default=500, metavar="N", help="sentences of --data to keep for testing (default: %(default)s)")
    add("--workers", type=positive, default=2, metavar="N",
        help="processes that share each batch of a translator; another number gives another run, by rounding and dropout "
             "(default: %(default)s)")
    add("--seed", type=int, default=default.seed, metavar="N", help="decides all that is random (default: %(default)s)")
    add("--save-every", type=amount, default=10, metavar="SECONDS", help="how often to save on the way (default: %(default)s)")
    add("--validate-every", type=positive, default=200, metavar="N",
        help="steps between two looks at the held-out loss (default: %(default)s)")
    add("--log", metavar="FILE", help="write every step and its loss to this file, separated by a TAB")

    translate = commands.add_parser("translate", help="translate sentences", description=(
        "Translate sentences with a model that 'train' has written. Without a sentence, each line of standard input is one."))
    translate.add_argument("sentences", nargs="*", metavar="SENTENCE", help='for example "apple is delicious"')
    translate.add_argument("--model", metavar="FILE", default="model.npz", help="the model (default: %(default)s)")
    translate.add_argument("--beam", type=positive, default=1, metavar="N",
                           help="translations to keep under way; 1 is greedy (default: %(default)s)")
    translate.add_argument("--workers", type=positive, default=1, metavar="N",
                           help="processes that share the sentences, if they are thousands (default: %(default)s)")
    translate.add_argument("--attention", action="store_true", help="also draw which source words each written word looked at")

    generate = commands.add_parser("generate", help="go on with a text", description=(
        "Let a GPT, trained with 'train --model gpt', go on with a text, one character at a time."))
    generate.add_argument("prompt", metavar="TEXT", help="the beginning; only characters that occurred in training")
    generate.add_argument("--model", metavar="FILE", default="gpt.npz", help="the model (default: %(default)s)")
    generate.add_argument("--count", type=positive, default=300, metavar="N", help="characters to write (default: %(default)s)")
    generate.add_argument("--temperature", type=float, default=0.8, metavar="T",
                          help="1 draws by the model's own weights, towards 0 the likeliest wins (default: %(default)s)")
    generate.add_argument("--top-k", type=positive, metavar="K", help="draw among the K likeliest only")
    generate.add_argument("--top-p", type=rate, default=1.0, metavar="P",
                          help="draw among the likeliest that weigh P together (default: %(default)s)")
    generate.add_argument("--seed", type=int, default=0, metavar="N", help="decides what is drawn (default: %(default)s)")

    gradcheck = commands.add_parser("gradcheck", help="check every gradient", description=(
        "Compare every hand-derived gradient with finite differences and print a table. The exit status is 0 if all "
        "agree and 1 if one does not."))
    gradcheck.add_argument("components", nargs="*", metavar="COMPONENT",
                           help="only those whose name holds this text, such as softmax or 'encoder, pre-norm'")
    gradcheck.add_argument("--seed", type=int, default=0, metavar="N", help="draws other values (default: %(default)s)")
    return parser


def run(argv: list[str]) -> int:
    parser = build_parser()
    arguments = parser.parse_args(argv)
    if getattr(arguments, "seed", 0) < 0:
        parser.error(f"argument --seed: must not be negative, but is {arguments.seed}")
    if arguments.command == "train":
        from .command_line.gpt import train_gpt
        from .command_line.train import train

        arguments.output = arguments.output or ("gpt.npz" if arguments.model == "gpt" else "model.npz")
        # What was asked for in so many words must agree with a run that is resumed; a default need not.
        arguments.explicit = {word[2:].split("=")[0].replace("-", "_") for word in argv if word.startswith("--")}
        return train_gpt(arguments) if arguments.model == "gpt" else train(arguments)
    if arguments.command == "generate":
        from .command_line.gpt import write

        return write(arguments)
    if arguments.command == "translate":
        from .command_line.translate import translate

        return translate(arguments)
    from .command_line.gradcheck import run as gradcheck

    return gradcheck(arguments.components, arguments.seed)


def main(argv: list[str] | None = None) -> int:
    """Run a command; report what went wrong in one line, with exit status 2, or 130 after Ctrl-C."""
    try:
        return run(sys.argv[1:] if argv is None else argv)
    except KeyboardInterrupt as interrupt:
        print(f"numpy-transformer: {interrupt or 'interrupted'}", file=sys.stderr)
        return 130
    except BrokenPipeError:  # whoever read the output has stopped reading, as in `… | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        what = f"{error.filename}: {error.strerror}" if error.strerror and error.filename else error
        print(f"numpy-transformer: error: {what}", file=sys.stderr)
        return 2
    except ValueError as error:
        print(f"numpy-transformer: error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
