"""A run from beginning to end: everything is built, then one loop trains, evaluates and saves."""

import contextlib
import functools
import pathlib
import time
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from vit_jax import config as config_lib
from vit_jax import durations
from vit_jax.checkpoint.manager import Manager
from vit_jax.config import Config
from vit_jax.data import sources
from vit_jax.data.pipeline import TrainPipeline
from vit_jax.errors import Preempted
from vit_jax.models import flops
from vit_jax.parallel import mesh as mesh_lib
from vit_jax.parallel.distributed import StopSignal
from vit_jax.training import console, figures, initialization, metrics
from vit_jax.training.evaluators import Opened, evaluate, open_evaluators
from vit_jax.training.finite_guard import FiniteGuard
from vit_jax.training.progressive_resizing import Growth
from vit_jax.training.step import make_train_step, model_inputs
from vit_jax.training.watchdog import Watchdog
from vit_jax.training.workdir import claim_workdir, restore


def train(config: Config, workdir: pathlib.Path) -> None:
  """Trains, or goes on training, in `workdir`.

  Raises:
    UserError: something that the person can mend is wrong.
    Preempted: the run was asked to stop and has saved.
  """
  # Everything that can be wrong is opened before the slow part begins.
  mesh = mesh_lib.make_mesh(config.mesh)
  source = sources.open_training(config.data, config.seed)
  evaluators = open_evaluators(config, source.class_names, mesh)
  num_classes = config.head_size(len(source.class_names))
  examples = len(source)
  total = durations.steps(config.total, batch_size=config.batch_size, examples=examples)
  in_steps = lambda text: max(
    1, durations.steps(text, batch_size=config.batch_size, examples=examples, total=total)
  )
  log_every, save_every = in_steps(config.log_every), in_steps(config.checkpoint.every)
  eval_every = {name: in_steps(config.evaluators[name].every) for name in evaluators}
  keep_every = config.checkpoint.keep_every and in_steps(config.checkpoint.keep_every)

  growth = Growth(config, examples=examples)
  program = make_train_step(config, mesh, num_classes=num_classes, examples=examples)
  pipeline = TrainPipeline(
    source,
    config.data,
    batch_size=config.batch_size,
    seed=config.seed,
    sharding=mesh_lib.batch_sharding(mesh),
    data_at=growth.data,
  )
  claim_workdir(config, workdir)
  manager = Manager(workdir / 'checkpoints', config.checkpoint, keep_every_steps=keep_every)
  state = restore(manager, program, source.class_names)
  first_step = 0 if state is None else int(state.step)
  log = metrics.MetricsLog(workdir, first_step)
  pipeline.bad_images.keep_in(bad_images_path(workdir), first_step)
  screen = console.Console()

  screen.say(console.devices_text(mesh))
  screen.say(console.parameter_table(program.state.params))
  screen.say(data_text(config, source, evaluators))
  screen.say(
    f'Run: {total:,} steps of {config.batch_size} images, {total * config.batch_size / examples:.4g} epochs'
  )
  loaded = initialization.load(config, program, screen.say) if state is None else {}
  # One for each image size that is still to come; the last one is the largest.
  compiled = {
    size: program.step.lower(program.state, program.batch_of(size)).compile()
    for size in growth.ahead(first_step)
  }
  screen.say(console.memory_text(program, compiled[config.data.image_size]))
  if state is None:
    state = initialization.start(program, config.seed, loaded)
    draw_first_batch(config, pipeline, source.class_names, workdir)
  else:
    screen.say(f'Resuming from step {first_step} ({manager.path(first_step)})')

  forward_flops = functools.partial(
    flops.forward_flops, config.model, channels=config.data.channels, num_classes=num_classes
  )
  speed = metrics.Speedometer(
    batch_size=config.batch_size,
    flops_before=growth.sum_before(
      lambda size: config.batch_size * flops.train_flops(forward_flops(image_size=size))
    ),
    total_steps=total,
    device_kind=jax.devices()[0].device_kind,
    devices=mesh.size,
  )
  meta = {
    'config': config_lib.as_json(config),
    'class_names': list(source.class_names),
    'examples': examples,
  }
  guard = FiniteGuard(config, pipeline, manager, workdir)
  with (
    manager,
    contextlib.closing(log),
    contextlib.closing(screen),
    StopSignal() as stop,
    pipeline.stream(first_step, total) as batches,
    Watchdog(config.step_limit, workdir / 'report' / f'hang_{jax.process_index()}.txt') as watchdog,
  ):
    speed.restart()
    screen.begin(first_step, total)
    for step in range(first_step + 1, total + 1):
      watchdog.begin(step)
      batch = timed_next(batches, speed)
      state, step_metrics = compiled[batch['image'].shape[1:3]](state, batch)
      guard.check(step, step_metrics)
      speed.stepped()
      screen.step()

      # In this order: a checkpoint is saved when the numbers up to its step are in the log.
      values: dict[str, float] = {}
      if step % log_every == 0 or step == total:
        guard.flush()
        values |= training_values(step_metrics) | pipeline.bad_images.report(step) | speed.read(step)
        screen.training(step, total, values)
      due = [name for name, every in eval_every.items() if step % every == 0 or step == total]
      with watchdog.paused():
        scores = evaluate(program, state, {name: evaluators[name] for name in due})
      if scores:
        screen.evaluation(step, scores)
      if values or scores:
        log.write(step, values | scores)
      stopping = step < total and stop.stop_requested(step)
      saving = step % save_every == 0 or step == total or stopping
      if saving:
        guard.flush()
        best = scores if config.checkpoint.best in scores else None
        with watchdog.paused():
          manager.save(step, state.items(), meta, metrics=best)
      if stopping:
        raise Preempted(f'Stopped at step {step} of {total} after saving {manager.path(step)}.')
      if values or scores or saving:
        speed.restart()
  finish(workdir, manager, total, screen)


