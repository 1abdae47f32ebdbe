"""The models: `build` makes one from a config."""

import jax
from flax import nnx

from vit_jax import config
from vit_jax.models.bit_resnet_tmp import ResNet
from vit_jax.models.mixer import Mixer
from vit_jax.models.variants import resolve
from vit_jax.models.vit import ViT

__all__ = ['build']


def build(
  model: config.Model,
  *,
  image_size: tuple[int, int],
  channels: int,
  num_classes: int,
  rngs: nnx.Rngs,
  activation_sharding: jax.sharding.Sharding | None = None,
) -> ViT | Mixer | ResNet:
  """The network of a config, with initial parameters.

  Args:
    model: its sizes and options.
    image_size: height and width in pixels, multiples of the patch; of a ResNet any.
    channels: of the images.
    num_classes: K.
    rngs: where the initial parameters come from; `nnx.eval_shape` of a build allocates nothing.
    activation_sharding: of the residual stream (B, N, D), kept up after the embedding and every block; of a
      ResNet's feature maps (B, H, W, C).

  Raises:
    UserError: sizes that are unknown, missing, or do not go together.
  """
  network = {'vit': ViT, 'mixer': Mixer, 'resnet': ResNet}[resolve(model).kind]
  return network(
    model,
    image_size=image_size,
    channels=channels,
    num_classes=num_classes,
    rngs=rngs,
    activation_sharding=activation_sharding,
  )
