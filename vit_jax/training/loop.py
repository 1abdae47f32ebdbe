"""A training run from beginning to end: everything is set up, then one loop trains, evaluates and saves."""

import contextlib
import pathlib
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import numpy as np

from vit_jax.checkpoint.manager import Manager
from vit_jax.config import Config
from vit_jax.data import sources
from vit_jax.data.bad_images import BadImages
from vit_jax.data.pipeline import TrainPipeline
from vit_jax.data.sources import Source
from vit_jax.errors import Preempted
from vit_jax.evaluation.base import EMA_SUFFIX, Evaluator, metric_kind
from vit_jax.parallel import mesh as mesh_lib
from vit_jax.parallel.distributed import StopSignal
from vit_jax.parallel.facts import check_arrays
from vit_jax.training import agreement, figures, memory, preprocessing, workdir
from vit_jax.training.board import Board
from vit_jax.training.console import Console
from vit_jax.training.early_stopping import EarlyStopping
from vit_jax.training.finite_guard import FiniteGuard
from vit_jax.training.initialization import initial_state, read_initial
from vit_jax.training.local_workdir import LocalWorkdir
from vit_jax.training.metrics import MetricsLog, Speedometer
from vit_jax.training.probe_head import with_probe
from vit_jax.training.profiling import Profiler
from vit_jax.training.run import Run, evaluate, open_training
from vit_jax.training.state import TrainState
from vit_jax.training.trackers import open_tracker
from vit_jax.training.watchdog import Watchdog

_LINES = 20  # of training, at least, as far as there are so many steps

Step = Callable[[TrainState, Any, Any], tuple[TrainState, dict[str, jax.Array]]]


def train(
  config: Config, folder: pathlib.Path, *, takeover: bool = False, local: LocalWorkdir | None = None
) -> None:
  """Trains, or goes on training, in the workdir `folder`.

  Args:
    config: the run.
    folder: its workdir.
    takeover: go on with a run that was started with another config.
    local: the copy that `folder` belongs to, where the workdir is in a bucket.

  Raises:
    UserError: something that the person can mend is wrong.
    Preempted: the run was asked to stop and has saved.
  """
  config.check_evaluator_names()
  screen = Console()
  with Profiler(config.profile, folder / 'profile', screen.say) as profiler:
    _train(config, folder, screen, profiler, takeover=takeover, local=local)