def timed_next(batches: Iterator[Any], speed: metrics.Speedometer) -> Any:
  begin = time.perf_counter()
  batch = next(batches)
  speed.waited(time.perf_counter() - begin)
  return batch


def training_values(step_metrics: dict[str, jax.Array]) -> dict[str, float]:
  values = {name: float(value) for name, value in step_metrics.items() if name != 'finite'}
  skipped = values.pop('skipped')
  return values | ({'train/skipped_steps': skipped} if skipped else {})


def bad_images_path(workdir: pathlib.Path) -> pathlib.Path:
  """Each process has a list of its own; that of process 0, which logs, has the plain name."""
  index = jax.process_index()
  return workdir / 'report' / (f'bad_images_{index}.jsonl' if index else 'bad_images.jsonl')


def data_text(config: Config, source: sources.Source, evaluators: dict[str, Opened]) -> str:
  names = source.class_names
  shown = ', '.join(names[:10]) + (', …' if len(names) > 10 else '')
  lines = [f'Training data: {config.data.title}, {len(source):,} images, {len(names)} classes: {shown}']
  for name, evaluator in evaluators.items():
    options = config.evaluators[name]
    where = f'{options.source or config.data.source} {options.split}'
    lines.append(f'Evaluator {name}: {where}, {evaluator.examples:,} images')
  return '\n'.join(lines)


def draw_first_batch(
  config: Config, pipeline: TrainPipeline, class_names: tuple[str, ...], workdir: pathlib.Path
) -> None:
  """Writes report/first_batch.png, on process 0, of the rows that its first device holds."""
  batch = jax.jit(lambda batch: model_inputs(config, batch, 0))(pipeline.batch(0))
  if jax.process_index() == 0:
    images, *labels = (
      np.asarray(batch[name].addressable_data(0)) for name in ('image', 'label', 'other') if name in batch
    )
    labels = np.concatenate([label.reshape(len(images), -1) for label in labels], axis=1)
    figures.save_first_batch(workdir / 'report' / 'first_batch.png', images, labels, class_names, config.data)


def finish(workdir: pathlib.Path, manager: Manager, total: int, screen: console.Console) -> None:
  """The pictures, and the last line: the result and where it lies."""
  if jax.process_index() != 0:
    return
  lines = metrics.read_metrics(workdir)
  figures.save_curves(workdir)
  final = lines[-1] if lines else {}
  results = ('/accuracy', '/mean_average_precision')
  names = [name for name in final if name.endswith(results) and not name.startswith('train/')]
  result = ', '.join(f'{name} {final[name]:.2%}' for name in names) or f'train/loss {final.get("train/loss")}'
  screen.say(f'Done after {total:,} steps: {result}; checkpoint: {manager.path(total)}')
