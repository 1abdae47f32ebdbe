"""What the contenders' programs share: the recipe, the batch, the mesh, and stubs of what only reads data."""

import contextlib
import dataclasses
import sys
from typing import Any
from unittest import mock

BATCH, PIXELS = 4096, 224
STUBS = (
  *('tensorflow', 'tensorflow.io', 'tensorflow.io.gfile', 'tensorflow_datasets', 'tensorflow_text'),
  *('tensorflow_probability', 'clu', 'clu.metric_writers', 'clu.periodic_actions', 'pandas'),
)


@dataclasses.dataclass(frozen=True)
class Recipe:
  """What all contenders train: `config` is the name in our configs, `pre_logits` the tanh layer before the head."""

  config: str
  classes: int
  images: int
  dropout: float
  pre_logits: bool


RECIPES = {
  'jft': Recipe('jft', 18_291, 303_000_000, 0.0, False),
  'imagenet21k': Recipe('imagenet21k', 21_843, 14_095_000, 0.1, True),
}


def make_mesh(devices, axis: str):
  """All devices along one axis, in the order that their torus suggests."""
  from jax.experimental import mesh_utils
  from jax.sharding import Mesh

  return Mesh(mesh_utils.create_device_mesh((len(devices),), devices=list(devices)), (axis,))


def placed(tree, sharding):
  """The shapes of a tree with a sharding."""
  import jax

  place = lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)
  return jax.tree.map(place, tree)


def adam():
  """The recipe's optimizer, for peers that bring another or none: Adam with bfloat16 first moments, clipping, decay."""
  import optax

  return optax.chain(
    optax.clip_by_global_norm(1.0),
    optax.scale_by_adam(mu_dtype='bfloat16'),
    optax.add_decayed_weights(1e-4),
    optax.scale_by_learning_rate(optax.warmup_cosine_decay_schedule(0.0, 1e-3, 10_000, 500_000)),
  )


def batch_shapes(classes: int, labels: str) -> dict[str, Any]:
  """A batch as the peers' pipelines make it."""
  import jax
  import jax.numpy as jnp

  images = jax.ShapeDtypeStruct((BATCH, PIXELS, PIXELS, 3), jnp.float32)
  return {'image': images, labels: jax.ShapeDtypeStruct((BATCH, classes), jnp.float32)}


def stub() -> None:
  """Puts stubs in place of what only reads data, logs and restores; Flax looks for TensorFlow before."""
  with contextlib.suppress(ImportError):
    import flax.training.checkpoints  # noqa: F401
  for name in STUBS:
    sys.modules.setdefault(name, mock.MagicMock())
