"""The training step and the evaluation step: pure functions, compiled over a mesh."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec

from vit_jax import durations, models
from vit_jax.config import Config
from vit_jax.data import on_device
from vit_jax.evaluation import features
from vit_jax.objectives import losses, masked_patches
from vit_jax.parallel import mesh as mesh_lib
from vit_jax.parallel import rules
from vit_jax.training import optimizer
from vit_jax.training.state import TrainState

Batch = dict[str, jax.Array]
Metrics = dict[str, jax.Array]


@dataclasses.dataclass(frozen=True)
class Program:
  """A run's compiled functions and the shapes they work on.

  Attributes:
    init: seed -> TrainState on the mesh.
    step: (TrainState, batch) -> (TrainState, metrics); the state given is used up (donated).
    evaluate: (params, batch with 'mask') -> what `evaluation.classification` collects: 'examples', of each
      row, and 'num_classes'; where images have lists of classes also 'scores', for `evaluation.ranking`.
    features: (params, batch with 'mask', layer, pool) -> frozen features (`evaluation.features`).
    schedule: step -> learning rate.
    state: the state's ShapeDtypeStructs with their shardings.
    batch: a training batch's ShapeDtypeStructs with their shardings.
  """

  init: Callable[[int], TrainState]
  step: Callable[[TrainState, Batch], tuple[TrainState, Metrics]]
  evaluate: Callable[[dict[str, Any], Batch], Metrics]
  features: features.FeatureStep
  schedule: optax.Schedule
  state: TrainState
  batch: Batch

  def batch_of(self, image_size: tuple[int, int]) -> Batch:
    """`batch` with images of another height and width, where they grow during training."""
    image = self.batch['image']
    shape = (image.shape[0], *image_size, image.shape[3])
    return self.batch | {'image': jax.ShapeDtypeStruct(shape, image.dtype, sharding=image.sharding)}


def make_train_step(config: Config, mesh: jax.sharding.Mesh, *, num_classes: int, examples: int) -> Program:
  """What the loop runs, the plan compiles and the benchmarks time.

  Args:
    config: the run.
    mesh: devices, with the axes of `parallel.mesh`.
    num_classes: size of the head.
    examples: training images an epoch (durations in epochs need it).
  """
  part = config.batch_size // config.accumulation
  mesh_lib.check_batch_size(mesh, part, 'config.batch_size / config.accumulation')
  batch_sharding = mesh_lib.batch_sharding(mesh)

  def build(seed: jax.Array | int):
    model = models.build(
      config.model,
      image_size=config.data.image_size,
      channels=config.data.channels,
      num_classes=num_classes,
      rngs=nnx.Rngs(params=_key(seed)),
      activation_sharding=batch_sharding,
    )
    graphdef, params = nnx.split(model)
    return graphdef, nnx.to_pure_dict(params)

  graphdef, abstract = nnx.split(nnx.eval_shape(lambda: nnx.merge(*build(0))))
  tx = optimizer.make_optimizer(config.optimizer, nnx.to_pure_dict(abstract))

  def init(seed: jax.Array) -> TrainState:
    _, params = build(seed)
    zero = jnp.zeros((), jnp.int32)
    average = jax.tree.map(jnp.copy, params) if config.average else {}
    return TrainState(zero, zero, params, tx.init(params), average)

  total = durations.steps(config.total, batch_size=config.batch_size, examples=examples)
  to_steps = lambda text: durations.steps(text, batch_size=config.batch_size, examples=examples, total=total)
  schedule = optimizer.make_schedule(config.schedule, total, to_steps)
  state = _with_shardings(jax.eval_shape(init, 0), mesh, config.mesh.min_shard_size)
  shardings = jax.tree.map(lambda leaf: leaf.sharding, state)
  replicated = mesh_lib.replicated(mesh)
  step = _train_step(config, graphdef, tx, schedule, mesh, num_classes)
  return Program(
    init=jax.jit(init, out_shardings=shardings),
    step=jax.jit(step, donate_argnums=0, out_shardings=(shardings, replicated)),
    evaluate=_eval_step(config, graphdef, mesh, num_classes),
    features=features.make_step(graphdef, config.data, mesh),
    schedule=schedule,
    state=state,
    batch=_batch_shapes(config, batch_sharding),
  )


def model_inputs(config: Config, batch: Batch, step: jax.Array | int) -> Batch:
  """What the model is given of a batch: that of `on_device.prepare_training`, and a 'key' for each image."""
  data_key, model_key = jax.random.split(jax.random.fold_in(_key(config.seed), step))
  keys = on_device.keys_of_rows(model_key, config.batch_size)
  return on_device.prepare_training(batch, config.data, data_key) | {'key': keys}


def _train_step(config, graphdef, tx, schedule, mesh, num_classes):
  def loss_fn(params, batch: Batch):
    model = nnx.merge(graphdef, params)
    if config.loss.name == 'masked_patches':
      return jax.tree.map(jnp.mean, masked_patches.loss(model, batch, config.data, config.loss))
    logits = model(batch['image'], keys=batch['key'])
    targets = losses.mixed_targets(batch, num_classes)
    loss = losses.per_example(config.loss, logits, targets).mean()
    return loss, losses.hits(logits, batch['label']).mean()

  def step(state: TrainState, batch: Batch) -> tuple[TrainState, Metrics]:
    inputs = model_inputs(config, batch, state.step)
    grads, (loss, accuracy) = _accumulate(loss_fn, state.params, inputs, config.accumulation, mesh)
    if config.optimizer.freeze:  # so that the gradients of frozen parameters are never computed
      mask = optimizer.trainable_mask(config.optimizer, state.params)
      grads = jax.tree.map(lambda train, grad: grad if train else jnp.zeros_like(grad), mask, grads)
    grad_norm = optax.tree.norm(grads)
    finite = jnp.isfinite(loss) & jnp.isfinite(grad_norm)
    rate = schedule(state.step)
    updates, opt_state = tx.update(grads, state.opt_state, state.params)
    updates = jax.tree.map(lambda update: -rate * update, updates)
    params = optax.apply_updates(state.params, updates)
    average = optax.incremental_update(params, state.average, 1 - config.average) if config.average else {}
    # Nothing is learnt from a step that is not finite: the loop stops there, or counts it.
    keep = lambda new, old: jax.tree.map(lambda n, o: jnp.where(finite, n, o), new, old)
    new_state = TrainState(
      step=state.step + 1,
      skipped=state.skipped + ~finite,
      params=keep(params, state.params),
      opt_state=keep(opt_state, state.opt_state),
      average=keep(average, state.average),
    )
    metrics = {
      'train/loss': loss,
      'train/accuracy': accuracy,
      'train/grad_norm': grad_norm,
      'learning_rate': jnp.asarray(rate, jnp.float32),
    }
    return new_state, metrics | {'finite': finite, 'skipped': new_state.skipped}

  return step


def _key(seed: jax.Array | int) -> jax.Array:
  """Always Threefry: other generators, once mapped over examples, depend on how many there are."""
  return jax.random.key(seed, impl='threefry2x32')


def _accumulate(loss_fn, params, inputs: Batch, parts: int, mesh):
  """Gradient and metrics of the batch's mean loss, computed in `parts` of equal size."""
  value_and_grad = jax.value_and_grad(loss_fn, has_aux=True)
  if parts == 1:
    (loss, accuracy), grads = value_and_grad(params, inputs)
    return grads, (loss, accuracy)
  sharding = NamedSharding(mesh, PartitionSpec(None, mesh_lib.BATCH_AXES))

  def split(leaf: jax.Array) -> jax.Array:
    # Every parts-th row, rather than a block of rows: each device keeps the rows it has.
    leaf = leaf.reshape(-1, parts, *leaf.shape[1:]).swapaxes(0, 1)
    return jax.lax.with_sharding_constraint(leaf, sharding)

  def add(total, part: Batch):
    (loss, accuracy), grads = value_and_grad(params, part)
    return jax.tree.map(lambda t, new: t + new / parts, total, (grads, (loss, accuracy))), None

  zero = (jax.tree.map(jnp.zeros_like, params), (jnp.zeros(()), jnp.zeros(())))
  total, _ = jax.lax.scan(add, zero, jax.tree.map(split, inputs))
  return total


