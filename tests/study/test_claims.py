"""What the paper claims of positions, locality and pre-training, on handwritten digits: orders that must not be lost.

A bound is half of the gain that three seeds showed (docs/findings.md), several times its deviation. The
relative positions gained 2.6 to 4.4 points, no more than their deviation: they only must not fall behind.
"""

import json
import statistics
import subprocess
import sys

import filelock
import fork_server
import pytest

pytestmark = pytest.mark.nightly


@pytest.fixture(scope='module')
def accuracies(tmp_path_factory, worker_id) -> dict[str, float]:
  """Variant of configs/studies/digits.py -> the mean of its seeds; one study for all of pytest-xdist's workers."""
  own = tmp_path_factory.getbasetemp()
  workdir = (own if worker_id == 'master' else own.parent) / 'digits'
  command = [sys.executable, '-m', 'vit_jax.study', 'digits', f'--workdir={workdir}']
  with filelock.FileLock(f'{workdir}.lock'):  # who waited finds that all runs have ended
    subprocess.run(command, check=True, cwd=fork_server.ROOT, timeout=7200)
  variants = json.loads((workdir / 'table.json').read_text())['variants']
  return {name: statistics.fmean(variant['seeds'].values()) for name, variant in variants.items()}


@pytest.mark.parametrize(
  ('better', 'worse', 'gain'),
  [
    ('learned', 'none', 0.09),
    ('learned2d', 'none', 0.06),
    ('sincos2d', 'none', 0.18),
    ('rotary', 'none', 0.20),
    ('relative', 'none', -0.02),
    ('relative_query', 'none', -0.02),
    ('relative_query_1d', 'none', -0.02),
    ('locality', 'learned', 0.18),
    ('few_after_masked', 'few_alone', 0.13),
    ('few_after_supervised', 'few_after_masked', 0.14),
  ],
)
def test_a_measured_gain_is_not_lost(accuracies, better, worse, gain):
  assert accuracies[better] >= accuracies[worse] + gain
