"""One run of a transfer: fine-tuning, an ordinary training run in a workdir of its own; or a few-shot probe.

What ended leaves `result.json` and is not done again; what was stopped goes on, as every run does.
"""

import contextlib
import json
import pathlib
import shutil
import time
from typing import Any, NamedTuple

import jax
import numpy as np

from vit_jax import config as config_lib
from vit_jax import durations
from vit_jax.data import sources
from vit_jax.models import flops
from vit_jax.parallel import mesh as mesh_lib
from vit_jax.training import evaluators, initialization, loop
from vit_jax.training.metrics import read_metrics
from vit_jax.training.step import make_train_step
from vit_jax.training.workdir import claim_workdir


class Result(NamedTuple):
  """What a run ended with.

  Attributes:
    metrics: of its last evaluation, such as 'test/accuracy'.
    flops: of the model in training, forward and backward; of a probe of its features.
    seconds: on the clock, of the probe or of all training steps, but for those that a kill made it do again.
    devices: how many worked on it.
    device: what JAX calls them.
    notes: what a reader of the result should know.
  """

  metrics: dict[str, float]
  flops: float
  seconds: float
  devices: int
  device: str
  notes: list[str]


def finetune(config: config_lib.Config, workdir: pathlib.Path, *, keep: bool) -> Result:
  """Trains to the end, unless that was done; what is printed goes to `log.txt`.

  Args:
    config: the run.
    workdir: where it is, or will be.
    keep: the checkpoints; without, only numbers stay once it has ended.

  Raises:
    UserError: as `loop.train`; or a run of another config is there.
    Preempted: the run was asked to stop and has saved.
  """
  known = _read(config, workdir)
  if known is not None:
    return known
  with _printing_to(workdir):
    loop.train(config, workdir)
  lines, before, seconds = read_metrics(workdir), 0, 0.0
  for line in lines:
    if 'perf/step_ms' in line:
      seconds += (line['step'] - before) * line['perf/step_ms'] / 1000
      before = line['step']
  final = {name: value for name, value in lines[-1].items() if name.split('/')[0] in config.evaluators}
  result = _result(final, _training_flops(config), seconds)
  _write(result, workdir)
  if not keep and jax.process_index() == 0:
    shutil.rmtree(workdir / 'checkpoints')
  return result


def probe(config: config_lib.Config, workdir: pathlib.Path) -> Result:
  """The config's evaluators, all of type 'fewshot', of its parameters at step 0; as `finetune`."""
  known = _read(config, workdir)
  if known is not None:
    return known
  claim_workdir(config, workdir)
  mesh = mesh_lib.make_mesh(config.mesh)
  with _printing_to(workdir):
    opened = evaluators.open_evaluators(config, (), mesh)
    program = make_train_step(config, mesh, num_classes=1, examples=1)
    state = initialization.start(program, config.seed, initialization.load(config, program, print))
    begin = time.perf_counter()
    scores = evaluators.evaluate(program, state, opened)
    seconds = time.perf_counter() - begin
  images = max(evaluator.images for evaluator in opened.values())
  forward = _forward_flops(config, num_classes=1)
  few = next(iter(opened.values())).too_few
  result = _result(scores, images * forward, seconds)
  if few:
    result.notes.append(f'{len(few)} classes have fewer images than shots and validation take: {_shown(few)}')
  _write(result, workdir)
  return result


def _shown(few: dict[str, int]) -> str:
  shown = ', '.join(f'{name} ({count})' for name, count in list(few.items())[:5])
  return shown + (', …' if len(few) > 5 else '')


def _result(metrics: dict[str, float], total: float, seconds: float) -> Result:
  return Result(metrics, total, seconds, jax.device_count(), jax.devices()[0].device_kind, [])


def _training_flops(config: config_lib.Config) -> float:
  source = sources.open_training(config.data, config.seed)
  steps = durations.steps(config.total, batch_size=config.batch_size, examples=len(source))
  forward = _forward_flops(config, config.head_size(len(source.class_names)))
  return float(steps * config.batch_size * flops.train_flops(forward))


def _forward_flops(config: config_lib.Config, num_classes: int) -> float:
  data = config.data
  return float(
    flops.forward_flops(
      config.model, image_size=data.image_size, channels=data.channels, num_classes=num_classes
    )
  )


def _read(config: config_lib.Config, workdir: pathlib.Path) -> Result | None:
  """The result of the run that ended in `workdir`, if one did; raises UserError if its config was another."""
  path = workdir / 'result.json'
  if not path.exists():
    return None
  claim_workdir(config, workdir)
  return Result(**json.loads(path.read_text()))


def _write(result: Result, workdir: pathlib.Path) -> None:
  if jax.process_index() == 0:
    write_json(workdir / 'result.json', result._asdict())


def write_json(path: pathlib.Path, content: Any) -> None:
  """Writes a file whole or not at all."""
  partial = path.with_suffix('.json.partial')
  partial.write_text(json.dumps(content, indent=2, default=_plain) + '\n')
  partial.replace(path)


def _plain(value: Any) -> Any:
  if isinstance(value, np.generic):
    return value.item()
  raise TypeError(f'{value!r} cannot be written as JSON')


@contextlib.contextmanager
def _printing_to(workdir: pathlib.Path):
  workdir.mkdir(parents=True, exist_ok=True)
  name = f'log_{jax.process_index()}.txt' if jax.process_index() else 'log.txt'
  with (workdir / name).open('a', buffering=1) as file, contextlib.redirect_stdout(file):
    yield
  jax.clear_caches()  # the next run has programs of its own
