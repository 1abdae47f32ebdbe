"""Fixtures of the sources' tests."""

import fake_vtab
import pytest

from vit_jax.data.sources import vtab


@pytest.fixture(scope='module')
def prepared(tmp_path_factory):
  """A data directory with all 16 data sets of VTAB, found by name."""
  folder = tmp_path_factory.mktemp('vtab')
  for dataset in sorted({task.dataset for task in vtab.TASKS.values()}):
    fake_vtab.prepare(dataset, folder)
  with pytest.MonkeyPatch.context() as patch:
    patch.setenv('TFDS_DATA_DIR', str(folder))
    yield folder
