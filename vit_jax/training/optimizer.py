"""Optimizers, put together from optax by the config: the direction of a step, without the learning rate."""

import dataclasses
import difflib
import inspect
import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, Self

import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib

from vit_jax.adapters import lora
from vit_jax.foundation import pytrees
from vit_jax.foundation.errors import UserError
from vit_jax.foundation.registry import Registry
from vit_jax.options import TINY, Amount, Between, NotNegative, Positive, Regex
from vit_jax.training import per_layer

Params = dict[str, Any]
_Decay = Annotated[float, Between(0, 1 - 1e-9)]
_DECAYS = ('b1', 'b2', 'momentum')  # the options that are decays
# Argument of optax's functions -> the option for it.
_OPTIONS = {'mu_dtype': 'momentum_dtype', **{name: name for name in _DECAYS}}
_MOMENTUM, _MUON_MOMENTUM = 0.9, 0.95
# Kernels that Muon leaves to Adam: those that meet the image or give classes' logits, and what has no matrices.
_NO_MATRICES = re.compile(r'^(patch_embedding|stem|root|head|distillation_head)/|depthwise/')
# Parameters behind the last block, to which layer_decay leaves the whole rate; others outside of blocks are embeddings.
_BEHIND_BLOCKS = re.compile(
  r'((pooled_)?norm|\w+_pool|pre_logits|(distillation_)?head|decoder|(patch_)?projection|predictor|text_tower)/|logit_'
)


@dataclasses.dataclass(frozen=True)
class OptimizerConfig:
  """An optimizer of optax, with decoupled weight decay (AdamW's) and clipping by global norm."""

  # Optimizer: 'adam', 'sgd' (with momentum), 'rmsprop' (with momentum, as TensorFlow's), 'muon' (arXiv 2502.16982, Adam
  # with Nesterov's momentum for all but the kernels between embedding and head), 'lamb' (arXiv 1904.00962, for large
  # batches), 'adafactor' (arXiv 1804.04235, little memory: see `adafactor_scaling`), 'schedule_free' (arXiv 2405.15682,
  # AdamW whose parameters are averaged, in the place of a decay of the rate: schedule.decay=constant), or a scaling of
  # optax, that is `optax.scale_by_NAME`: 'adadelta', 'adamax', 'adan', 'amsgrad', 'belief', 'lion',
  # 'optimistic_gradient', 'radam', 'rms', 'rss', 'sign', 'stddev', 'yogi'.
  name: str = 'adam'
  # Decay of the first moment, where the optimizer has that argument; of 'schedule_free' the share of the average where
  # gradients are taken. None for optax's default.
  b1: _Decay | None = None
  # Decay of the second moment, where the optimizer has that argument. None for optax's default.
  b2: _Decay | None = None
  # Decay of the momentum of 'sgd', 'rmsprop', 'muon' and 'adafactor'. None for 0.9, of 'muon' 0.95.
  momentum: _Decay | None = None
  # Further arguments of the optimizer as optax names them, such as (('eps', 1e-6),).
  arguments: tuple[tuple[str, float], ...] = ()
  # Number format of the first moment; 'bfloat16' halves its memory.
  momentum_dtype: Literal['float32', 'bfloat16'] = 'float32'
  # Decay of the weights in a step as a share of the learning rate, on kernels only.
  weight_decay: NotNegative = 0.0
  # Largest global norm of the gradient. None to leave it unclipped.
  clip_norm: Positive | None = None
  # Radius ρ of sharpness-aware minimisation (SAM, arXiv 2010.01412): each step's gradient is taken where the loss at
  # this distance from the parameters is about highest, by a second pass over the batch. Usual: 0.05, for ViTs from
  # scratch up to 0.2 (arXiv 2106.01548). 0 for none.
  sam_radius: NotNegative = 0.0
  # Factors of the learning rate for parameters whose path matches, ((regex, factor), …).
  lr_multipliers: tuple[tuple[Regex, NotNegative], ...] = ()
  # Layer-wise decay of the learning rate (BEiT's, arXiv 2106.08254): each block has this share of the rate of the block
  # behind it, the embeddings this share of the first block's, and the head the whole rate. 1 for one rate.
  layer_decay: Annotated[float, Between(TINY, 1)] = 1.0
  # Regexes of parameter paths that keep their initial value, such as ('^patch_embedding', '^blocks'). A batch norm
  # whose scale does normalises by its running statistics, and keeps them.
  freeze: tuple[Regex, ...] = ()
  # Number of first blocks that keep their initial value, with the embeddings before them, without gradients. 0: none.
  freeze_blocks: Amount = 0

  @property
  def freezes(self) -> bool:
    """Whether there are parameters that are not trained."""
    return bool(self.freeze or self.freeze_blocks)

  @property
  def averages(self) -> bool:
    """Whether the parameters are the average of values that take the steps (descent.ScheduleFree)."""
    return self.name == 'schedule_free'

  def check(self, path: str) -> None:
    """Raises UserError for an optimizer that there is not, or an argument that it does not take."""
    try:
      scaling(self)
    except UserError as error:
      raise UserError(f'{path}: {error}') from None

  def with_defaults(self) -> Self:
    """The same optimizer, with every decay that is None and that it takes given as its default."""
    defaults = {'momentum': _MUON_MOMENTUM if self.name == 'muon' else _MOMENTUM}
    if self.name not in OPTIMIZERS.names():
      parameters = inspect.signature(_optax_function(self.name)).parameters
      defaults = {name: parameter.default for name, parameter in parameters.items()}
    unset = [name for name in _DECAYS if name in defaults and getattr(self, name) is None]
    return dataclasses.replace(self, **{name: defaults[name] for name in unset})