def _train(
  config: Config,
  folder: pathlib.Path,
  screen: Console,
  profiler: Profiler,
  *,
  takeover: bool,
  local: LocalWorkdir | None,
) -> None:
  """As `train`, which has opened the screen and the profiler."""
  # Everything that can be wrong is opened before the slow part begins.
  config = preprocessing.resolved(config, folder)
  checkpoints = folder / 'checkpoints' if local is None else local.checkpoints
  run, source = open_training(config, workdir.stored_classes(checkpoints))
  memory.check(run)
  evaluators = run.open_evaluators()
  agreement.check(run, evaluators)
  timeline, first_size = run.timeline, config.data.image_size
  pipeline = TrainPipeline(
    source,
    config.data,
    batch_size=config.batch_size,
    seed=config.seed,
    sharding=mesh_lib.batch_sharding(run.mesh),
    data_at=run.resizing.data,
  )
  keep_every, best = config.checkpoint.keep_every, config.checkpoint.best
  manager = Manager(
    checkpoints,
    config.checkpoint,
    keep_every_steps=None if keep_every is None else timeline.period(keep_every),
    lower_is_better=best is not None and not metric_kind(best).higher_is_better,
    before_commit=None if local is None else local.before_commit,
  )
  note = workdir.check_claim(config, folder, begun=manager.latest_step() is not None, takeover=takeover)
  if note:
    screen.say(note if local is None else local.named(note))
  state, restored = workdir.restore(manager, run, takeover=takeover)
  workdir.write_config(config, folder)  # not before: the checkpoint may not fit what takes it over
  first_step = 0 if state is None else int(state.step)
  log_every, save_every = timeline.period(config.log_every), timeline.period(config.checkpoint.every)
  log_every = min(log_every, max(timeline.total // _LINES, 1))
  log = MetricsLog(folder, first_step, log_every, open_tracker(config, folder, first_step))
  log.board.config(config)
  pipeline.bad_images.keep_in(_bad_images_path(folder), first_step)
  screen.setup(run, evaluators, folder)

  initial = {} if state is not None else _read_initial(run, screen)
  frozen = _read_frozen(run, screen)
  screen.say('Compiling the training step …')
  steps = _compiled_steps(run, first_step)
  screen.memory(run.program, steps[first_size])
  if state is None:
    state = _first_state(run, source, initial, pipeline.bad_images, screen)
    figures.draw_first_batch(run, pipeline.batch(0), folder)
    log.board.picture(0, 'first_batch', folder / 'report' / 'first_batch.png')
  else:
    screen.say(f'Resuming from step {first_step} ({manager.path(first_step)})')

  eval_every = {name: timeline.period(options.every) for name, options in config.evaluators.items()}
  histograms, report = config.tensorboard.histograms, folder / 'report'
  histograms_every = timeline.period(histograms) if histograms else None
  meta = workdir.checkpoint_meta(run)
  stopper = EarlyStopping.restored(config.stop, restored)
  speed = Speedometer(run)
  guard = FiniteGuard(config, pipeline, manager, folder)
  with (
    # First, so that a signal cannot end the last save.
    StopSignal(saved=first_step > 0, places=_places(config, folder)) as stop,
    manager,
    contextlib.closing(log),
    contextlib.closing(screen),
    pipeline.stream(first_step, timeline.total) as batches,
    Watchdog(config.step_limit, folder / 'report' / f'hang_{jax.process_index()}.txt', local) as watchdog,
  ):
    speed.restart()
    screen.begin(first_step, timeline.total)
    for step in stopper.steps(first_step, timeline.total):
      last = step == timeline.total
      watchdog.begin(step)
      with profiler.step(step), jax.transfer_guard('disallow'):
        batch = _timed_next(batches, speed)
        state, step_metrics = steps[batch['image'].shape[1:3]](state, batch, frozen)
      profiler.finish(step, step_metrics)
      guard.check(step, step_metrics)
      speed.stepped()
      screen.step(speed.seconds_left(step))

      # In this order: a checkpoint is saved when the numbers up to its step are in the log.
      values: dict[str, float] = {}
      if step % log_every == 0 or last:
        guard.flush()
        values = _training_values(step_metrics) | pipeline.bad_images.report(step) | speed.read(step)
        screen.training(step, timeline.total, values)
      scores: dict[str, float] = {}
      due = _due(evaluators, eval_every, step, last)
      if due:
        with watchdog.paused(), stop.busy():
          ending = last or stopper.may_end
          pictures = report if ending and config.tensorboard.pictures else None
          limited = screen.with_progress('Evaluation', watchdog.limited)
          scores = evaluate(state, due, pictures, limited)
          stopper.update(step, scores)
          if stopper.due:  # the end, at which all run
            scores |= evaluate(state, _without(evaluators, due), pictures, limited)
        screen.evaluation(step, scores)
        last = last or stopper.due
      if values or scores:
        log.write(step, values | scores)
      stopping = not last and stop.stop_requested(step)
      saving = step % save_every == 0 or last or stopping
      if saving:
        guard.flush()
        log.sync()
        with watchdog.paused(), stop.busy():
          metrics = scores if best in scores else None
          manager.save(step, state.items(), meta | stopper.meta(), metrics=metrics)
        stop.saved = True
      if stopping:
        raise Preempted(f'Stopped at step {step} of {timeline.total} after saving {manager.path(step)}.')
      log.board.histograms(step, state.params, histograms_every)
      if values or scores or saving:
        speed.restart()
    stop.leave()
    log.complete = True
    _finish(run, state, pipeline, stopper, first_step, folder, screen, log.board)
  if jax.process_index() == 0:
    figures.save_curves(folder)
    screen.finished(int(state.step), folder, manager.path(int(state.step)))


def _places(config: Config, folder: pathlib.Path) -> list[pathlib.Path]:
  """The workdir and, where they are on this machine, the training data."""
  _, place, _ = sources.parse(config.data.source, config.data.split)
  data = pathlib.Path(place).expanduser()
  return [folder, data] if place and '://' not in place and data.exists() else [folder]


def _finish(
  run: Run,
  state: TrainState,
  pipeline: TrainPipeline,
  stopper: EarlyStopping,
  first_step: int,
  folder: pathlib.Path,
  screen: Console,
  board: Board,
) -> None:
  """Says whether the run ended early, and draws what it has learned; a run that was complete is left alone."""
  step, report = int(state.step), folder / 'report'
  if stopper.due:
    screen.say(stopper.text(step, run.timeline.total))
  if step == first_step or not run.config.tensorboard.pictures:
    return
  figures.draw_attention(run, state.variables, pipeline.batch(0), folder)
  board.picture(step, 'attention', report / 'attention.png')
  for name in run.config.evaluators:
    for evaluated in (name, f'{name}{EMA_SUFFIX}'):
      board.picture(step, f'{evaluated}/confusion', report / f'{evaluated}_confusion.png')


def _read_initial(run: Run, screen: Console) -> dict[str, np.ndarray]:
  """The parameters of config.init.checkpoint by their paths, which are accounted for on the screen."""
  arrays, text = read_initial(run.config, run.architecture, run.dataset.class_names)
  check_arrays('the parameters of config.init.checkpoint', arrays)
  if text:
    screen.say(text)
  return arrays


def _read_frozen(run: Run, screen: Console) -> Any:
  """The parameters of the objective's frozen models, on the mesh, which are accounted for on the screen."""
  params, text = run.frozen.read(run.dataset.class_names)
  if text:
    screen.say(text)
  return params


def _first_state(
  run: Run, source: Source, initial: dict[str, np.ndarray], bad_images: BadImages, screen: Console
) -> TrainState:
  """The state of step 0, of which `initial` holds the parameters that do not begin anew."""
  keeps_head = any(name.startswith('head/') for name in initial)
  state = initial_state(run.program, run.config.seed, initial)
  if run.config.init.head == 'probe' and keeps_head:
    screen.say("Head: the checkpoint's own, which config.init.reinitialise does not name; it is not probed")
  elif run.config.init.head == 'probe':
    screen.say('Head: computing the features of the training images …')
    state, text = with_probe(run, source, state, bad_images, screen.with_progress('Features'))
    screen.say(text)
  return state


def _compiled_steps(run: Run, first_step: int) -> dict[tuple[int, ...], Step]:
  """The compiled training step for each image size that is still to come."""
  program = run.program
  return {
    size: program.step.lower(program.state, program.batch_of(size), run.frozen.shapes).compile()
    for size in run.resizing.sizes_from(first_step)
  }


def _due(
  evaluators: Mapping[str, Evaluator], every: Mapping[str, int], step: int, last: bool
) -> dict[str, Evaluator]:
  """The evaluators that run after a step."""
  return {name: item for name, item in evaluators.items() if last or step % every[name] == 0}


def _without(evaluators: Mapping[str, Evaluator], due: Mapping[str, Evaluator]) -> dict[str, Evaluator]:
  """The evaluators that are not among those that were due."""
  return {name: item for name, item in evaluators.items() if name not in due}


def _timed_next(batches: Iterator[Any], speed: Speedometer) -> Any:
  """The next batch; counts the time that the loop waits for it."""
  begin = time.perf_counter()
  batch = next(batches)
  speed.waited(time.perf_counter() - begin)
  return batch


def _training_values(step_metrics: dict[str, jax.Array]) -> dict[str, float]:
  """The step's metrics as they are logged."""
  values = {name: float(value) for name, value in step_metrics.items() if name != 'finite'}
  skipped = values.pop('skipped')
  return values | ({'train/skipped_steps': skipped} if skipped else {})


def _bad_images_path(folder: pathlib.Path) -> pathlib.Path:
  """Each process has a list of its own; that of process 0, which logs, has the plain name."""
  index = jax.process_index()
  return folder / 'report' / (f'bad_images_{index}.jsonl' if index else 'bad_images.jsonl')