def _eval_step(config, graphdef, mesh, num_classes):
  outputs = dict.fromkeys(('examples', 'num_classes'), mesh_lib.replicated(mesh))
  if config.data.max_labels:
    outputs['scores'] = NamedSharding(mesh, PartitionSpec(None, mesh.axis_names))
    padding = -num_classes % mesh.size  # classes that no example has, so that they divide over the devices
  loss = dataclasses.replace(config.loss, label_smoothing=0.0)

  def evaluate(params, batch: Batch) -> Metrics:
    logits = nnx.merge(graphdef, params)(on_device.prepare(batch['image'], config.data))
    labels = batch['label']
    single = labels.ndim == 1
    examples = {name: values for name, values in batch.items() if name != 'image'} | {
      'prediction': logits.argmax(axis=-1).astype(jnp.int32),
      'confidence': losses.confidence(loss, logits),
      'rank': losses.ranks(logits, labels) if single else jnp.full(len(logits), -1, jnp.int32),
      'loss': losses.per_example(loss, logits, losses.targets(labels, num_classes)),
    }
    result = {'examples': examples, 'num_classes': jnp.int32(num_classes)}
    if not config.data.max_labels:
      return result
    return result | {'scores': jnp.pad(logits, ((0, 0), (0, padding)))}

  return jax.jit(evaluate, out_shardings=outputs)


def _with_shardings(state: TrainState, mesh, min_shard_size: int) -> TrainState:
  """The state's shapes with shardings: optimizer state and average lie where their parameters lie."""
  shardings = rules.optimizer_shardings(state, state.params, mesh, min_shard_size)
  add = lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)
  return jax.tree.map(add, state, shardings)


def _batch_shapes(config: Config, sharding: NamedSharding) -> Batch:
  data = config.data
  image = (config.batch_size, *data.image_size, data.channels)
  label = (config.batch_size, data.max_labels) if data.max_labels else (config.batch_size,)
  return {
    'image': jax.ShapeDtypeStruct(image, jnp.uint8, sharding=sharding),
    'label': jax.ShapeDtypeStruct(label, jnp.int32, sharding=sharding),
  }
