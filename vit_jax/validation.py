"""What `config.py`'s types cannot say: which values an option may have, and which go together."""

import math
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from vit_jax import durations
from vit_jax.data import augment_policy
from vit_jax.errors import UserError

if TYPE_CHECKING:
  from vit_jax.config import Config, Evaluator, Model

_CHOICES = {
  'model.pool': ('token', 'gap', 'token_gap', 'map', 'none'),
  'model.position': (
    *('none', 'learned', 'learned2d', 'sincos2d'),
    *('relative', 'relative_query', 'rotary'),
  ),
  'model.gelu': ('tanh', 'erf'),
  'model.dtype': ('float32', 'bfloat16'),
  'model.attention': ('auto', 'xla', 'cudnn', 'splash'),
  'model.remat': ('none', 'block', 'dots'),
  'init.position_resize': (None, 'linear', 'bilinear', 'bicubic', 'bicubic_antialias'),
  'data.channels': (1, 3),
  'data.crop': ('inception', 'random', 'central', 'resize'),
  'data.bad_images': ('stop', 'replace'),
  'data.mix_per': ('batch', 'example'),
  'loss.name': ('softmax', 'sigmoid', 'masked_patches'),
  'optimizer.name': ('adam', 'sgd'),
  'optimizer.momentum_dtype': ('float32', 'bfloat16'),
  'schedule.decay': ('linear', 'cosine', 'constant', 'rsqrt'),
  'nonfinite': ('stop', 'skip'),
}

_DURATIONS = {'total', 'warmup', 'timescale', 'cooldown', 'every', 'log_every', 'keep_every'}


def validate(config: 'Config', flat: dict[str, Any]) -> None:
  """Raises UserError, naming the option and the remedy, where values are out of range or clash.

  Args:
    config: the run.
    flat: its options by dotted name.
  """
  for path, choices in _CHOICES.items():
    if flat[path] not in choices:
      raise UserError(f'config.{path} is {flat[path]!r}; choose one of {list(choices)}.')
  for path, low, high in _ranges(config):
    value = flat[path]
    if value is not None and not low <= value <= high:
      span = f'at least {low}' if high == math.inf else f'between {low} and {high}'
      raise UserError(f'config.{path} is {value}; it must be {span}.')
  for path, value in flat.items():
    if path.split('.')[-1] in _DURATIONS:
      _check_duration(path, value)
  _check_image(config)
  _check_batch(config)
  _check_mixture(config)
  if config.data.max_labels and config.loss.name == 'softmax':
    raise UserError(
      f'config.data.max_labels is {config.data.max_labels}, so images have lists of classes, and '
      f"config.loss.name is {config.loss.name!r}; choose 'sigmoid'."
    )
  _check_objective(config)
  if config.model.pool in ('token', 'token_gap') and config.model.class_token is False:
    raise UserError(
      f"config.model.pool is {config.model.pool!r} but class_token is False; choose pool 'gap' or 'map'."
    )
  _check_attention(config.model)
  _check_axial(config.model)
  if config.schedule.decay in ('linear', 'cosine') and durations.parse(config.schedule.cooldown)[0]:
    raise UserError(
      f'config.schedule.cooldown is for decay constant and rsqrt, and decay is '
      f'{config.schedule.decay}, which ends at end_value by itself.'
    )
  _check_best(config)
  for name, evaluator in config.evaluators.items():
    if evaluator.crop not in ('resize', 'central'):
      raise UserError(f"config.evaluators.{name}.crop is {evaluator.crop!r}; choose 'resize' or 'central'.")
    _check_evaluator(f'config.evaluators.{name}', evaluator)
  for path in ('init.reinitialise', 'init.ignore', 'optimizer.freeze', 'optimizer.lr_multipliers'):
    for item in flat[path]:
      _check_regex(path, item if isinstance(item, str) else item[0])


