"""The learning rate: up in a straight line, down with the root of the step, and to rest in a straight line at the end."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import loops
from numpy_transformer.training.schedule import cooldown, warmup_schedule

counts = st.integers(1, 10**6)


@pytest.mark.parametrize("step, rate", [
    (1, 1.746928107421711e-7), (2, 2 * 1.746928107421711e-7), (4000, 6.987712429686843e-4),
    (16000, 6.987712429686843e-4 / 2), (36000, 6.987712429686843e-4 / 3)])
def test_the_papers_base_model(step, rate):
    assert warmup_schedule(step, 512, 4000) == pytest.approx(rate, rel=1e-14)


@given(counts, counts, counts)
def test_it_agrees_with_scalar_loops(step, width, warmup_steps):
    rate = warmup_schedule(step, width, warmup_steps)
    assert type(rate) is float
    assert rate == pytest.approx(loops.warmup_schedule(step, width, warmup_steps), rel=1e-14)


@given(counts, st.integers(2, 10**6), counts)
def test_it_rises_to_the_end_of_the_warm_up_and_falls_from_there(step, warmup_steps, width):
    peak = warmup_schedule(warmup_steps, width, warmup_steps)
    assert peak == pytest.approx(1 / math.sqrt(width * warmup_steps), rel=1e-14)
    before = min(step, warmup_steps - 1)
    rising = [warmup_schedule(s, width, warmup_steps) for s in (before, before + 1)]
    falling = [warmup_schedule(warmup_steps + s, width, warmup_steps) for s in (step - 1, step)]
    assert rising[0] < rising[1] <= peak * (1 + 1e-14)
    assert peak * (1 + 1e-14) >= falling[0] > falling[1]


def test_numpy_integers_are_whole_numbers():
    assert warmup_schedule(np.int32(7), np.int64(512), np.uint16(40)) == warmup_schedule(7, 512, 40)


@pytest.mark.parametrize("value", [0, -1, 1.0, 1.5, "1", None, True, math.nan], ids=repr)
@pytest.mark.parametrize("name", ["step", "width", "warmup_steps"])
def test_what_is_no_whole_number_of_at_least_one_is_named(name, value):
    arguments = dict(step=3, width=512, warmup_steps=4000)
    with pytest.raises(ValueError, match=rf"^{name} must be a whole number of at least 1, not {value!r}$"):
        warmup_schedule(**arguments | {name: value})
    assert warmup_schedule(**arguments | {name: 1}) > 0


# ── Cooling down ─────────────────────────────────────────────────────────────────────────────────

@pytest.mark.parametrize("steps, cooldown_steps, factors", [
    (5, 0, [1, 1, 1, 1, 1]), (5, 1, [1, 1, 1, 1, 1]), (5, 2, [1, 1, 1, 1, 1 / 2]), (5, 4, [1, 1, 3 / 4, 2 / 4, 1 / 4]),
    (3, 4, [3 / 4, 2 / 4, 1 / 4]), (1, 1, [1]), (1, 8, [1 / 8])])
def test_over_the_last_steps_the_factor_falls_in_a_straight_line(steps, cooldown_steps, factors):
    found = [cooldown(step, steps, cooldown_steps) for step in range(1, steps + 1)]
    assert found == factors and {type(factor) for factor in found} == {float}


@pytest.mark.parametrize("step", [6, 7, 100])
def test_behind_the_end_of_a_cooldown_nothing_is_left(step):
    assert cooldown(step, 5, 3) == 0
    assert cooldown(step, 5, 0) == 1


@pytest.mark.parametrize("name, least", [("step", 1), ("steps", 1), ("cooldown_steps", 0)])
@pytest.mark.parametrize("value", [-1, 1.0, "1", None, True, math.nan], ids=repr)
def test_what_is_no_count_of_steps_is_named(name, least, value):
    arguments = dict(step=3, steps=9, cooldown_steps=4)
    with pytest.raises(ValueError, match=rf"^{name} must be a whole number of at least {least}, not {value!r}$"):
        cooldown(**arguments | {name: value})
    with pytest.raises(ValueError, match=rf"^{name} must be a whole number of at least {least}, not {least - 1}$"):
        cooldown(**arguments | {name: least - 1})
    assert 0 <= cooldown(**arguments | {name: least}) <= 1
