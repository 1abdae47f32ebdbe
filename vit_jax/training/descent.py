"""Where a step takes its gradients, and where they move the parameters.

Most optimizers take them at the parameters and go down the direction of `make_optimizer`, times the learning rate. A
schedule-free one trains other values than it evaluates: the parameters are the evaluated ones, x, so that
evaluators, checkpoints, exports and `load` have them without knowing of it.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from vit_jax.foundation.errors import UserError
from vit_jax.training import optimizer as optimizer_lib
from vit_jax.training.optimizer import OptimizerConfig, Params


class Descent:
  """Parameters that follow the direction of an optimizer."""

  def __init__(self, direction: optax.GradientTransformation):
    """`direction`: of `make_optimizer`."""
    self._direction = direction

  def init(self, params: Params) -> Any:
    """The optimizer's first state; it does not depend on the values of the parameters."""
    return self._direction.init(params)

  def trained(self, params: Params, state: Any) -> Params:
    """The parameters at which the next gradients are taken."""
    del state
    return params

  def step(self, grads: Params, params: Params, state: Any, rate: jax.Array) -> tuple[Params, Any]:
    """The parameters and the state after a step by gradients at `trained`, with a learning rate of shape ()."""
    updates, state = self._direction.update(grads, state, params)
    updates = jax.tree.map(lambda update: -rate * update, updates)
    moved: Any = optax.apply_updates(params, updates)
    return moved, state


class ScheduleFreeState(NamedTuple):
  """What a schedule-free optimizer carries to the next step beside the parameters x."""

  ahead: Params  # z - x: how far the values that take the steps are ahead of their average; 0 at first
  weights: jax.Array  # float32: sum of the weights of all z so far
  largest_rate: jax.Array  # float32: largest learning rate so far
  direction: Any  # the state of the directions


class ScheduleFree(Descent):
  """Schedule-free learning (arXiv 2405.15682, equations 3 to 5), whose average takes the place of a decaying rate.

  Gradients, and the decay of weights, are of y = β x + (1 - β) z; z takes the steps, z ← z - γ direction(y); and
  x ← (1 - c) x + c z is the average of all z, each weighted by a power of the largest rate γ until then, so that those
  of a warmup hardly count. Kept is z - x rather than z: it begins at 0 whatever the parameters are loaded from.
  """

  def __init__(self, direction: optax.GradientTransformation, beta: float, power: float):
    super().__init__(direction)
    self._beta, self._power = beta, power

  def init(self, params: Params) -> ScheduleFreeState:
    zero = jnp.zeros((), jnp.float32)
    return ScheduleFreeState(jax.tree.map(jnp.zeros_like, params), zero, zero, super().init(params))

  def trained(self, params: Params, state: ScheduleFreeState) -> Params:
    return jax.tree.map(lambda x, ahead: x + (1 - self._beta) * ahead, params, state.ahead)

  def step(
    self, grads: Params, params: Params, state: ScheduleFreeState, rate: jax.Array
  ) -> tuple[Params, ScheduleFreeState]:
    directions, direction = self._direction.update(grads, state.direction, self.trained(params, state))
    largest = jnp.maximum(state.largest_rate, rate)
    weight = largest**self._power
    weights = state.weights + weight
    share = weight / jnp.where(weights > 0, weights, 1)  # 0 of a warmup's first values, whose rate is 0
    moved = jax.tree.map(lambda ahead, direction: ahead - rate * direction, state.ahead, directions)
    params = jax.tree.map(lambda x, ahead: x + share * ahead, params, moved)
    ahead = jax.tree.map(lambda ahead: (1 - share) * ahead, moved)
    return params, ScheduleFreeState(ahead, weights, largest, direction)


def make_descent(optimizer: OptimizerConfig, params: Params) -> Descent:
  """How a run's parameters move; UserError as `make_optimizer`."""
  direction = optimizer_lib.make_optimizer(optimizer, params)
  if not optimizer.averages:
    return Descent(direction)
  beta = 0.9 if optimizer.b1 is None else optimizer.b1
  return ScheduleFree(direction, beta, dict(optimizer.arguments).get('weight_lr_power', 2.0))


def schedule_free_scaling(optimizer: OptimizerConfig) -> optax.GradientTransformation:
  """The directions of schedule-free AdamW: Adam's without a first moment, which the average replaces.

  `weight_lr_power`, by default 2, is the power of the learning rate by which values count in the average.
  """
  optimizer_lib.check_taken(optimizer, 'b1', 'b2', 'eps', 'weight_lr_power')
  if optimizer.momentum_dtype != 'float32':
    raise UserError("the optimizer 'schedule_free' does not take momentum_dtype; leave it out")
  b2 = 0.999 if optimizer.b2 is None else optimizer.b2
  eps = dict(optimizer.arguments).get('eps', 1e-8)
  return optax.scale_by_rms(b2, eps, eps_in_sqrt=False, bias_correction=True)


def steepest_near(params: Params, grads: Params, norm: jax.Array, radius: float) -> Params:
  """The parameters at the distance `radius` up the gradient: those of SAM (arXiv 2010.01412, equation 2).

  `norm` is that of the whole gradient. Where it is 0, they are the parameters themselves.
  """
  scale = radius / jnp.where(norm > 0, norm, 1)
  return jax.tree.map(lambda param, grad: param + scale * grad, params, grads)