def _ranges(config: 'Config') -> Iterator[tuple[str, float, float]]:
  """(option, lowest, highest) for the numbers."""
  inf, tiny = math.inf, 1e-12
  for path in (
    'batch_size',
    'accumulation',
    'data.repeats',
    'data.threads',
    'data.prefetch',
    'checkpoint.keep',
  ):
    yield path, 1, inf
  for path in ('patch', 'width', 'mlp_dim', 'depth', 'heads', 'representation_size', 'tokens_mlp_dim'):
    yield f'model.{path}', 1, inf
  yield 'model.register_tokens', 0, inf
  yield 'model.norm_epsilon', tiny, 1
  yield 'model.layer_scale', 0, inf
  for path in ('model.dropout', 'model.attention_dropout', 'model.stochastic_depth', 'loss.label_smoothing'):
    yield path, 0, 0.999
  for path in ('optimizer.b1', 'optimizer.b2', 'optimizer.momentum', 'average'):
    yield path, 0, 1 - 1e-9
  yield 'schedule.learning_rate', 0, inf
  yield 'schedule.end_value', 0, inf
  yield 'optimizer.weight_decay', 0, inf
  yield 'optimizer.clip_norm', tiny, inf
  yield 'data.num_classes', 1, inf
  yield 'data.max_labels', 1, inf
  yield 'data.max_per_class', 1, inf
  yield 'data.resize', 1, inf
  yield 'data.padding', 0, inf
  yield 'data.mixup', 0, 100
  yield 'data.cutmix', 0, 100
  yield 'data.val_fraction', tiny, 1 - tiny
  yield 'mesh.min_shard_size', 0, inf
  yield 'step_limit', 0, inf
  yield 'seed', 0, 2**32 - 1
  for name in config.evaluators:
    yield f'evaluators.{name}.batch_size', 1, inf
    yield f'evaluators.{name}.resize', 1, inf
    yield f'evaluators.{name}.fewshot.validation', 1, inf
    yield f'evaluators.{name}.fewshot.seeds', 1, inf


def _check_evaluator(option: str, evaluator: 'Evaluator') -> None:
  probe = evaluator.fewshot
  for name, value, choices in (
    ('type', evaluator.type, ('classification', 'fewshot')),
    ('fewshot.probe', probe.probe, ('ridge', 'logistic', 'knn')),
    ('fewshot.pool', probe.pool, (None, 'token', 'gap', 'token_gap', 'map')),
  ):
    if value not in choices:
      raise UserError(f'{option}.{name} is {value!r}; choose one of {list(choices)}.')
  if evaluator.real_labels and evaluator.type != 'classification':
    raise UserError(f"{option}.real_labels is for type 'classification'; leave it out, or change the type.")
  if not probe.shots or min(probe.shots) < 0:
    raise UserError(f'{option}.fewshot.shots is {probe.shots}; give at least one number, none below 0.')
  if any(setting <= 0 for setting in probe.grid):
    raise UserError(f'{option}.fewshot.grid is {probe.grid}; all of it must be above 0.')


def _check_best(config: 'Config') -> None:
  metrics = ('accuracy', 'loss') + (('mean_average_precision',) if config.data.max_labels else ())
  best, scores = config.checkpoint.best, []
  for name, evaluator in config.evaluators.items():
    for prefix in [name] + [f'{name}_average'] * bool(config.average):
      if evaluator.type == 'fewshot':
        scores += [f'{evaluator.fewshot.metric_prefix(prefix, n)}/accuracy' for n in evaluator.fewshot.shots]
      else:
        more = ('real_accuracy',) * bool(evaluator.real_labels)
        scores += [f'{prefix}/{metric}' for metric in metrics + more]
  if best is not None and best not in scores:
    raise UserError(
      f'config.checkpoint.best is {best!r}, which no evaluator gives; choose one of {", ".join(scores)}.'
    )


def _check_duration(path: str, value: str | None) -> None:
  if value is None:
    return
  try:
    number, _ = durations.parse(value)
  except ValueError as error:
    raise UserError(f'config.{path}: {error}.') from None
  if number == 0 and path.split('.')[-1] not in ('warmup', 'cooldown'):
    raise UserError(f'config.{path} is {value!r}; it must be more than nothing.')


def _check_image(config: 'Config') -> None:
  data = config.data
  if min(data.image_size) < 1:
    raise UserError(f'config.data.image_size is {data.image_size}; both sides must be at least 1 pixel.')
  for until, pixels in data.grow:
    _check_duration('data.grow', until)
    if pixels < 1:
      raise UserError(f'config.data.grow has {pixels} pixels; give at least 1.')
  low, high = data.area
  if not 0 < low <= high <= 1:
    raise UserError(f'config.data.area is {data.area}; it must be two shares with 0 < low <= high <= 1.')
  if not data.value_range[0] < data.value_range[1]:
    raise UserError(f'config.data.value_range is {data.value_range}; the first must be the smaller one.')
  try:
    augment_policy.parse(data.augment)
  except ValueError as error:
    raise UserError(f'config.data.augment: {error}.') from None
  resize = data.resize or max(data.image_size)
  if data.crop in ('random', 'central') and resize + 2 * data.padding < max(data.image_size):
    raise UserError(f'config.data.resize is {resize} pixels, smaller than image_size {data.image_size}.')