# Optimizers that are `optax.scale_by_NAME`: those that need gradients alone, and no norms or maxima of layers, which a
# stack of blocks has as one.
_OF_OPTAX = (
  *('adadelta', 'adam', 'adamax', 'adan', 'amsgrad', 'belief', 'lion', 'optimistic_gradient', 'radam', 'rms'),
  *('rss', 'sign', 'stddev', 'yogi'),
)
# Optimizers that optax does not have as `scale_by_NAME`: name -> function of an `OptimizerConfig`.
OPTIMIZERS: Registry[Any] = Registry(
  'optimizer',
  {
    'sgd': 'vit_jax.training.optimizer:momentum_scaling',
    'rmsprop': 'vit_jax.training.optimizer:rmsprop_scaling',
    'muon': 'vit_jax.training.optimizer:muon_scaling',
    'lamb': 'vit_jax.training.optimizer:lamb_scaling',
    'adafactor': 'vit_jax.training.optimizer:adafactor_scaling',
    'schedule_free': 'vit_jax.training.descent:schedule_free_scaling',
  },
)


def make_optimizer(optimizer: OptimizerConfig, params: Params) -> optax.GradientTransformation:
  """The update's direction, for parameters or their shapes; the training step multiplies it by the learning rate.

  Raises UserError for a regex that matches no parameter, a layer_decay without blocks, or where nothing is trained.
  """
  trainable = trainable_mask(optimizer, params)
  factors = learning_rate_factors(optimizer, params)
  parts: list[optax.GradientTransformation] = []
  if optimizer.clip_norm is not None:
    parts.append(_clip_by_norm(optimizer.clip_norm))
  parts.append(scaling(optimizer))
  if optimizer.weight_decay:
    parts.append(optax.add_decayed_weights(optimizer.weight_decay, mask=_kernels))
  if optimizer.name == 'lamb':  # behind the decay, which is in LAMB's ratio
    parts.append(per_layer.trust_ratio())
  if optimizer.lr_multipliers or optimizer.layer_decay != 1 or optimizer.freeze_blocks:

    def scale(updates: optax.Updates, params: optax.Params | None) -> optax.Updates:
      return pytrees.map_with_path(lambda path, update: update * factors[path], updates)

    parts.append(optax.stateless(scale))
  result = optax.chain(*parts)
  if not optimizer.freezes:
    return result
  # A partition keeps no optimizer state for frozen parameters, nor counts them in the clipped norm.
  labels = jax.tree.map(lambda train: 'trained' if train else 'frozen', trainable)
  return optax.partition({'trained': result, 'frozen': optax.set_to_zero()}, labels)


