"""Lets tests import the scripts of benchmarks/."""

import pathlib
import sys

sys.path.append(str(pathlib.Path(__file__).parents[2] / 'benchmarks'))