def _check_batch(config: 'Config') -> None:
  if config.batch_size % config.accumulation:
    raise UserError(
      f'config.batch_size {config.batch_size} does not divide into config.accumulation '
      f'{config.accumulation} equal parts; change one of them.'
    )
  if config.batch_size % config.data.repeats:
    raise UserError(
      f'config.batch_size {config.batch_size} does not divide by config.data.repeats {config.data.repeats}; '
      f'change one of them.'
    )
  axes = {axis: getattr(config.mesh, axis) for axis in ('replica', 'data', 'fsdp', 'tensor')}
  if any(size < 1 and size != -1 for size in axes.values()) or list(axes.values()).count(-1) > 1:
    raise UserError(f'config.mesh is {axes}; each axis must be at least 1, and at most one may be -1.')


def _check_objective(config: 'Config') -> None:
  model, masked = config.model, config.loss.name == 'masked_patches'
  if not masked and model.pool == 'none':
    raise UserError("config.model.pool is 'none', which gives an image no logits; choose token, gap or map.")
  if not masked:
    return
  name = "config.loss.name is 'masked_patches'"
  if model.pool != 'none' or not model.mask_token:
    raise UserError(f'{name}; it needs --config.model.pool=none and --config.model.mask_token=True.')
  if config.data.num_classes is not None:
    raise UserError(f'{name}, whose classes are colours; leave config.data.num_classes out.')
  for evaluator, options in config.evaluators.items():
    if options.type == 'classification':
      raise UserError(
        f"{name}, which names no classes; config.evaluators.{evaluator}.type must be 'fewshot'."
      )


def _check_attention(model: 'Model') -> None:
  if model.attention in ('auto', 'xla'):
    return
  name = f'config.model.attention is {model.attention!r}'
  if model.attention_dropout:
    raise UserError(
      f'{name}, which has no dropout of attention weights, and config.model.attention_dropout is '
      f"{model.attention_dropout}; choose 'auto' or 'xla', or no such dropout."
    )
  if model.position in ('relative', 'relative_query'):
    raise UserError(
      f'{name}, which cannot add to the logits of attention what config.model.position '
      f"{model.position!r} does; choose 'auto' or 'xla'."
    )
  if model.attention == 'cudnn' and model.dtype != 'bfloat16':
    raise UserError(
      f"{name}, which computes in bfloat16, and config.model.dtype is {model.dtype!r}; choose 'bfloat16', or "
      f"attention 'auto' or 'xla'."
    )


def _check_axial(model: 'Model') -> None:
  """Every token needs a row and a column."""
  if not model.axial:
    return
  if model.pool in ('token', 'token_gap'):
    wrong, remedy = f'pool {model.pool!r}', "choose pool 'gap' or 'map'"
  elif model.class_token:
    wrong, remedy = 'class_token', 'leave it out'
  elif model.register_tokens:
    wrong, remedy = 'register_tokens', 'leave them out'
  else:
    return
  raise UserError(
    f'config.model.axial attends along rows and columns of patches, and config.model.{wrong} brings a token '
    f'that is in none; {remedy}.'
  )


def _check_mixture(config: 'Config') -> None:
  for source, weight in config.data.mixture:
    if not 0 < weight < math.inf:
      raise UserError(f'config.data.mixture: {source!r} has the weight {weight}; it must be more than 0.')
  missing = [name for name, evaluator in config.evaluators.items() if evaluator.source is None]
  if config.data.mixture and missing:
    raise UserError(
      f'config.evaluators.{missing[0]}.source is not given; name the data to evaluate on, since '
      f'config.data.mixture has several.'
    )


def _check_regex(path: str, pattern: str) -> None:
  try:
    re.compile(pattern)
  except re.error as error:
    raise UserError(f'config.{path}: {pattern!r} is not a regular expression ({error}).') from None
