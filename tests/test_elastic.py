"""A run of several processes that loses some, and goes on with fewer on other meshes."""

import os
import pathlib

import lose_and_resume
import pytest


@pytest.mark.slow
@pytest.mark.skipif(
  not os.environ.get('VIT_JAX_NIGHTLY'), reason='eight processes, three minutes of CPU: set VIT_JAX_NIGHTLY'
)
def test_four_processes_then_two_then_one(tmp_path: pathlib.Path):
  print(lose_and_resume.check(tmp_path, steps=60, width=16, depth=2, silence=20))
