"""What the tests of self-training share."""

import pytest

from vit_jax.prepare import processes, shards


@pytest.fixture
def in_this_process(monkeypatch):
  """Shards are written here, for starting processes takes seconds."""

  def run(jobs, workers, done):
    for job in jobs:
      done(shards.write(job))

  monkeypatch.setattr(processes, 'run', run)
