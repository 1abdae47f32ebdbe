"""The training step: a pure function, compiled over a mesh."""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, TypeVar

import chex
import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec

from vit_jax.adapters import lora
from vit_jax.adapters.lora import AdapterConfig
from vit_jax.config import Config
from vit_jax.data import on_device
from vit_jax.data.on_device import Batch
from vit_jax.foundation import pytrees
from vit_jax.foundation.errors import UserError
from vit_jax.models import batch_norm, flexible_patches
from vit_jax.models.base import Architecture, Model
from vit_jax.models.capabilities import TextTowerOptions
from vit_jax.objectives.base import Metrics
from vit_jax.parallel import mesh as mesh_lib
from vit_jax.parallel import sharding as sharding_lib
from vit_jax.training import descent as descent_lib
from vit_jax.training import optimizer as optimizer_lib
from vit_jax.training.descent import Descent
from vit_jax.training.frozen import FrozenModels
from vit_jax.training.schedule import make_schedule
from vit_jax.training.state import TrainState
from vit_jax.training.timeline import Timeline

BatchShapes = dict[str, jax.ShapeDtypeStruct]
Params = dict[str, Any]
Frozen = tuple[Params, ...]
ModelState = dict[str, Any]
T = TypeVar('T')
LossFunction = Callable[[Params, ModelState, Batch], tuple[jax.Array, tuple[Metrics, ModelState]]]


@dataclasses.dataclass(frozen=True)
class Program:
  """A run's compiled functions and the shapes they work on."""

  graphdef: nnx.GraphDef  # the network; with the variables of `whole`, `nnx.merge` makes it
  init: jax.stages.Wrapped  # seed -> the first TrainState on the mesh
  # (TrainState, batch, frozen_params) -> (TrainState, metrics). The state given is used up (donated); the parameters of
  # the objective's frozen models (frozen.py) are not, nor those of the adapter's base, which come last.
  step: jax.stages.Wrapped
  state: TrainState  # the state's ShapeDtypeStructs with their shardings
  batch: BatchShapes  # a training batch's ShapeDtypeStructs with their shardings
  base: Params  # those of the parameters that an adapter leaves frozen; {} without one
  adapter: AdapterConfig

  def whole(self, state: TrainState, base: Params) -> TrainState:
    """A state with the parameters, and the EMA, of the whole model: adapters are merged into their base."""
    if not self.adapter.rank:
      return state
    params, ema = (
      lora.merged(base, tree, self.adapter.scale) if tree else tree for tree in (state.params, state.ema)
    )
    return state._replace(params=params, ema=ema)

  def batch_of(self, image_size: tuple[int, int]) -> BatchShapes:
    """`batch` with images of another height and width, for another size of a step."""
    image = self.batch['image']
    shape = (image.shape[0], *image_size, image.shape[3])
    return self.batch | {'image': jax.ShapeDtypeStruct(shape, image.dtype, sharding=image.sharding)}