def _clip_by_norm(limit: float) -> optax.GradientTransformation:
  """`optax.clip_by_global_norm` by one factor: selected by element, XLA for CPUs writes the scaled gradients too."""

  def clip(grads: optax.Updates, params: optax.Params | None) -> optax.Updates:
    factor = jnp.minimum(1, limit / optax.tree.norm(grads))
    return jax.tree.map(lambda grad: grad * factor, grads)

  return optax.stateless(clip)


def scaling(optimizer: OptimizerConfig) -> optax.GradientTransformation:
  """The optimizer's own part, gradients -> directions; UserError for a name or an argument that is not there."""
  for name, _ in optimizer.arguments:
    if name in _OPTIONS:
      raise UserError(f'arguments has {name!r}, for which there is the option {_OPTIONS[name]}; set that')
  if optimizer.name in OPTIMIZERS.names():
    function: Callable[..., Any] = OPTIMIZERS[optimizer.name]
    return function(optimizer)
  make = _optax_function(optimizer.name)
  arguments: dict[str, Any] = dict(optimizer.arguments)
  for name in _DECAYS:
    value = getattr(optimizer, name)
    if value is not None:
      arguments[name] = value
  if optimizer.momentum_dtype != 'float32':
    arguments['mu_dtype'] = jnp.dtype(optimizer.momentum_dtype)
  taken = inspect.signature(make).parameters
  for name in arguments:
    if name not in taken:
      option = _OPTIONS.get(name, name)
      raise UserError(f'the optimizer {optimizer.name!r} does not take {option}; it takes {", ".join(taken)}')
  return make(**arguments)


def _optax_function(name: str) -> Callable[..., optax.GradientTransformation]:
  """`optax.scale_by_NAME`; UserError where that is no optimizer here."""
  if name in _OF_OPTAX:
    return getattr(optax, f'scale_by_{name}')
  known = (*OPTIMIZERS.names(), *_OF_OPTAX)
  near = ''.join(f" (did you mean '{each}'?)" for each in difflib.get_close_matches(name, known, n=1))
  raise UserError(
    f"there is no optimizer {name!r}{near}; choose one of {', '.join(known)}, where 'adam' is AdamW with weight_decay"
  )


def momentum_scaling(optimizer: OptimizerConfig) -> optax.GradientTransformation:
  """SGD with momentum, as the paper fine-tunes."""
  check_taken(optimizer, 'momentum')
  return _momentum_trace(optimizer)


def rmsprop_scaling(optimizer: OptimizerConfig) -> optax.GradientTransformation:
  """TensorFlow's RMSProp with momentum, as EfficientNets are trained: m ← momentum m + g / sqrt(v + eps).

  The mean square v of the gradients g begins at 1. By default eps is 0.001 and b2, its decay, 0.9.
  """
  check_taken(optimizer, 'b2', 'momentum', 'eps')
  b2 = 0.9 if optimizer.b2 is None else optimizer.b2
  return optax.chain(
    optax.scale_by_rms(b2, dict(optimizer.arguments).get('eps', 1e-3), initial_scale=1.0),
    _momentum_trace(optimizer),
  )


