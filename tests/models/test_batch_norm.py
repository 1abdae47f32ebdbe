"""Batch normalisation against PyTorch's, and on a mesh."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from vit_jax.models.batch_norm import BatchNorm

CHANNELS = 6


def batches(count=3, dtype=np.float32):
  rng = np.random.default_rng(0)
  offset = rng.normal(0, 2, CHANNELS)
  return [rng.normal(offset, 1.5, (8, 5, 4, CHANNELS)).astype(dtype) for _ in range(count)]


def variables():
  rng = np.random.default_rng(1)
  random = {
    name: rng.uniform(0.5, 1.5, CHANNELS).astype(np.float32) for name in ('scale', 'bias', 'mean', 'var')
  }
  return {name: jnp.asarray(value) for name, value in random.items()}


def graph(momentum=0.9, epsilon=1e-3):
  return nnx.split(BatchNorm(CHANNELS, momentum=momentum, epsilon=epsilon))[0]


def train(graphdef, variables, x):
  """(the output, the variables after a training step)."""
  norm = nnx.merge(graphdef, variables)
  return norm(x, train=True), nnx.to_pure_dict(nnx.state(norm))


@pytest.mark.slow
def test_outputs_gradients_and_three_steps_of_statistics_are_those_of_torch():
  torch = pytest.importorskip('torch', reason="needs the extra 'peers' (pip install -e '.[peers]')")
  graphdef, ours = graph(momentum=0.9), variables()
  theirs = torch.nn.BatchNorm2d(CHANNELS, eps=1e-3, momentum=0.1)
  names = {'scale': 'weight', 'bias': 'bias', 'mean': 'running_mean', 'var': 'running_var'}
  theirs.load_state_dict(
    {name: torch.tensor(np.asarray(ours[key])) for key, name in names.items()}, strict=False
  )
  weights = np.random.default_rng(2).normal(size=(8, 5, 4, CHANNELS)).astype(np.float32)

  def weighted(variables, x):
    y, after = train(graphdef, variables, x)
    return (y * weights).sum(), (y, after)

  step = jax.jit(jax.grad(weighted, argnums=(0, 1), has_aux=True))
  for x in batches():
    (grads, grad_x), (y, ours) = step(ours, x)
    theirs.zero_grad()
    x = torch.tensor(x.transpose(0, 3, 1, 2), requires_grad=True)
    out = theirs.train()(x)
    (out * torch.tensor(weights.transpose(0, 3, 1, 2))).sum().backward()
    np.testing.assert_allclose(y, out.detach().numpy().transpose(0, 2, 3, 1), atol=1e-5)
    np.testing.assert_allclose(grad_x, x.grad.numpy().transpose(0, 2, 3, 1), atol=1e-5)
    np.testing.assert_allclose(grads['scale'], theirs.weight.grad.numpy(), atol=1e-4)
    np.testing.assert_allclose(grads['bias'], theirs.bias.grad.numpy(), atol=1e-4)
    np.testing.assert_allclose(ours['mean'], theirs.running_mean.numpy(), atol=1e-5)
    np.testing.assert_allclose(ours['var'], theirs.running_var.numpy(), atol=1e-5)

  norm, x = nnx.merge(graphdef, ours), batches(4)[3]
  with torch.no_grad():
    expected = theirs.eval()(torch.tensor(x.transpose(0, 3, 1, 2))).numpy().transpose(0, 2, 3, 1)
  np.testing.assert_allclose(norm(jnp.asarray(x), train=False), expected, atol=1e-5)
  for name, value in nnx.to_pure_dict(nnx.state(norm)).items():
    np.testing.assert_array_equal(value, ours[name])  # outside training nothing changes


def test_statistics_are_those_of_the_global_batch_on_a_mesh():
  mesh = Mesh(np.asarray(jax.devices()), ('data',))
  step, x = jax.jit(lambda variables, x: train(graph(), variables, x)), batches(1)[0]
  expected, expected_after = step(variables(), x)
  split = jax.device_put(x, NamedSharding(mesh, PartitionSpec('data')))
  y, after = step(jax.device_put(variables(), NamedSharding(mesh, PartitionSpec())), split)
  np.testing.assert_allclose(y, expected, atol=2e-6)
  for name, value in after.items():
    assert value.sharding.is_fully_replicated
    np.testing.assert_allclose(value, expected_after[name], atol=1e-6)


def test_of_bfloat16_the_statistics_are_float32_and_the_backward_pass_saves_no_float32_copy():
  x = jnp.asarray(batches(1)[0], jnp.bfloat16)
  y, after = train(graph(), variables(), x)
  assert y.dtype == jnp.bfloat16
  exact = np.asarray(x, np.float64).mean(axis=(0, 1, 2))
  np.testing.assert_allclose(after['mean'], 0.9 * variables()['mean'] + 0.1 * exact, atol=1e-6)
  saved = jax.eval_shape(lambda x: jax.vjp(lambda x: train(graph(), variables(), x)[0], x)[1], x)
  assert all(leaf.dtype != jnp.float32 or leaf.size == CHANNELS for leaf in jax.tree.leaves(saved))
