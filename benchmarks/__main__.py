"""Measure how fast the pages run: `python -m benchmarks [PART ...]`, from the repository's root."""

import argparse
import os
import sys
from pathlib import Path

from . import rows
from .threads import cores, environment

PARTS = ("foundations", "attention", "layers", "model", "training", "step", "decode", "pairs", "scaling")


class Parser(argparse.ArgumentParser):
    def error(self, message):
        """Say what is wrong in one line."""
        self.exit(2, f"{self.prog}: {message}\n")


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Read and check the command line, with everything that can be known to be wrong before measuring."""
    parser = Parser(
        prog="python -m benchmarks",
        description="Measure how fast the pages run, and how near that is to what this machine can do.",
        epilog=f"parts: {', '.join(PARTS)}; all of them by default.")
    parser.add_argument("parts", nargs="*", metavar="PART", help="what to measure")
    parser.add_argument("--quick", action="store_true", help="small sizes and few repeats: a look, not a measurement")
    parser.add_argument("--threads", type=int, default=cores(), metavar="N",
                        help="threads of BLAS (default: every core, here %(default)s)")
    parser.add_argument("--dtype", default="float32", choices=("float32", "float64"), help="default: %(default)s")
    parser.add_argument("--torch", action="store_true",
                        help="add columns for the same operations in PyTorch, if it is installed")
    parser.add_argument("--json", metavar="FILE", help="write everything that was measured to FILE")
    parser.add_argument("--compare", metavar="FILE", help="say what changed since the run that wrote FILE")
    parser.add_argument("--svg", metavar="FILE", help="draw the roofline and the scaling curves")
    options = parser.parse_args(arguments)
    for part in options.parts:
        if part not in PARTS:
            parser.error(f"unknown part {part!r}; there are {', '.join(PARTS)}")
    options.parts = [part for part in PARTS if part in options.parts or not options.parts]
    if options.threads < 1:
        parser.error(f"--threads must be at least 1, not {options.threads}")
    for name in ("json", "svg"):
        path = getattr(options, name)
        if path and (Path(path).is_dir() or not os.access(Path(path).parent, os.W_OK)):
            parser.error(f"--{name}: cannot write {path}")
    if options.compare:
        try:
            options.former = rows.load(options.compare)
        except ValueError as error:
            parser.error(f"--compare: {error}")
    return options


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    os.environ.update(environment(options.threads))  # BLAS reads them once, while NumPy is imported: so only now
    from .run import run
    try:
        return run(options)
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
