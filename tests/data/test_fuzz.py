import os
import subprocess
import sys

import pytest
from commands import ROOT
from processes import HUNG


@pytest.mark.slow
def test_damaged_images_are_decoded_or_named_and_nothing_is_on_stderr():
  command = [sys.executable, 'tests/fuzz_decoder.py', '--count=100']
  environment = dict(os.environ, PYTHONPATH=str(ROOT))
  result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=HUNG)
  assert result.returncode == 0, result.stdout + result.stderr
  assert '100 damaged images: 0 of them wrong, 0 with text on stderr.' in result.stdout
