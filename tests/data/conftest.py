"""Fixtures of the data path's tests."""

import jax
import numpy as np
import pytest
from fake_data import Lists, Shades, SoftLists


@pytest.fixture(scope='session')
def shades_dir(tmp_path_factory):
  """A data directory with the prepared data sets `shades`, `lists` and `soft_lists`."""
  folder = tmp_path_factory.mktemp('tfds')
  for builder in (Shades, Lists, SoftLists):
    builder(data_dir=str(folder), file_format='array_record').download_and_prepare()
  return folder


@pytest.fixture
def split_over():
  """split_over(parts, copies): shards the first axis over so many devices, each part on `copies` of them."""

  def sharding(parts: int, copies: int = 1) -> jax.sharding.NamedSharding:
    devices = np.array(jax.devices()[: parts * copies]).reshape(copies, parts)
    mesh = jax.sharding.Mesh(devices, ('replica', 'data'))
    return jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec('data'))

  return sharding
