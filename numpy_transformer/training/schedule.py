"""The learning rate over time: start gently, then ever more carefully."""

from ..foundations.checks import check_count


def warmup_schedule(step: int, width: int, warmup_steps: int) -> float:
    """The paper's learning rate (Vaswani et al. 2017, equation 3).

        η = D^(−1/2) · min(s^(−1/2), s · w^(−3/2))

    It rises in a straight line for w steps, while Adam's moments are still poor estimates, to
    1 / √(D w), and then falls with the root of the step. Steps count from 1. Raises ValueError for a
    step, width or warm-up below 1.

    >>> [round(1e4 * warmup_schedule(s, 512, 4000), 3) for s in (1, 2, 4000, 16000)]
    [0.002, 0.003, 6.988, 3.494]
    """
    check_count("step", step)
    check_count("width", width)
    check_count("warmup_steps", warmup_steps)
    return width**-0.5 * min(step**-0.5, step * warmup_steps**-1.5)


def cooldown(step: int, steps: int, cooldown_steps: int) -> float:
    """A factor for the learning rate: 1, until over the last `cooldown_steps` of all `steps` it falls in a straight line.

        min(1, (steps − s + 1) / cooldown_steps)

    At a high rate the parameters never come to rest, and how good the last model is depends on the
    last few batches. Differs from the paper, which takes the mean of the last checkpoints (section
    6.1) to the same end. With `cooldown_steps` 0 the factor is always 1.

    >>> [cooldown(s, steps=10, cooldown_steps=4) for s in (1, 7, 8, 10)]
    [1.0, 1.0, 0.75, 0.25]
    """
    check_count("step", step)
    check_count("steps", steps)
    check_count("cooldown_steps", cooldown_steps, 0)
    return min(1.0, max(steps - step + 1, 0) / cooldown_steps) if cooldown_steps else 1.0
