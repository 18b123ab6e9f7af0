"""The progress line: what a person who waits wants to know, and no more."""

import sys
import time
from typing import TextIO

EVERY = {True: 0.2, False: 5.0}  # seconds between two lines, on a terminal and elsewhere


class ProgressLine:
    """Show step, loss, speed and time left: one line rewritten on a terminal, plain lines elsewhere.

    The speed is the mean since the line before, the loss a running mean over about 20 steps. The
    time left goes by steps, or by `seconds` if that ends the run sooner.
    """

    def __init__(self, first_step: int, steps: int, *, seconds: float | None = None, stream: TextIO | None = None):
        self.stream = stream or sys.stderr
        self.live = self.stream.isatty()
        self.first_step, self.steps, self.seconds = first_step, steps, seconds
        self.start = self.shown = time.perf_counter()
        self.tokens = 0
        self.loss: float | None = None

    def update(self, step: int, loss: float, tokens: int) -> None:
        """Count one step, and show the line if it is time for it or the last step."""
        self.loss = loss if self.loss is None else 0.95 * self.loss + 0.05 * loss
        self.tokens += tokens
        now = time.perf_counter()
        if now - self.shown < EVERY[self.live] and step < self.steps:
            return
        elapsed = now - self.start
        left = elapsed / max(step - self.first_step, 1) * (self.steps - step)
        if self.seconds is not None:
            left = max(min(left, self.seconds - elapsed), 0)
        minutes, seconds = divmod(round(left), 60)
        line = (f"step {step:>{len(str(self.steps))}}/{self.steps}  loss {self.loss:.4f}  "
                f"{self.tokens / max(now - self.shown, 1e-9):,.0f} tokens/s  {minutes}:{seconds:02} left")
        self.write(line)
        self.shown, self.tokens = now, 0

    def write(self, line: str) -> None:
        """Put a line in place of the last one, or below it."""
        self.stream.write(f"\r{line:<72}" if self.live else f"{line}\n")
        self.stream.flush()

    def note(self, text: str) -> None:
        """Leave a line of its own above the progress line."""
        self.write(text)
        self.close()

    def close(self) -> None:
        """Leave the last line standing."""
        if self.live:
            self.stream.write("\n")
            self.stream.flush()
