"""Settings that every test shares: how many examples Hypothesis draws, and from which seed."""

import os

from hypothesis import HealthCheck, settings

common = dict(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("default", max_examples=20, derandomize=True, **common)
settings.register_profile("thorough", max_examples=500, **common)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))
