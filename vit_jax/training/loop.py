"""A training run from beginning to end: everything is set up, then one loop trains, evaluates and saves."""

import contextlib
import os
import pathlib
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import numpy as np

from vit_jax.checkpoint.manager import Manager
from vit_jax.config import Config
from vit_jax.data import sources
from vit_jax.data.pipeline import TrainPipeline
from vit_jax.evaluation.base import EMA_SUFFIX, Evaluator, Report, examples_of, metric_kind
from vit_jax.foundation.errors import Preempted
from vit_jax.parallel import mesh as mesh_lib
from vit_jax.parallel.agreement import check_arrays
from vit_jax.parallel.distributed import StopSignal
from vit_jax.training import agreement, figures, memory, preprocessing, resume
from vit_jax.training.console import Console
from vit_jax.training.early_stopping import EarlyStopping
from vit_jax.training.feature_files import FOLDER as FEATURES
from vit_jax.training.finite_guard import FiniteGuard
from vit_jax.training.initialization import initial_state, read_base, read_initial
from vit_jax.training.metrics import MetricsLog, Speedometer
from vit_jax.training.probe_head import with_probe
from vit_jax.training.profiling import Profiler
from vit_jax.training.run import Run, evaluate, open_training
from vit_jax.training.state import TrainState
from vit_jax.training.trackers import open_tracker
from vit_jax.training.watchdog import Watchdog
from vit_jax.training.workdir import Workdir, open_workdir

_LINES = 20  # the fewest log lines of a run that has so many steps

# Called after each step, when its numbers are logged: (step, state, the values that were logged at this step). The next
# step takes the state's memory: copy what you keep of it.
OnStep = Callable[[int, TrainState, Mapping[str, float]], None]


def train(
  config: Config,
  place: Workdir | str | os.PathLike[str],
  *,
  takeover: bool = False,
  on_step: OnStep | None = None,
) -> TrainState:
  """Trains, or goes on training, in a workdir, to the state at the end.

  Args:
    config: the run.
    place: its workdir, or where it is: a folder or an address in a bucket.
    takeover: go on with a run that was started with another config.
    on_step: sees each step of this call.

  Raises:
    UserError: something that the person can mend is wrong.
    Preempted: the run was asked to stop and has saved.
  """
  with open_workdir(place) as workdir:
    config.check_evaluator_names()
    screen = Console()
    with Profiler(config.profile, workdir.folder / 'profile', screen.say) as profiler:
      return _Training(config, workdir, screen, takeover=takeover).loop(profiler, on_step)