def make_program(
  config: Config,
  mesh: jax.sharding.Mesh,
  architecture: Architecture,
  timeline: Timeline,
  frozen: FrozenModels,
) -> Program:
  """The step that the loop runs, the plan compiles and the benchmarks time.

  Raises UserError for a batch that does not divide over the mesh, or a network that cannot be built.
  """
  part = config.batch_size // config.batch_parts
  mesh_lib.check_batch_size(mesh, part, 'config.batch_size / config.accumulation')
  batch_sharding = mesh_lib.batch_sharding(mesh)

  def build(seed: jax.typing.ArrayLike) -> Model:
    return architecture.build(nnx.Rngs(params=_key(seed)), batch_sharding)

  network = nnx.eval_shape(lambda: build(0))
  graphdef, abstract, _ = nnx.split(network, nnx.Param, ...)
  adapter, base, rules = config.adapter, {}, config.model.sharding_rules
  if adapter.rank:
    base = lora.frozen_shapes(nnx.to_pure_dict(abstract), adapter)
    smallest = config.mesh.min_shard_size
    base = sharding_lib.with_shardings(base, sharding_lib.param_shardings(base, rules, mesh, smallest))
    rules = (*lora.SHARDING_RULES, *rules)

  def first_variables(seed: jax.typing.ArrayLike) -> tuple[Params, ModelState]:
    params, model_state = map(nnx.to_pure_dict, nnx.split(build(seed), nnx.Param, ...)[1:])
    if adapter.rank:
      key = jax.random.fold_in(_key(seed), lora.PLACE)
      params = lora.initial(lora.targets(network, adapter), params, adapter, key)
    return params, model_state

  params, model_state = jax.eval_shape(first_variables, 0)
  if model_state and config.optimizer.averages:
    raise UserError(
      f'config.optimizer.name is {config.optimizer.name!r}, which averages parameters, and {config.model.title} has '
      'running statistics, which would be those of other parameters; choose another optimizer.'
    )
  descent = descent_lib.make_descent(config.optimizer, params)

  def init(seed: jax.Array) -> TrainState:
    params, model_state = first_variables(seed)
    zero = jnp.zeros((), jnp.int32)
    ema = jax.tree.map(jnp.copy, pytrees.merged(params, model_state)) if config.ema else {}
    return TrainState(zero, zero, params, descent.init(params), ema, model_state)

  schedule = make_schedule(config.schedule, timeline)
  shapes = jax.eval_shape(init, 0)
  shardings = sharding_lib.state_shardings(shapes, shapes.variables, rules, mesh, config.mesh.min_shard_size)
  state = sharding_lib.with_shardings(shapes, shardings)
  step = _make_step(config, graphdef, descent, schedule, mesh, frozen, timeline.total)
  return Program(
    graphdef=graphdef,
    init=jax.jit(init, out_shardings=shardings),
    step=jax.jit(step, donate_argnums=0, out_shardings=(shardings, mesh_lib.replicated(mesh))),
    state=state,
    batch=_batch_shapes(config, batch_sharding),
    base=base,
    adapter=adapter,
  )


def model_inputs(config: Config, batch: Batch, step: jax.Array | int) -> Batch:
  """A batch as the objective takes it: what `on_device.prepare_training` makes, and a 'key' for each image."""
  data_key, model_key = jax.random.split(jax.random.fold_in(_key(config.seed), step))
  keys = on_device.keys_of_rows(model_key, config.batch_size)
  return on_device.prepare_training(batch, config.data, data_key) | {'key': keys}


