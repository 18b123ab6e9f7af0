"""The progress line: one line rewritten on a terminal, plain lines in a pipe, and the right numbers in both."""

from io import StringIO
from types import SimpleNamespace

import pytest

from numpy_transformer.training import progress_line
from numpy_transformer.training.progress_line import ProgressLine


class Stream(StringIO):
    """A pipe or a terminal; `shown` is what its reader has seen, which is what was flushed"""

    def __init__(self, terminal=False):
        super().__init__()
        self.terminal, self.shown = terminal, ""

    def isatty(self):
        return self.terminal

    def flush(self):
        self.shown = self.getvalue()


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands still until it is set"""
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(progress_line, "time", SimpleNamespace(perf_counter=lambda: clock.now))
    return clock


def test_a_pipe_gets_plain_lines(clock):
    stream = Stream()
    line = ProgressLine(0, 100, stream=stream)
    clock.now += 1
    line.update(1, 2.0, 50)
    assert stream.shown == ""
    clock.now += 4
    line.update(2, 1.0, 70)
    assert stream.shown == "step   2/100  loss 1.9500  24 tokens/s  4:05 left\n"  # 120 tokens in 5 s, 98 steps of 2.5 s
    clock.now += 5
    line.update(4, 1.0, 12345)
    assert stream.shown.splitlines()[1:] == ["step   4/100  loss 1.9025  2,469 tokens/s  4:00 left"]
    line.close()
    assert stream.getvalue() == stream.shown
    assert stream.shown.count("\n") == 2 and "\r" not in stream.shown


def test_a_terminal_gets_one_line_again_and_again(clock):
    stream = Stream(terminal=True)
    line = ProgressLine(0, 9, stream=stream)
    line.write("a line that is longer than those that follow: " + 20 * "!")
    for step in range(1, 10):
        clock.now += 0.25
        line.update(step, 1.0, 10)
    assert "\n" not in stream.shown
    start, *writings = stream.shown.split("\r")
    assert start == "" and len(writings) == 10
    assert {len(text) for text in writings} == {72}  # each covers the one before, and fits 80 columns
    assert writings[1].rstrip() == "step 1/9  loss 1.0000  40 tokens/s  0:02 left"
    assert writings[-1].rstrip() == "step 9/9  loss 1.0000  40 tokens/s  0:00 left"
    line.close()
    assert stream.shown.endswith("left" + 27 * " " + "\n") and stream.shown.count("\n") == 1


@pytest.mark.parametrize("terminal, interval", [(True, 0.2), (False, 5.0)])
def test_a_line_waits_until_it_is_time_for_it(clock, terminal, interval):
    clock.now, stream = 0.0, Stream(terminal)
    line = ProgressLine(0, 10, stream=stream)
    clock.now = 0.99 * interval
    line.update(1, 1.0, 1)
    assert stream.shown == ""
    clock.now = interval
    line.update(2, 1.0, 1)
    assert "step  2/10" in stream.shown
    clock.now = 1.99 * interval  # counted from the line before, not from the start
    line.update(3, 1.0, 1)
    assert "step  3/10" not in stream.shown


@pytest.mark.parametrize("terminal", [True, False])
def test_the_last_step_is_shown_at_once_even_if_no_time_has_passed(clock, terminal):
    stream = Stream(terminal)
    line = ProgressLine(0, 1, stream=stream)
    line.update(1, 0.5, 7)
    assert "step 1/1  loss 0.5000" in stream.shown and "0:00 left" in stream.shown


def test_a_step_is_shown_even_if_it_is_the_one_the_run_began_with(clock):
    stream = Stream()
    line = ProgressLine(3, 5, stream=stream)
    clock.now += 6
    line.update(3, 0.5, 6)
    assert stream.shown == "step 3/5  loss 0.5000  1 tokens/s  0:12 left\n"


def test_a_resumed_run_goes_by_the_steps_taken_since(clock):
    stream = Stream()
    line = ProgressLine(1000, 1100, stream=stream)
    clock.now += 10
    line.update(1010, 3.0, 5000)
    assert stream.shown == "step 1010/1100  loss 3.0000  500 tokens/s  1:30 left\n"


def test_the_speed_is_that_since_the_line_before(clock):
    stream = Stream()
    line = ProgressLine(0, 100, stream=stream)
    for step, tokens in ((1, 1000), (2, 50)):
        clock.now += 10
        line.update(step, 1.0, tokens)
    assert [text.split("  ")[-2] for text in stream.shown.splitlines()] == ["100 tokens/s", "5 tokens/s"]


def test_the_loss_is_a_running_mean_that_counts_steps_not_shown(clock):
    stream = Stream()
    line = ProgressLine(0, 100, stream=stream)
    expected = None
    for step in range(1, 60):
        loss = 1 / step
        expected = loss if expected is None else expected + 0.05 * (loss - expected)
        clock.now += 0.1
        line.update(step, loss, 1)
        assert line.loss == pytest.approx(expected, rel=1e-12)
        if step == 50:
            shown = f"step  50/100  loss {expected:.4f}  10 tokens/s  0:05 left\n"
    assert stream.shown == shown


@pytest.mark.parametrize("seconds, left", [(None, "2:30"), (60.0, "0:50"), (1000.0, "2:30"), (10.0, "0:00"), (4.0, "0:00")])
def test_a_limit_in_seconds_ends_the_run_if_it_comes_first(clock, seconds, left):
    stream = Stream()
    line = ProgressLine(0, 16, seconds=seconds, stream=stream)
    clock.now += 10
    line.update(1, 1.0, 10)
    assert stream.shown.endswith(f"  {left} left\n")


@pytest.mark.parametrize("elapsed, left", [
    (59.4, "0:59"), (59.7, "1:00"), (119.9, "2:00"), (61.2, "1:01"), (9.2, "0:09"), (3599.8, "60:00"), (7325, "122:05")])
def test_seconds_are_rounded_before_minutes_are_counted(clock, elapsed, left):
    stream = Stream()
    line = ProgressLine(0, 2, stream=stream)
    clock.now += elapsed
    line.update(1, 1.0, 10)
    assert stream.shown.endswith(f"  {left} left\n")


def test_it_writes_to_standard_error_unless_told_otherwise(clock, capsys):
    line = ProgressLine(0, 1)
    line.update(1, float("nan"), 0)
    line.close()
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "step 1/1  loss nan  0 tokens/s  0:00 left\n"


@pytest.mark.parametrize("terminal, shown", [(True, f"\r{'step 1/3  loss 1.0000  5 tokens/s  0:20 left':<72}\r{'a note':<72}\n"),
                                             (False, "step 1/3  loss 1.0000  5 tokens/s  0:20 left\na note\n")])
def test_a_note_stands_on_a_line_of_its_own(clock, terminal, shown):
    stream = Stream(terminal)
    line = ProgressLine(0, 3, stream=stream)
    clock.now += 10
    line.update(1, 1.0, 50)
    line.note("a note")
    assert stream.shown == shown
