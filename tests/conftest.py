"""Settings that every test shares.

Hypothesis runs under one of two profiles: `default` is short and the same on every run; `thorough`
(`make test-slow`, or `--hypothesis-profile=thorough`) is long and looks at new examples each time.
"""

from hypothesis import settings

settings.register_profile("default", max_examples=50, deadline=None, derandomize=True)
settings.register_profile("thorough", max_examples=2_000, deadline=None, derandomize=False)
settings.load_profile("default")