def muon_scaling(optimizer: OptimizerConfig) -> optax.GradientTransformation:
  """Muon of the kernels as matrices, and Adam of all else, by one learning rate: that of Adam (arXiv 2502.16982).

  Both have Nesterov's momentum, as in optax: that Adam is NAdam.

  Attention's (D, H, Dh) is a matrix (D, H Dh), its (H, Dh, D) one of (H Dh, D), and a convolution's (h, w, C, outputs)
  one of (h w C, outputs), as the authors flatten them; each block of a stack is orthogonalised by itself.
  """
  check_taken(optimizer, 'b1', 'b2', 'momentum', 'eps', 'ns_steps', 'consistent_rms')
  arguments: dict[str, Any] = {'consistent_rms': 0.2, **dict(optimizer.arguments)}
  if 'ns_steps' in arguments:
    arguments['ns_steps'] = int(arguments['ns_steps'])
  beta = _MUON_MOMENTUM if optimizer.momentum is None else optimizer.momentum
  given = {'adam_b1': optimizer.b1, 'adam_b2': optimizer.b2, 'beta': beta}
  arguments |= {name: value for name, value in given.items() if value is not None}
  return optax.contrib.muon(
    learning_rate=-1.0,  # the step multiplies by the schedule, and by -1
    mu_dtype=jnp.dtype(optimizer.momentum_dtype),
    muon_weight_dimension_numbers=lambda params: pytrees.map_with_path(_matrix, params),
    **arguments,
  )


def lamb_scaling(optimizer: OptimizerConfig) -> optax.GradientTransformation:
  """LAMB's direction before its weight decay and trust ratio, which `make_optimizer` adds: that of Adam, eps 1e-6."""
  return scaling(dataclasses.replace(optimizer, name='adam', arguments=(('eps', 1e-6), *optimizer.arguments)))


def adafactor_scaling(optimizer: OptimizerConfig) -> optax.GradientTransformation:
  """Adafactor with the schedule's rate and momentum, as big_vision's ViTs have it (arXiv 2106.04560, section 3.4).

  Second moments are kept by row and by column of a layer's two largest dimensions, where both have 32 or more; their
  decay is 1 - t^-0.8 in step t, at most b2 (0.999). `clipping_threshold` limits the RMS of each layer's direction, by
  default not: 1 is that of the original.
  """
  check_taken(optimizer, 'b2', 'momentum', 'min_dim_size_to_factor', 'clipping_threshold')
  arguments, cap = dict(optimizer.arguments), 0.999 if optimizer.b2 is None else optimizer.b2
  momentum = _MOMENTUM if optimizer.momentum is None else optimizer.momentum
  limit = arguments.get('clipping_threshold')
  return optax.chain(
    per_layer.factored_rms(
      min_dim_size_to_factor=int(arguments.get('min_dim_size_to_factor', 32)),
      decay_rate_fn=lambda step, power: jnp.minimum(
        cap, 1 - (jnp.asarray(step) + 1.0) ** -jnp.asarray(power)
      ),
    ),
    *([] if limit is None else [per_layer.clip_by_rms(limit)]),
    optax.ema(momentum, debias=False, accumulator_dtype=jnp.dtype(optimizer.momentum_dtype)),
  )


def _matrix(path: str, leaf: Any) -> optax.contrib.MuonDimensionNumbers | None:
  """The axes of a kernel that are a matrix's inputs and outputs; None: it is no kernel that Muon trains."""
  if not path.endswith('kernel') or _NO_MATRICES.search(path):
    return None
  inputs, outputs = (-2,), (-1,)
  if re.search(r'attention/(query|key|value)/', path):
    inputs, outputs = (-3,), (-2, -1)
  elif re.search(r'attention/out/', path):
    inputs = (-3, -2)
  elif leaf.ndim > 3:
    inputs = (-4, -3, -2)
  return optax.contrib.MuonDimensionNumbers(inputs, outputs)


def _momentum_trace(optimizer: OptimizerConfig) -> optax.GradientTransformation:
  momentum = _MOMENTUM if optimizer.momentum is None else optimizer.momentum
  return optax.trace(momentum, accumulator_dtype=jnp.dtype(optimizer.momentum_dtype))


def check_taken(optimizer: OptimizerConfig, *taken: str) -> None:
  """Raises UserError for a decay or an argument that an optimizer of ours does not take."""
  given = [name for name in _DECAYS if getattr(optimizer, name) is not None]
  for name in (*given, *(name for name, _ in optimizer.arguments)):
    if name not in taken:
      raise UserError(f'the optimizer {optimizer.name!r} does not take {name}; it takes {", ".join(taken)}')


