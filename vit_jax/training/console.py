"""The screen of a run: lines on process 0, and below them a progress bar where there is a terminal."""

import math
import pathlib
import shutil
import sys
import textwrap
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from typing import Any

import jax
import tqdm

from vit_jax.adapters import lora
from vit_jax.data.on_device import Batch
from vit_jax.evaluation.base import Evaluator, Limited, examples_of, format_metric, metric_kind
from vit_jax.foundation import pytrees, text_table
from vit_jax.parallel.sharding import device_bytes
from vit_jax.training.metrics import read_metrics
from vit_jax.training.optimizer import trainable_mask
from vit_jax.training.run import Run
from vit_jax.training.step import Program
from vit_jax.training.timeline import Timeline

_MIB = 2**20
_ABSURD_EPOCHS = 2_000  # the paper's longest fine-tuning, on the 1,000 images of VTAB, has 1,280
_SECONDS_OF_SILENCE = 15.0  # before one is told how far an evaluation is
_MOST_SECONDS_OF_SILENCE = 60.0  # between two such lines
_NARROWEST_BAR = 10  # cells of the bar itself, whatever stands behind it


class Console:
  """Prints on process 0 only; the progress bar, if there is one, stays below the lines."""

  def __init__(self) -> None:
    self._prints = jax.process_index() == 0
    self._bar: tqdm.tqdm | None = None
    self._numbers: list[str] = []  # behind the bar, of the last logged step
    self._counted: dict[str, int] = {}  # evaluator -> images

  def setup(self, run: Run, evaluators: Mapping[str, Evaluator], folder: pathlib.Path) -> None:
    """What the run is: its devices, parameters, data and length; the table of parameters goes to report/."""
    params = lora.beside(run.program.base, run.program.state.params)
    self.say(devices_text(run.mesh))
    self.say(run.chosen)
    self.say(parameters_text(params, run.config.model.describe()))
    if self._prints:
      (folder / 'report' / 'parameters.txt').write_text(parameter_table(params) + '\n', encoding='utf-8')
    if run.config.adapter.rank:
      sizes = [
        sum(leaf.size for leaf in jax.tree.leaves(tree)) for tree in (run.program.state.params, params)
      ]
      self.say(f'Adapter: {sizes[0]:,} parameters are trained and saved, beside a base of {sizes[1]:,}')
    self.say(training_data_text(run))
    self.evaluators(evaluators)
    timeline = run.timeline
    self.say(length_text(run))
    if timeline.epochs > _ABSURD_EPOCHS:
      self.say(length_warning(timeline))

  def evaluators(self, evaluators: Mapping[str, Evaluator]) -> None:
    """What is evaluated, and of how many images the accuracies will be."""
    self.counted(examples_of(evaluators))
    for line in evaluator_lines(evaluators):
      self.say(line)

  def counted(self, images: Mapping[str, int]) -> None:
    """Of how many images the numbers of each evaluator are; they are not said of one that is not named."""
    self._counted = dict(images)

  def memory(self, program: Program, compiled: Any) -> None:
    """Estimated bytes that a device needs for the training step, by the compiler."""
    state = program.state
    parts = {
      'parameters': device_bytes((state.variables, program.base)),
      'optimizer state': device_bytes(state.opt_state),
      **({'EMA': device_bytes(state.ema)} if state.ema else {}),
      'activations and temporaries': compiled.memory_analysis().temp_size_in_bytes,
    }
    texts = (f'{size / _MIB:,.0f} MiB {name}' for name, size in parts.items())
    self.say(f'Memory per device, estimated: {", ".join(texts)}')

  def begin(self, first_step: int, total_steps: int) -> None:
    """Shows the bar, if this is a terminal. Its time begins now."""
    if self._prints and first_step < total_steps and sys.stderr.isatty():
      self._bar = tqdm.tqdm(
        total=total_steps,
        initial=first_step,
        bar_format='{percentage:3.0f}% |{bar}| {n_fmt}/{total_fmt} [{elapsed}{postfix}]',
        dynamic_ncols=True,
      )

  def step(self, seconds_left: float | None) -> None:
    """A step is done; the time to the end, where it is known, counts down with every step."""
    if self._bar is not None:
      texts = [] if seconds_left is None else [f'{_time_text(seconds_left)} left']
      self._bar.set_postfix_str(self._fitting([*texts, *self._numbers]), refresh=False)
      self._bar.update()

  def _fitting(self, texts: Sequence[str]) -> str:
    """As many of the texts as leave the bar some width, the first first."""
    assert self._bar is not None
    total = str(self._bar.total)
    around = len('100% || / [0:00:00]') + 2 * len(total) + _NARROWEST_BAR
    room = _columns() - around
    shown = ''
    for text in texts:
      if len(shown) + len(text) + 2 > room:
        break
      shown += f', {text}'
    return shown.removeprefix(', ')

  def say(self, text: str) -> None:
    """Prints lines above the bar, unless they are empty."""
    if text and self._bar is not None:
      self._bar.write(text)
    elif text and self._prints:
      print(text, flush=True)

  def training(self, step: int, total: int, values: dict[str, float]) -> None:
    """The numbers of a logged step: behind the bar, or as a line."""
    self._numbers = _training_texts(values)
    if self._bar is None:
      left = [f'{_time_text(values["perf/eta_s"])} left'] if 'perf/eta_s' in values else []
      self.say(f'step {step}/{total}: {", ".join([*self._numbers, *left])}')

  def with_progress(self, what: str, limited: Limited = iter) -> Limited:
    """`limited` of `Evaluator.run`, which also says how far `what` is: after 15, 30 and 60 s, then each minute."""

    def reporting(batches: Iterable[Batch]) -> Iterator[Batch]:
      total = len(batches) if isinstance(batches, Sized) else None
      begin, silence = time.monotonic(), _SECONDS_OF_SILENCE
      for done, batch in enumerate(limited(batches)):
        seconds = time.monotonic() - begin
        if done and seconds > silence:
          self.say(progress_text(what, done, total, seconds))
          silence = seconds + min(seconds, _MOST_SECONDS_OF_SILENCE)
        yield batch

    return reporting

  def evaluation(self, step: int, values: dict[str, float]) -> None:
    """The numbers of an evaluation, on a terminal in lines that fit."""
    # A name and its value stay in one line: textwrap does not break at the no-break space.
    texts = [self._metric_text(name, value).replace(' ', '\xa0') for name, value in sorted(values.items())]
    line = f'step {step}: {", ".join(texts)}'
    if self._bar is not None:
      line = textwrap.fill(line, _columns() - 1, subsequent_indent='  ', break_long_words=False)
    self.say(line.replace('\xa0', ' '))

  def finished(self, total: int, folder: pathlib.Path, checkpoint: str) -> None:
    """The last line: the results and where they lie."""
    lines = read_metrics(folder)
    final = lines[-1] if lines else {}
    names = [name for name in final if metric_kind(name).headline and not name.startswith('train/')]
    results = [self._metric_text(name, final[name]) for name in names]
    result = ', '.join(results) or f'train/loss {final.get("train/loss")}'
    if lines and lines[0]['step'] == 0 < final['step']:
      self.say(loss_text(names, lines[0], final))
    self.say(f'Done{f" after {total:,} steps" if total else ""}: {result}; checkpoint: {checkpoint}')

  def _metric_text(self, name: str, value: float) -> str:
    """'val/loss 0.1462', or 'val/accuracy 95.56% of 45 images' where it is a headline and the evaluator is known."""
    text = f'{name} {format_metric(name, value)}'
    owners = [owner for owner in self._counted if name.startswith((f'{owner}/', f'{owner}_'))]
    if not (owners and metric_kind(name).headline):
      return text
    return f'{text} of {_images(self._counted[max(owners, key=len)])}'

  def close(self) -> None:
    """Ends the bar."""
    if self._bar is not None:
      self._bar.close()


