"""A run of several processes that loses some, and goes on with fewer on other meshes."""

import pathlib

import lose_and_resume
import pytest


@pytest.mark.nightly
def test_four_processes_then_two_then_one(tmp_path: pathlib.Path):
  print(lose_and_resume.check(tmp_path, steps=60, width=16, depth=2, silence=20))