def _make_step(
  config: Config,
  graphdef: nnx.GraphDef,
  descent: Descent,
  schedule: optax.Schedule,
  mesh: jax.sharding.Mesh,
  frozen: FrozenModels,
  total: int,
) -> Callable[..., tuple[TrainState, Metrics]]:
  patches = config.model.patch_sizes or ()

  def loss_function(
    params: Params,
    model_state: ModelState,
    batch: Batch,
    frozen_params: Frozen,
    state: TrainState,
    patch: int | None,
  ) -> tuple[jax.Array, tuple[Metrics, ModelState]]:
    *teachers, base = frozen_params if config.adapter.rank else (*frozen_params, {})
    with jax.named_scope('frozen'):
      batch = config.objective.annotated(batch, frozen.predictors(teachers))
    own = lora.beside(base, params) if base else params
    model: Model = nnx.merge(graphdef, pytrees.merged(own, model_state))
    batch_norm.freeze(model, trained_paths(config, params))
    if config.optimizer.freeze_blocks:
      blocks = vars(model)['blocks']  # the optimizer has checked that there are
      blocks.frozen = config.optimizer.freeze_blocks
    if patch is not None:
      flexible_patches.use(model, patch)
    if config.objective.learns_from_ema:
      with jax.named_scope('teacher'):
        teacher: Model = nnx.merge(graphdef, state.ema)
        if patch is not None:
          flexible_patches.use(teacher, patch)
        batch = config.objective.taught(batch, teacher, state.step / total)
    lora.attach(model, params, config.adapter, batch['key'])
    loss, metrics = config.objective.loss_and_metrics(model, batch, batch['key'], config.data)
    chex.assert_shape([loss, *metrics.values()], ())
    chex.assert_type(loss, jnp.float32)
    return loss, (metrics, nnx.to_pure_dict(nnx.state(model, nnx.Not(nnx.Param))))

  def step(state: TrainState, batch: Batch, frozen_params: Frozen = ()) -> tuple[TrainState, Metrics]:
    chex.assert_shape(batch['image'], (config.batch_size, None, None, config.data.channels))
    chex.assert_type([batch['image'], batch['label']], [jnp.uint8, jnp.int32])
    with jax.named_scope('inputs'):
      inputs = model_inputs(config, batch, state.step)

    def gradients(params: Params, patch: int | None = None) -> Any:
      loss_of = functools.partial(loss_function, frozen_params=frozen_params, state=state, patch=patch)
      return _gradients(loss_of, params, state.model_state, inputs, config.batch_parts, mesh)

    def gradients_at(params: Params) -> tuple[tuple[Params, jax.Array, Metrics], ModelState, jax.Array]:
      """As `_gradients`, and the gradient's norm; each call has the same patches, keys and statistics before it."""
      if patches:
        number = flexible_patches.draw(_key(config.seed), state.step, len(patches))
        found = jax.lax.switch(number, [functools.partial(gradients, patch=p) for p in patches], params)
      else:
        found = gradients(params)
      (grads, *rest), model_state = found
      grads = _without_frozen(config, grads)
      return (grads, *rest), model_state, optax.tree.norm(grads)

    trained = descent.trained(state.params, state.opt_state)
    (grads, loss, logged), model_state, grad_norm = gradients_at(trained)
    finite = jnp.isfinite(loss) & jnp.isfinite(grad_norm)
    if config.optimizer.sam_radius:
      with jax.named_scope('sam'):
        near = descent_lib.steepest_near(trained, grads, grad_norm, config.optimizer.sam_radius)
        (grads, *_), _, grad_norm = gradients_at(near)
      finite &= jnp.isfinite(grad_norm)
    rate = jnp.asarray(schedule(state.step))

    def learned() -> TrainState:
      with jax.named_scope('optimizer'):
        params, opt_state = descent.step(grads, state.params, state.opt_state, rate)
      with jax.named_scope('ema'):
        variables = pytrees.merged(params, model_state)
        moved = _share_of_new(config, state.step, total)
        ema: Any = optax.incremental_update(variables, state.ema, moved) if config.ema else {}
      return state._replace(params=params, opt_state=opt_state, ema=ema, model_state=model_state)

    # Nothing is learnt from a step that is not finite: the loop stops there, or counts it.
    new_state = _either(finite, learned, state, mesh)
    new_state = new_state._replace(step=state.step + 1, skipped=state.skipped + ~finite)
    metrics = {
      'train/loss': loss,
      **{f'train/{name}': value for name, value in logged.items()},
      'train/grad_norm': grad_norm,
      'learning_rate': rate.astype(jnp.float32),
    }
    return new_state, metrics | {'finite': finite, 'skipped': new_state.skipped}

  return step


def _either(condition: jax.Array, new: Callable[[], T], old: T, mesh: jax.sharding.Mesh) -> T:
  """`new()` where the condition, of shape (), holds; otherwise `old`."""
  if mesh.devices.flat[0].platform != 'cpu':
    return jax.tree.map(lambda n, o: jnp.where(condition, n, o), new(), old)
  # Of a selection XLA makes twice the memory traffic on CPUs: it copies the old moments, and computes the new ones once
  # for each of their users. The code of all that was a third of what it compiles for a step.
  return jax.lax.cond(condition, new, lambda: old)


def trained_paths(config: Config, params: Params) -> set[str]:
  """The paths of those of a run's parameters that no `freeze` of its optimizer keeps."""
  mask = pytrees.flatten(optimizer_lib.trainable_mask(config.optimizer, params))
  return {path for path, is_trained in mask.items() if is_trained}