def _training_texts(values: dict[str, float]) -> list[str]:
  """The numbers of a logged step, the most important first."""
  texts = [f'loss {values["train/loss"]:.4f}']
  if 'train/accuracy' in values:
    texts.append(f'accuracy {values["train/accuracy"]:.1%}')
  if 'perf/images_per_second' in values:
    texts.append(f'{values["perf/images_per_second"]:,.0f} images/s')
    if 'perf/mfu' in values:
      texts.append(f'MFU {values["perf/mfu"]:.1%}')
    texts.append(f'data wait {values["perf/data_wait"]:.1%}')
  return texts


def _columns() -> int:
  """Characters in a line of the terminal."""
  return shutil.get_terminal_size().columns


def _time_text(seconds: float) -> str:
  """'1:02:03' or '2:03'."""
  minutes, seconds = divmod(round(seconds), 60)
  hours, minutes = divmod(minutes, 60)
  return f'{hours}:{minutes:02}:{seconds:02}' if hours else f'{minutes}:{seconds:02}'


def progress_text(what: str, done: int, total: int | None, seconds: float) -> str:
  """'Evaluation: 3 of 12 batches, about 1:05 left'; 'Evaluation: 3 batches' where nobody knows of how many."""
  if total is None:
    return f'{what}: {done} batches'
  return f'{what}: {done} of {total} batches, about {_time_text(seconds / done * (total - done))} left'


