"""The training step of Flax's own example of a Vision Transformer (docs_nnx/examples/vit_training.md).

The page's code for the model and the step is run as it stands; not the rest, which downloads. Liberties:

- The loss and the optimizer are the recipe's, in place of softmax and momentum, as is the rate of dropout. The page's
  model has no tanh layer before its head.
- The page shards the kernels of attention (by heads) and of the MLP over all devices, and nothing else, so that 16
  heads allow no more than 16 devices: here those kernels are sharded over as many as the heads allow, and images over
  all. With `fsdp` False only images are sharded.
"""

import math
import pathlib
import re
import sys
import types

from peers.program import BATCH, PIXELS, Recipe, adam, stub

PAGE = 'docs_nnx/examples/vit_training.md'


def lower(checkout: str, variant: str, recipe: Recipe, blocks: int | None, devices, *, fsdp: bool):
  """The page's update step; returns the lowered program and its mesh."""
  import jax
  import jax.numpy as jnp
  from flax import nnx
  from jax.experimental import mesh_utils
  from jax.sharding import AxisType, Mesh, NamedSharding
  from jax.sharding import PartitionSpec as P

  from vit_jax.models.vit_sizes import VARIANTS

  page = module_of_page(checkout)
  size = VARIANTS[variant]
  parts = math.gcd(size.heads, len(devices)) if fsdp else 1
  # Sides of the torus may be split: 4 x 16 is no product of whole sides of 8 x 8.
  shape = len(devices) // parts, parts
  grid = mesh_utils.create_device_mesh(shape, devices=list(devices), allow_split_physical_axes=True)
  mesh = Mesh(grid, ('data', 'fsdp'), axis_types=(AxisType.Explicit, AxisType.Explicit))
  images, kernels = ('data', 'fsdp'), 'fsdp' if fsdp else None
  config = page.ModelConfig(
    num_classes=recipe.classes,
    img_size=PIXELS,
    patch_size=size.patch,
    num_layers=size.depth if blocks is None else blocks,
    num_heads=size.heads,
    mlp_dim=size.mlp_dim,
    hidden_size=size.width,
    dropout_rate=recipe.dropout,
    sharding=page.ShardingConfig(
      attn_qkvo_weight_ndh=P(None, kernels, None),
      mlp_weight_df=P(kernels, None),
      mlp_weight_fd=P(None, kernels),
      act_btd=P(images, None, None),
      act_btf=P(images, None, None),
      act_btnh=P(images, None, None, None),
      act_bc=P(images, None),
    ),
  )

  def create():
    model = page.VisionTransformer(config, rngs=nnx.Rngs(0))
    return model, nnx.Optimizer(model, adam(), wrt=nnx.Param), nnx.Rngs(12)

  def on_devices(leaf):
    spec = leaf.sharding.spec if leaf.sharding is not None else P()
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=NamedSharding(mesh, spec))

  with jax.set_mesh(mesh):
    graphdef, state = nnx.split(nnx.eval_shape(create))
    model, optimizer, rngs = nnx.merge(graphdef, jax.tree.map(on_devices, state))
    split = NamedSharding(mesh, P(images))
    batch = (  # images as the page casts them on the host
      jax.ShapeDtypeStruct((BATCH, PIXELS, PIXELS, 3), jnp.bfloat16, sharding=split),
      jax.ShapeDtypeStruct((BATCH, recipe.classes), jnp.float32, sharding=split),
    )
    return page.train_step.lower(model, optimizer, rngs, batch), mesh


def module_of_page(checkout: str) -> types.ModuleType:
  """What the page defines: its model, its shardings, and its update step with the recipe's loss."""
  import jax.numpy as jnp
  import optax

  stub()
  page = types.ModuleType('flax_vit_example')
  sys.modules[page.__name__] = page  # where its dataclasses look for it
  text = (pathlib.Path(checkout) / PAGE).read_text()
  cells = re.findall(r'```\{code-cell\}[^\n]*\n(.*?)```', text, re.DOTALL)
  for defined in ('import optax', 'class VisionTransformer', 'def train_step'):
    cell = next(cell for cell in cells if defined in cell)
    exec(cell.split('\n# We can define')[0], vars(page))  # without what tries the model

  def compute_losses_and_logits(model, images, labels, rngs=None):
    logits = model(images, rngs=rngs)
    losses = optax.sigmoid_binary_cross_entropy(logits.astype(jnp.float32), labels)
    return losses.sum(axis=-1).mean(), logits

  vars(page)['compute_losses_and_logits'] = compute_losses_and_logits
  return page