def _without_frozen(config: Config, grads: Params) -> Params:
  """Gradients with zeros for frozen parameters, so that those are never computed."""
  if not config.optimizer.freezes:
    return grads
  mask = optimizer_lib.trainable_mask(config.optimizer, grads)
  return jax.tree.map(lambda train, grad: grad if train else jnp.zeros_like(grad), mask, grads)


def _share_of_new(config: Config, step: jax.Array, total: int) -> Any:
  """1 minus the EMA's decay in a step; 'cosine' is DINO's momentum of the teacher (arXiv 2104.14294, section 3.1)."""
  share = 1 - config.ema
  match config.ema_schedule:
    case 'warmup':
      return jnp.maximum(share, 9 / (10 + step))
    case 'cosine':
      return share * (1 + jnp.cos(math.pi * step / total)) / 2
    case _:
      return share


def _key(seed: jax.typing.ArrayLike) -> jax.Array:
  """Always Threefry: other generators, once mapped over examples, depend on how many there are."""
  return jax.random.key(seed, impl='threefry2x32')


def _gradients(
  loss_function: LossFunction,
  params: Params,
  model_state: ModelState,
  inputs: Batch,
  parts: int,
  mesh: jax.sharding.Mesh,
) -> tuple[tuple[Params, jax.Array, Metrics], ModelState]:
  """Gradient of the batch's mean loss, the loss and its metrics; and the model's new state.

  They are computed in `parts` of equal size. The parts update the model's state one after the other; batch norm
  normalises each by its own statistics.
  """
  value_and_grad = jax.value_and_grad(loss_function, has_aux=True)

  def gradients_of(
    part: Batch, model_state: ModelState
  ) -> tuple[tuple[Params, jax.Array, Metrics], ModelState]:
    (loss, (metrics, model_state)), grads = value_and_grad(params, model_state, part)
    return (grads, loss, metrics), model_state

  if parts == 1:
    return gradients_of(inputs, model_state)
  sharding = NamedSharding(mesh, PartitionSpec(None, mesh_lib.BATCH_AXES))

  def split(leaf: jax.Array) -> jax.Array:
    # Every parts-th row, rather than a block of rows: each device keeps the rows it has.
    leaf = leaf.reshape(-1, parts, *leaf.shape[1:]).swapaxes(0, 1)
    return jax.lax.with_sharding_constraint(leaf, sharding)

  def add(carry: Any, part: Batch) -> tuple[Any, None]:
    total, model_state = carry
    found, model_state = gradients_of(part, model_state)
    return (jax.tree.map(lambda t, new: t + new / parts, total, found), model_state), None

  split_inputs = jax.tree.map(split, inputs)
  first = jax.tree.map(lambda leaf: leaf[0], split_inputs)
  shapes, _ = jax.eval_shape(gradients_of, first, model_state)
  zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
  return jax.lax.scan(add, (zeros, model_state), split_inputs)[0]


def _batch_shapes(config: Config, sharding: NamedSharding) -> BatchShapes:
  data = config.data
  image = (config.batch_size, *data.input_size, data.channels)
  label = (config.batch_size, data.max_labels) if data.max_labels else (config.batch_size,)
  shapes = {
    'image': jax.ShapeDtypeStruct(image, jnp.uint8, sharding=sharding),
    'label': jax.ShapeDtypeStruct(label, jnp.int32, sharding=sharding),
  }
  if data.max_patches:
    shapes['grid'] = jax.ShapeDtypeStruct((config.batch_size, 2), jnp.int32, sharding=sharding)
  if data.label_weights:
    shapes['weight'] = jax.ShapeDtypeStruct(label, jnp.float32, sharding=sharding)
  if isinstance(config.model, TextTowerOptions):
    text = (config.batch_size, config.model.text_length)
    shapes['text'] = jax.ShapeDtypeStruct(text, jnp.int32, sharding=sharding)
  for crops in config.objective.extra_crops(data):
    shape = (config.batch_size, crops.number, *crops.size, data.channels)
    shapes[crops.name] = jax.ShapeDtypeStruct(shape, jnp.uint8, sharding=sharding)
  return shapes