def devices_text(mesh: jax.sharding.Mesh) -> str:
  """'Devices: 8 × TPU v3; mesh: data 4, fsdp 2'."""
  devices = mesh.devices.flatten()
  axes = ', '.join(f'{axis} {size}' for axis, size in mesh.shape.items() if size > 1) or 'one device'
  processes = f', {jax.process_count()} processes' if jax.process_count() > 1 else ''
  return f'Devices: {devices.size} × {devices[0].device_kind}{processes}; mesh: {axes}'


def training_data_text(run: Run) -> str:
  """The training data with its size and the first classes."""
  config, names = run.config, run.dataset.class_names
  shown = f'{len(names)} classes: ' + ', '.join(names[:10]) + (', …' if len(names) > 10 else '')
  return (
    f'Training data: {config.data.title}, {run.dataset.examples:,} images, {shown if names else "no classes"}'
  )


def evaluator_lines(evaluators: Mapping[str, Evaluator]) -> list[str]:
  """'Evaluator val: folder:/photos val, 45 images' of each, and its notes."""
  lines: list[str] = []
  for name, evaluator in evaluators.items():
    said = filter(None, [evaluator.title, _images(evaluator.examples)])
    lines += [f'Evaluator {name}: {", ".join(said)}', *evaluator.notes]
  return lines


def _images(count: int) -> str:
  return f'{count:,} image{"" if count == 1 else "s"}'


def length_text(run: Run) -> str:
  """'Run: 50 steps of 16 images, 4 epochs', and how often features are computed where only the head is trained."""
  timeline = run.timeline
  if not timeline.total:
    return 'Run: the head is fitted to features that are computed once; no step follows'
  text = f'Run: {timeline.total:,} steps of {timeline.batch_size} images, {timeline.epochs:.4g} epochs'
  trained = pytrees.flatten(trainable_mask(run.config.optimizer, run.program.state.params))
  if all(path.startswith(('head/', 'distillation_head/')) for path, trains in trained.items() if trains):
    text += (
      '; only the head is trained, and its features are computed in each epoch anew '
      "(config.init.head='probe' with config.total='0 steps' computes them once, of images without random crops)"
    )
  return text


def loss_text(names: Sequence[str], first: Mapping[str, float], last: Mapping[str, float]) -> str:
  """A sentence about the metrics that training has made worse than they were before the first step; '' of none."""
  worse = [
    f'{name} ends at {format_metric(name, last[name])} and was {format_metric(name, first[name])} before the first step'
    for name in names
    if name in first
    and (last[name] < first[name]) == metric_kind(name).higher_is_better
    and last[name] != first[name]
  ]
  remedy = 'lower schedule.learning_rate or optimizer.layer_decay, or lengthen schedule.warmup'
  return f'Training did harm: {", ".join(worse)}; {remedy}.' if worse else ''


def length_warning(timeline: Timeline) -> str:
  """A sentence about a run that sees its few images absurdly often."""
  return (
    f'Warning: the {timeline.examples:,} images are seen {timeline.epochs:,.0f} times each; if that is not '
    f'meant, lower config.total, or use configs/finetune.py:CHECKPOINT,DATA, which fits the length to the data.'
  )


def parameters_text(params: dict[str, Any], model: str) -> str:
  """'Model: Vision Transformer, …; 202,058 parameters, 0.8 MiB (report/parameters.txt)'."""
  leaves = jax.tree.leaves(params)
  count, size = sum(math.prod(leaf.shape) for leaf in leaves), sum(map(_mib, leaves))
  return f'Model: {model}; {count:,} parameters, {size:,.1f} MiB (report/parameters.txt has the table)'


def parameter_table(params: dict[str, Any]) -> str:
  """Path, shape, size and sharding of each parameter (an array or a ShapeDtypeStruct), and their sum."""
  leaves = pytrees.flatten(params)
  rows = [('parameter', 'shape', 'MiB', 'split over')]
  for path, leaf in leaves.items():
    rows.append((path, ' × '.join(map(str, leaf.shape)), f'{_mib(leaf):.2f}', _spec_text(leaf.sharding.spec)))
  count = sum(math.prod(leaf.shape) for leaf in leaves.values())
  rows.append(('total', f'{count:,}', f'{sum(map(_mib, leaves.values())):.2f}', ''))
  return text_table.ruled(rows, right=(2,))


def _mib(leaf: Any) -> float:
  return math.prod(leaf.shape) * leaf.dtype.itemsize / _MIB


def _spec_text(spec: jax.sharding.PartitionSpec) -> str:
  return ', '.join(f'{axis} (axis {i})' for i, axis in enumerate(spec) if axis is not None) or '-'