class _Training:
  """A run in its workdir: what the loop works with, opened before the slow part begins."""

  def __init__(self, config: Config, workdir: Workdir, screen: Console, *, takeover: bool):
    """Opens everything that can be wrong, and claims the workdir; the arguments are those of `train`."""
    self._workdir, self._folder, self._screen = workdir, workdir.folder, screen
    self._takeover = takeover
    self._config = config = preprocessing.resolved(config, self._folder)
    # The config first: data of another run may be of other classes.
    with resume.claim(
      config, self._folder, begun=resume.has_begun(workdir.checkpoints), takeover=takeover
    ) as note:
      screen.say(workdir.named(note))
      self._open(config)
      self._restored, meta = resume.restore(self._manager, self._run, takeover=takeover)
      # The frozen parameters of an adapter's base, and what checkpoints say of it.
      self._base, self._base_meta = {}, meta.get('base')
      self._teachers_there = meta.get('teachers', {})
      workdir.check()  # a restore may take long
    # Only process 0 looks: it is the one that writes it into checkpoints.
    self._data = resume.data_versions(self._source) if jax.process_index() == 0 else {}
    resume.warn_of_changed_data(meta, self._data)
    self._begins = self._restored is None  # rather than goes on, be it from the checkpoint of step 0
    self._warned = False
    self._first_step = 0 if self._restored is None else int(self._restored.step)
    self._stopper = EarlyStopping.restored(config.stop, meta)
    period = self._run.timeline.period
    self._log_every = min(period(config.log_every), max(self._run.timeline.total // _LINES, 1))
    logged = None if self._begins else self._first_step
    tracker = open_tracker(config, self._folder, logged)
    self._log = MetricsLog(self._folder, logged, self._log_every, tracker)
    self._log.board.config(config)
    listed = 0 if self._begins else max(self._first_step, 1)  # those of step 0 are the probe's too
    self._pipeline.bad_images.keep_in(_bad_images_path(self._folder), listed)
    screen.setup(self._run, self._evaluators, self._folder)
    self._say_what_was_evaluated(meta)

  def _open(self, config: Config) -> None:
    """Opens the data, the evaluators and the checkpoints."""
    self._run, self._source = open_training(config, resume.stored_classes(self._workdir.checkpoints))
    memory.check(self._run)
    self._evaluators = self._run.open_evaluators()
    agreement.check(self._run, self._evaluators)
    self._pipeline = TrainPipeline(
      self._source,
      config.data,
      batch_size=config.batch_size,
      seed=config.seed,
      sharding=mesh_lib.batch_sharding(self._run.mesh),
      data_at=self._run.resizing.data,
      captions=self._run.captions(),
      extra_crops=config.objective.extra_crops(config.data),
    )
    keep_every, best = config.checkpoint.keep_every, config.checkpoint.best
    self._manager = Manager(
      self._workdir.checkpoints,
      config.checkpoint,
      keep_every_steps=None if keep_every is None else self._run.timeline.interval(keep_every),
      lower_is_better=best is not None and not metric_kind(best).higher_is_better,
      before_commit=self._workdir.before_commit,
    )

  def _say_what_was_evaluated(self, meta: Mapping[str, Any]) -> None:
    """Tells the screen of how many images the numbers of a run that goes on, or has ended, are."""
    if self._begins:
      return
    self._screen.say(resume.changed_evaluators_text(meta, examples_of(self._evaluators)))
    if self._first_step >= self._run.timeline.total or self._stopper.due:
      self._screen.counted(meta.get('evaluated', {}))

  def _begin(self) -> tuple[TrainState, Any, dict[tuple[int, ...], jax.stages.Compiled]]:
    """The state to go on from, the parameters of the frozen models, and the compiled steps."""
    run, screen, restored, self._restored = self._run, self._screen, self._restored, None
    initial, text = dict[str, np.ndarray](), ''
    if run.config.adapter.rank:
      self._base, initial, self._base_meta, text = read_base(run, self._base_meta)
    elif restored is None:
      initial, text = read_initial(run.config, run.architecture, run.dataset.class_names)
      check_arrays('the parameters of config.init.checkpoint', initial)
    if restored is None:
      screen.say(text)
    frozen, text = run.frozen.read(run.dataset.class_names)
    if self._base:
      frozen = (*frozen, self._base)
    screen.say(text)
    steps: dict[tuple[int, ...], jax.stages.Compiled] = {}
    keeps_head = any(name.startswith('head/') for name in initial)
    with ThreadPoolExecutor() as threads:  # the first state is a program to compile too
      begun = threads.submit(lambda: restored or initial_state(run.program, run.config.seed, initial))
      if self._first_step < run.timeline.total:
        resume.check_teachers(self._teachers_there, run.frozen.digests, takeover=self._takeover)
        screen.say('Compiling the training step …')
        steps = _compiled_steps(run, self._first_step)
        screen.memory(run.program, steps[self._config.data.input_size])
    state = begun.result()
    if restored is None:
      state = self._probed(state, keeps_head=keeps_head)
    else:
      screen.say(f'Resuming from step {self._first_step} ({self._manager.path(self._first_step)})')
    return state, frozen, steps

  def loop(self, profiler: Profiler, on_step: OnStep | None) -> TrainState:
    """Trains, evaluates and saves to the end; see `train`."""
    config, total, stopper, screen = self._config, self._run.timeline.total, self._stopper, self._screen
    workdir, (state, frozen, steps) = self._workdir, self._begin()
    occurs, histograms = self._run.timeline.occurs, config.tensorboard.histograms
    speed = Speedometer(self._run)
    guard = FiniteGuard(config, self._pipeline, self._manager, self._folder)
    hang = self._folder / 'report' / f'hang_{jax.process_index()}.txt'
    with (
      # First, so that a signal cannot end the last save.
      StopSignal(saved=not self._begins, places=_places(config, self._folder)) as stop,
      self._manager,
      contextlib.closing(self._log),
      contextlib.closing(screen),
      self._pipeline.stream(self._first_step, total) as batches,
      Watchdog(config.step_limit, hang, workdir) as watchdog,
    ):
      speed.restart()
      screen.begin(self._first_step, total)
      if self._begins:
        with stop.busy():
          stop.saved = self._before_first_step(state, watchdog)
        speed.restart()
      for step in stopper.steps(self._first_step, total):
        last = step == total
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
        if step % self._log_every == 0 or last:
          workdir.check()
          guard.flush()
          values = _training_values(step_metrics) | self._pipeline.bad_images.report(step) | speed.read(step)
          screen.training(step, total, values)
          self._warn(values, step / total)
        scores: dict[str, float] = {}
        due = self._due(step, last)
        if due:
          with watchdog.paused(), stop.busy():
            scores = self._evaluate(state, step, due, last=last, watchdog=watchdog)
          last = last or stopper.due
        if values or scores:
          self._log.write(step, values | scores)
        self._draw_first_batch(step, speed)
        stopping = not last and stop.stop_requested(step)
        saving = occurs(config.checkpoint.every, step) or last or stopping
        if saving:
          guard.flush()
          self._log.sync()
          with watchdog.paused(), stop.busy():
            self._save(step, state, scores)
          stop.saved = True
        if stopping:
          raise Preempted(f'Stopped at step {step} of {total} after saving {self._manager.path(step)}.')
        if histograms and occurs(histograms, step):
          self._log.board.histograms(step, state.params)
        if on_step is not None:
          on_step(step, state, values | scores)
        if values or scores or saving:
          speed.restart()
      stop.leave()
      workdir.check()
      self._log.complete = True
      self._finish(state)
    workdir.discard(FEATURES)
    if jax.process_index() == 0:
      self._say_the_end(int(state.step))
    return state

  def _say_the_end(self, step: int) -> None:
    """Draws the curves, and says what has come out and how to use it."""
    if step:
      figures.save_curves(self._folder, self._config)
    self._screen.finished(step, self._folder, self._manager.path(step))
    if self._config.begins_trained and self._config.objective.class_scores() is not None:
      commands = (f'vit_jax {name} --checkpoint={self._folder}' for name in ('predict', 'evaluate'))
      self._screen.say(self._workdir.named(f'Next: {" photo.jpg, or ".join(commands)} FOLDER'))

  def _probed(self, state: TrainState, *, keeps_head: bool) -> TrainState:
    """The state of step 0, with a probe in its head where the config says so and it keeps none of a checkpoint."""
    run, screen = self._run, self._screen
    if run.config.init.head == 'probe' and keeps_head:
      screen.say("Head: the checkpoint's own, which config.init.reinitialise does not name; it is not probed")
    elif run.config.init.head == 'probe':
      screen.say('Head: computing the features of the training images, once …')
      limited, bad_images = screen.with_progress('Features'), self._pipeline.bad_images
      variables = run.program.whole(state, self._base).variables
      state, text = with_probe(run, self._source, state, variables, bad_images, self._folder, limited)
      screen.say(text)
    return state

  def _draw_first_batch(self, step: int, speed: Speedometer) -> None:
    """Draws what the first step was given, after it, so that it did not wait for the picture."""
    if step == 1:
      figures.draw_first_batch(self._run, self._pipeline.batch(0), self._folder)
      self._log.board.picture(0, 'first_batch', self._folder / 'report' / 'first_batch.png')
      speed.restart()

  def _before_first_step(self, state: TrainState, watchdog: Watchdog) -> bool:
    """Evaluates what training begins with, unless that is random, and saves a probed head; whether it has saved."""
    config, scores = self._config, dict[str, float]()
    if self._evaluators and config.begins_trained:
      last = self._run.timeline.total == 0
      scores = self._evaluate(state, 0, self._evaluators, last=last, watchdog=watchdog)
      self._log.write(0, scores | self._pipeline.bad_images.report(1))
    if config.init.head == 'constant':
      return False
    self._log.sync()
    self._save(0, state, scores)
    return True

  def _warn(self, values: Mapping[str, float], progress: float) -> None:
    """Says, once, what the objective makes of the logged values where nothing more is learned."""
    text = None if self._warned else self._config.objective.warning(values, progress)
    if text is not None:
      self._screen.say(f'Warning: {text}')
      self._warned = True

  def _due(self, step: int, last: bool) -> dict[str, Evaluator]:
    """The evaluators that run after a step."""
    occurs, options = self._run.timeline.occurs, self._config.evaluators
    return {
      name: item for name, item in self._evaluators.items() if last or occurs(options[name].every, step)
    }

  def _evaluate(
    self, state: TrainState, step: int, due: Mapping[str, Evaluator], *, last: bool, watchdog: Watchdog
  ) -> dict[str, float]:
    """The metrics of the evaluators that are due, which are told to the screen and to early stopping."""
    self._workdir.check()
    ending = last or self._stopper.may_end
    report = Report(self._folder / 'report', self._config.tensorboard.pictures) if ending else None
    limited = self._screen.with_progress(
      'Evaluation', lambda batches: self._workdir.checked(watchdog.limited(batches))
    )
    state = self._run.program.whole(state, self._base)
    scores = evaluate(state, due, report, limited)
    self._stopper.update(step, scores)
    if self._stopper.due:  # the end, at which all run
      others = {name: item for name, item in self._evaluators.items() if name not in due}
      scores |= evaluate(state, others, report, limited)
    self._screen.evaluation(step, scores)
    self._workdir.check()  # it may have taken long
    return scores

  def _save(self, step: int, state: TrainState, scores: dict[str, float]) -> None:
    """Saves a checkpoint with the scores of now, of which any may be `checkpoint.best` when the run goes on."""
    meta = (
      resume.checkpoint_meta(self._run, examples_of(self._evaluators)) | self._data | self._stopper.meta()
    )
    if self._base:
      meta['base'] = self._base_meta
    if self._run.frozen.digests:
      meta['teachers'] = self._run.frozen.digests
    self._manager.save(step, state.items(), meta, metrics=scores or None)

  def _finish(self, state: TrainState) -> None:
    """Says whether the run ended early, and draws what it has learned; a run that was complete is left alone."""
    step, report, config = int(state.step), self._folder / 'report', self._config
    if self._stopper.due:
      self._screen.say(self._stopper.text(step, self._run.timeline.total))
    if (step == self._first_step and not self._begins) or not config.tensorboard.pictures:
      return
    variables = self._run.program.whole(state, self._base).variables
    figures.draw_attention(self._run, variables, self._pipeline.batch(0), self._folder)
    self._log.board.picture(step, 'attention', report / 'attention.png')
    for name in config.evaluators:
      for evaluated in (name, f'{name}{EMA_SUFFIX}'):
        self._log.board.picture(step, f'{evaluated}/confusion', report / f'{evaluated}_confusion.png')


def _places(config: Config, folder: pathlib.Path) -> list[pathlib.Path]:
  """The workdir and, where they are on this machine, the training data."""
  _, place, _ = sources.parse(config.data.source, config.data.split)
  data = pathlib.Path(place).expanduser()
  return [folder, data] if place and '://' not in place and data.exists() else [folder]


def _compiled_steps(run: Run, first_step: int) -> dict[tuple[int, ...], jax.stages.Compiled]:
  """The compiled training step for each image size that is still to come."""
  program = run.program
  return {
    size: program.step.lower(program.state, program.batch_of(size), run.frozen_shapes).compile()
    for size in run.resizing.sizes_from(first_step)
  }


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