def trainable_mask(optimizer: OptimizerConfig, params: Params) -> Params:
  """True for each parameter that no `freeze` pattern matches."""
  frozen: set[str] = set()
  for pattern in optimizer.freeze:
    frozen |= _matching('freeze', pattern, params)
  if optimizer.freeze_blocks:
    frozen |= {
      path for path in pytrees.flatten(params) if not (_in_blocks(path) or _BEHIND_BLOCKS.match(path))
    }
  mask = pytrees.map_with_path(lambda path, _: path not in frozen, params)
  if not any(jax.tree.leaves(mask)):
    raise UserError('config.optimizer.freeze matches every parameter; leave something to train.')
  return mask


def learning_rate_factors(optimizer: OptimizerConfig, params: Params) -> dict[str, Any]:
  """{path: factor of the learning rate, of stacked blocks one for each}; of several patterns the last one counts."""
  leaves = pytrees.flatten(params)
  factors = dict.fromkeys(leaves, 1.0)
  for pattern, factor in optimizer.lr_multipliers:
    factors.update(dict.fromkeys(_matching('lr_multipliers', pattern, params), factor))
  if optimizer.layer_decay == 1 and not optimizer.freeze_blocks:
    return factors
  depth = next((leaf.shape[0] for path, leaf in leaves.items() if _in_blocks(path)), 0)
  if depth <= optimizer.freeze_blocks:
    option = 'freeze_blocks' if optimizer.freeze_blocks else 'layer_decay'
    raise UserError(
      f'config.optimizer.{option} is of the blocks of Vision Transformers and Mixers, and this model has {depth}; '
      f'lower it or leave it out, or name layers by config.optimizer.lr_multipliers and freeze.'
    )
  return {
    path: factor * _layer_factor(optimizer, path, leaves[path], depth) for path, factor in factors.items()
  }


def _layer_factor(optimizer: OptimizerConfig, path: str, leaf: Any, depth: int) -> Any:
  """The factor of a parameter's rate: layer_decay^(number of the layers behind its own), or 0 in a frozen block."""
  decay = optimizer.layer_decay
  if _in_blocks(path):
    powers = np.float32(decay) ** np.arange(depth, 0, -1, dtype=np.float32)
    powers[: optimizer.freeze_blocks] = 0
    return powers.reshape(-1, *[1] * (leaf.ndim - 1))
  return 1.0 if _BEHIND_BLOCKS.match(path) else decay ** (depth + 1)


def _in_blocks(path: str) -> bool:
  return path.startswith('blocks/')


def _matching(option: str, pattern: str, params: Params) -> set[str]:
  """The paths that a pattern matches; UserError where there are none."""
  paths = pytrees.flatten(params)
  found = {path for path in paths if re.search(pattern, path)}
  if not found:
    tops = sorted({path.split('/')[0] for path in paths})
    raise UserError(
      f'config.optimizer.{option}: {pattern!r} matches no parameter; paths begin with {", ".join(tops)}'
      f'{_stacked(pattern, paths)}.'
    )
  return found


def _stacked(pattern: str, paths: Mapping[str, Any]) -> str:
  """What to know about a pattern that names one block: all blocks are one array, and a pattern takes all or none."""
  stacked = [path for path in paths if path.startswith('blocks/')]
  if not stacked or 'block' not in pattern:
    return ''
  return (
    f', and all blocks are stacked into one array for each of their parameters, such as {stacked[0]}, so that '
    f"no path has a block's number and '^blocks/' is all of them"
  )


def _kernels(params: Params) -> Params:
  """True for the weights of dense layers and convolutions, and of their adapters, which alone decay."""
  weights = ('kernel', lora.LORA_A, lora.LORA_B)
  return pytrees.map_with_path(lambda path, _: path.endswith(weights), params)
