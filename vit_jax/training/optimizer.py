"""Learning-rate schedules and optimizers, put together from optax by the config."""

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from vit_jax.errors import UserError
from vit_jax.training.schedule import ScheduleConfig

Params = dict[str, Any]


def make_schedule(schedule: ScheduleConfig, total: int, to_steps: Callable[[str], int]) -> optax.Schedule:
  """Linear warmup, then a decay: step (counted from 0) -> learning rate.

  Args:
    schedule: the options.
    total: steps of the run.
    to_steps: makes steps of a duration.

  Raises:
    UserError: warmup and cooldown do not fit into the run.
  """
  peak, end = schedule.learning_rate, schedule.end_value
  warmup, cooldown = to_steps(schedule.warmup), to_steps(schedule.cooldown)
  if warmup + cooldown >= total and total > 0:
    raise UserError(
      f'config.schedule: a warmup of {warmup} and a cooldown of {cooldown} steps do not fit into '
      f'the {total} steps of the run (config.total); shorten them.'
    )
  decay_steps = max(total - warmup, 1)
  if schedule.decay == 'linear':
    decay = optax.linear_schedule(peak, end, decay_steps)
  elif schedule.decay == 'cosine':
    cosine = optax.cosine_decay_schedule(peak - end, decay_steps)
    decay = lambda step: end + cosine(step)
  elif schedule.decay == 'rsqrt':
    timescale = to_steps(schedule.timescale)
    decay = lambda step: peak / jnp.sqrt(1 + step / timescale)
  else:
    decay = optax.constant_schedule(peak)
  rate = (
    optax.join_schedules([optax.linear_schedule(0.0, peak, warmup), decay], [warmup]) if warmup else decay
  )
  if not cooldown:
    return rate
  return lambda step: rate(step) * jnp.clip((total - step) / cooldown, 0, 1)


def make_optimizer(optimizer: OptimizerConfig, params: Params) -> optax.GradientTransformation:
  """The update's direction; the training step multiplies it by the learning rate.

  Args:
    optimizer: the options.
    params: parameters, or their shapes: nested dicts.

  Raises:
    UserError: a regex that matches no parameter, or nothing left to train.
  """
  trainable = trainable_mask(optimizer, params)
  factors = _multipliers(optimizer, params)
  dtype = jnp.dtype(optimizer.momentum_dtype)
  parts = []
  if optimizer.clip_norm is not None:
    parts.append(optax.clip_by_global_norm(optimizer.clip_norm))
  if optimizer.name == 'adam':
    parts.append(optax.scale_by_adam(optimizer.b1, optimizer.b2, mu_dtype=dtype))
  else:
    parts.append(optax.trace(optimizer.momentum, accumulator_dtype=dtype))
  if optimizer.weight_decay:
    parts.append(optax.add_decayed_weights(optimizer.weight_decay, mask=_kernels))
  if optimizer.lr_multipliers:
    scale = lambda updates, _: _map_paths(lambda path, update: update * factors[path], updates)
    parts.append(optax.stateless(scale))
  result = optax.chain(*parts)
  if not optimizer.freeze:
    return result
  # A partition keeps no optimizer state for frozen parameters, nor counts them in the clipped norm.
  labels = jax.tree.map(lambda train: 'trained' if train else 'frozen', trainable)
  return optax.partition({'trained': result, 'frozen': optax.set_to_zero()}, labels)


def trainable_mask(optimizer: OptimizerConfig, params: Params) -> Params:
  """True for each parameter that no `freeze` pattern matches."""
  frozen = set().union(*(_matches('freeze', pattern, params) for pattern in optimizer.freeze), set())
  mask = _map_paths(lambda path, _: path not in frozen, params)
  if not any(jax.tree.leaves(mask)):
    raise UserError('config.optimizer.freeze matches every parameter; leave something to train.')
  return mask


def _multipliers(optimizer: OptimizerConfig, params: Params) -> dict[str, float]:
  """{path: factor of the learning rate}; where several patterns match, the last one counts."""
  factors = dict.fromkeys(paths(params), 1.0)
  for pattern, factor in optimizer.lr_multipliers:
    factors.update(dict.fromkeys(_matches('lr_multipliers', pattern, params), factor))
  return factors


def paths(params: Params) -> list[str]:
  """The parameters' paths, such as 'blocks/attention/query/kernel'."""
  return [_path(keys) for keys, _ in jax.tree_util.tree_leaves_with_path(params)]


def _matches(option: str, pattern: str, params: Params) -> set[str]:
  found = {path for path in paths(params) if re.search(pattern, path)}
  if not found:
    tops = ', '.join(sorted({path.split('/')[0] for path in paths(params)}))
    raise UserError(f'config.optimizer.{option}: {pattern!r} matches no parameter; paths begin with {tops}.')
  return found


def _kernels(params: Params) -> Params:
  """True for the weights of dense layers and convolutions, which alone decay."""
  return _map_paths(lambda path, _: path.endswith('kernel'), params)


def _map_paths(function: Callable[[str, Any], Any], tree: Params) -> Params:
  return jax.tree_util.tree_map_with_path(lambda keys, leaf: function(_path(keys), leaf), tree)


def _path(keys: tuple[Any, ...]) -> str:
  return jax.tree_util.keystr(keys, simple=True, separator='/')
