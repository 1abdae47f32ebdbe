"""Mean average precision against scikit-learn."""

import sys
import warnings

import hypothesis
import jax
import numpy as np
import pytest
from hypothesis import strategies as st
from jax.sharding import NamedSharding, PartitionSpec
from processes import run
from sklearn.metrics import average_precision_score

from vit_jax import config as c
from vit_jax.evaluation.ranking import MeanAveragePrecision, average_precision
from vit_jax.parallel.mesh import make_mesh, replicated

N, K, M = 50, 13, 5


@hypothesis.given(
  seed=st.integers(0, 10**6), size=st.integers(1, 60), levels=st.sampled_from([1, 2, 5, 10**6])
)
@hypothesis.settings(max_examples=60, deadline=None)
def test_average_precision_is_scikit_learns(seed, size, levels):
  """With few levels, many scores are the same."""
  rng = np.random.default_rng(seed)
  scores = rng.integers(0, levels, size).astype(np.float32)
  positives = rng.permutation(size)[: rng.integers(1, size + 1)]
  truth = np.isin(np.arange(size), positives)
  with warnings.catch_warnings():
    warnings.simplefilter('ignore')  # it warns where all examples are positive
    expected = average_precision_score(truth, scores)
  assert average_precision(scores, positives) == pytest.approx(expected, abs=1e-12)


def test_a_score_that_is_nan_makes_the_precision_nan():
  assert np.isnan(average_precision(np.float32([0, np.nan, 1]), np.array([0])))


def examples() -> tuple[np.ndarray, np.ndarray]:
  """Scores (N, K) with ties, and lists (N, M), some empty, some with a class twice; none has class 4."""
  rng = np.random.default_rng(0)
  labels = rng.integers(-1, K, (N, M)).astype(np.int32)
  labels[labels == 4] = -1
  return np.round(rng.normal(size=(N, K)), 1).astype(np.float32), labels


def expected() -> float:
  scores, labels = examples()
  truth = (labels[:, :, None] == np.arange(K)).any(1)
  return np.mean([average_precision_score(truth[:, k], scores[:, k]) for k in range(K) if k != 4])


def collected(mesh: jax.sharding.Mesh, batch_size: int) -> float:
  """The result for batches whose last rows are padding, over all processes' devices."""
  scores, labels = examples()
  classes = -(-K // mesh.size) * mesh.size
  ranking = MeanAveragePrecision()
  for first in range(0, N, batch_size):
    rows = slice(first, first + batch_size)
    mask = np.arange(batch_size) < len(labels[rows])
    part = np.full((batch_size, classes), 9, np.float32)
    part[mask, :K] = scores[rows]
    lists = np.zeros((batch_size, M), np.int32)
    lists[mask] = labels[rows]
    ranking.add(
      on_mesh(part, NamedSharding(mesh, PartitionSpec(None, mesh.axis_names))),
      on_mesh(lists, replicated(mesh)),
      on_mesh(mask, replicated(mesh)),
    )
  return ranking.result()


def on_mesh(array: np.ndarray, sharding: NamedSharding) -> jax.Array:
  """A global array, of which every process has all of the numbers."""
  return jax.make_array_from_callback(array.shape, sharding, array.__getitem__)


@pytest.mark.parametrize(
  ('mesh', 'batch_size'),
  [(c.MeshConfig(), 7), (c.MeshConfig(fsdp=2, tensor=2), 64), (c.MeshConfig(data=1), 50)],
)
def test_the_mean_is_over_the_classes_that_have_examples(mesh, batch_size):
  mesh = make_mesh(mesh, jax.devices()[:1] if mesh.data == 1 else None)
  assert collected(mesh, batch_size) == pytest.approx(expected(), abs=1e-12)


@pytest.mark.nightly
@pytest.mark.slow
def test_two_processes_get_the_same_bits(monkeypatch):
  monkeypatch.setenv('PYTHONPATH', ':'.join(sys.path))
  script = """
    from test_ranking import collected
    from vit_jax import config
    from vit_jax.parallel import distributed
    from vit_jax.parallel.mesh import make_mesh
    distributed.initialize()
    print('result:', collected(make_mesh(config.MeshConfig()), 7))
    """
  alone = collected(make_mesh(c.MeshConfig()), 50)
  assert all(f'result: {alone}\n' in output for output in run(script, 2))
