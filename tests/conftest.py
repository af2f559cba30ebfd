"""Settings that every test shares.

Hypothesis runs under one of two profiles: `default` is short and the same on every run; `thorough`
(`make test-slow`, or `--hypothesis-profile=thorough`) is long and looks at new examples each time.
"""

import os
import sys
from pathlib import Path

from hypothesis import settings

# tests start the installed commands by name, whether or not the environment is activated
os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])

settings.register_profile("default", max_examples=50, deadline=None, derandomize=True)
settings.register_profile("thorough", max_examples=2_000, deadline=None, derandomize=False)
settings.load_profile("default")
