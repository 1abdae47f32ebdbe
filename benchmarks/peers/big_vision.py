"""big_vision's training step.

`train.py`'s update step is a closure of its main function, so it is written here once more, without mixup, and with
`jax.set_mesh` in place of `with mesh:`, whose constraints Flax 0.12.8 ignores. Its blocks are not scanned, which is
faster. bfloat16 by its own option (`dtype_mm`).
"""

import functools
import sys

from peers.program import BATCH, PIXELS, Recipe, batch_shapes, make_mesh, placed, stub


def lower(checkout: str, variant: str, recipe: Recipe, blocks: int | None, devices, *, fsdp: bool):
  """big_vision's update step, without mixup; returns the lowered program and its mesh."""
  stub()
  sys.path.insert(0, checkout)
  import big_vision.optax as bv_optax
  import big_vision.sharding as bv_sharding
  import big_vision.utils as u
  import flax.linen as nn
  import jax
  import jax.numpy as jnp
  import ml_collections
  import optax
  from big_vision.models import vit
  from jax.sharding import NamedSharding, PartitionSpec

  config = ml_collections.ConfigDict(
    {
      'optax_name': 'scale_by_adam',
      'optax': {'mu_dtype': 'bfloat16'},
      'grad_clip_norm': 1.0,
      'lr': 1e-3,
      'wd': 1e-4,
      'schedule': {'warmup_steps': 10_000, 'decay_type': 'cosine'},
    }
  )
  options = {} if blocks is None else {'depth': blocks}
  options |= {'pool_type': 'tok', 'dtype_mm': 'bfloat16', 'dropout': recipe.dropout}
  model = vit.Model(recipe.classes, variant=variant, rep_size=recipe.pre_logits, **options)
  key = jax.eval_shape(lambda: jax.random.PRNGKey(0))
  shapes = jax.eval_shape(lambda key: model.init(key, jnp.zeros((1, PIXELS, PIXELS, 3)))['params'], key)
  timing = {'total_steps': 500_000, 'batch_size': BATCH, 'data_size': recipe.images}
  tx, _ = bv_optax.make(config, nn.unbox(shapes), sched_kw=timing)
  state = {'params': shapes, 'opt': jax.eval_shape(tx.init, shapes)}
  mesh = make_mesh(devices, 'data')
  replicated, rules = NamedSharding(mesh, PartitionSpec()), [('act_batch', 'data')]
  with nn.logical_axis_rules(rules):
    strategy = [('.*', 'fsdp(axis="data")' if fsdp else 'replicate')]
    shardings = bv_sharding.infer_sharding(state, strategy=strategy, mesh=mesh)

  @functools.partial(jax.jit, donate_argnums=(0,), out_shardings=(shardings, replicated))
  def update_fn(train_state, rng, batch):
    images, labels = batch['image'], batch['labels']
    step_count = bv_optax.get_count(train_state['opt'], jittable=True)
    rng = jax.random.fold_in(rng, step_count)
    rng, rng_model = jax.random.split(rng, 2)

    def loss_fn(params):
      logits, _ = model.apply({'params': params}, images, train=True, rngs={'dropout': rng_model})
      return u.sigmoid_xent(logits=logits, labels=labels)

    params, opt = train_state['params'], train_state['opt']
    loss, grads = jax.value_and_grad(loss_fn)(params)
    updates, opt = tx.update(grads, opt, params)
    params = optax.apply_updates(params, updates)
    measurements = {'training_loss': loss}
    unfrozen = bv_optax.replace_frozen(config.schedule, grads, 0.0)
    for name, tree in (('l2_grads', unfrozen), ('l2_params', params), ('l2_updates', updates)):
      measurements[name] = jnp.sqrt(sum(jnp.sum(leaf * leaf) for leaf in jax.tree.leaves(tree)))
    return {'params': params, 'opt': opt}, measurements

  batch = batch_shapes(recipe.classes, 'labels')
  batch = placed(batch, NamedSharding(mesh, PartitionSpec('data')))
  with jax.set_mesh(mesh), nn.logical_axis_rules(rules):
    return update_fn.lower(jax.tree.map(placed, state, shardings), placed(key, replicated), batch), mesh
