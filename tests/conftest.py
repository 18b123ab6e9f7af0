"""Settings that every test shares: how many examples Hypothesis draws, and from which seed."""

import os

from hypothesis import HealthCheck, Phase, settings

common = dict(deadline=None, suppress_health_check=[HealthCheck.too_slow])
quick = [phase for phase in Phase if phase is not Phase.shrink]  # shrinking a failure can take minutes: `thorough` does it
settings.register_profile("default", max_examples=20, derandomize=True, phases=quick, **common)
settings.register_profile("thorough", max_examples=500, **common)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))
