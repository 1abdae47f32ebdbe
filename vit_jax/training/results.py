"""A training run that ends in `result.json`: once it has ended it is not done again; stopped, it goes on."""

import contextlib
import json
import logging
import math
import pathlib
import shutil
from collections.abc import Iterator
from typing import NamedTuple

import jax

from vit_jax.config import Config
from vit_jax.foundation import files
from vit_jax.foundation.errors import NotFinite, UserError
from vit_jax.pretrained import formats
from vit_jax.training import loop, preprocessing
from vit_jax.training.metrics import read_metrics, training_seconds
from vit_jax.training.resume import claim
from vit_jax.training.run import open_training
from vit_jax.training.workdir import Workdir, open_workdir

_log = logging.getLogger(__name__)

_FILE, _BEGUN_FROM = 'result.json', 'begun_from.txt'


class Result(NamedTuple):
  """How a run ended."""

  metrics: dict[str, float]  # of its last evaluation, such as 'test/accuracy'
  flops: float  # model FLOPs of training, forward and backward; of a probe those of the features
  seconds: float  # wall-clock time of the probe, or of all training steps; steps that a kill lost count once
  devices: int  # how many worked on it
  device: str  # what JAX calls them
  notes: list[str]  # what a reader of the result should know
  images: int = 0  # of the training data; 0: of a probe, or not known
  begun_from: str = ''  # digest of what config.init.checkpoint held at the start; '': none, or not known


def train(config: Config, place: Workdir | pathlib.Path, *, keep: bool, may_diverge: bool = False) -> Result:
  """Trains to the end, unless that is done; what it prints goes to `log.txt`. Its checkpoints stay if `keep`.

  With `may_diverge` a run whose loss is not finite ends, with metrics of NaN. Raises as `loop.train`, and UserError
  where a run of another config is there.
  """
  folder = place.folder if isinstance(place, Workdir) else place
  config = preprocessing.resolved(config, folder)
  known = read(config, folder)
  if known is not None:
    return known
  with open_workdir(place) as workdir:
    begun_from = _begun_from(config, folder)
    diverged = False
    with output_in_log(folder):
      try:
        loop.train(config, workdir)
      except NotFinite:
        if not may_diverge:
          raise
        diverged = True
    lines = read_metrics(folder)
    if not lines and not diverged:  # of a run that had ended already
      raise UserError(
        f'{folder}/metrics.jsonl is lost, and the results with it; remove {folder} to train again.'
      )
    given, last = set(config.metric_names()), lines[-1] if lines else {}
    metrics = {name: value for name, value in last.items() if name in given}
    if diverged:
      metrics = dict.fromkeys(given, math.nan)
    run, _ = open_training(config)
    flops = run.training_flops(int(last.get('step', 0)))
    result = of(metrics, flops, training_seconds(lines), images=run.dataset.examples)
    result = result._replace(begun_from=begun_from)
    workdir.check()
    write(result, folder)
    if not keep and jax.process_index() == 0:
      shutil.rmtree(folder / 'checkpoints')
  return result


def of(metrics: dict[str, float], flops: float, seconds: float, images: int = 0) -> Result:
  """The result of a run of this process that has ended just now; the arguments are those of `Result`."""
  return Result(metrics, flops, seconds, jax.device_count(), jax.devices()[0].device_kind, [], images)


def read(config: Config, workdir: pathlib.Path) -> Result | None:
  """The result of the run that has ended in `workdir`; None if none has, or it is damaged: it is moved aside.

  Raises UserError where its config is another one, or the checkpoint that it began from holds something else now.
  """
  path = workdir / _FILE
  if not path.exists():
    return None
  with claim(config, workdir, begun=True, takeover=False):
    pass
  try:
    result = Result(**json.loads(path.read_bytes()))
    if not isinstance(result.metrics, dict):
      raise TypeError('its metrics are not an object')
  except (ValueError, TypeError, RecursionError) as error:
    aside = files.move_aside(path) if jax.process_index() == 0 else f'{path}.damaged'
    _log.warning('%s is damaged (%s); it was moved to %s, and the run is done again.', path, error, aside)
    return None
  now = result.begun_from
  with contextlib.suppress(UserError):  # what it began from need not be there any more
    now = contents(config)
  if result.begun_from not in ('', now):
    raise UserError(
      f'{workdir} began from {config.init.checkpoint}, which holds something else now, so that one table would have '
      'results of both; restore what was there, or begin a new --workdir.'
    )
  metrics = {name: math.nan if value is None else value for name, value in result.metrics.items()}
  return result._replace(metrics=metrics)


def contents(config: Config) -> str:
  """A digest of what config.init.checkpoint holds now; '' where there is none. UserError: it is not there."""
  return formats.contents(config.init.checkpoint) if config.init.checkpoint else ''


def _begun_from(config: Config, folder: pathlib.Path) -> str:
  """What `contents` was when the run began, which a file in its workdir keeps; '' of one that lacks it."""
  path = folder / _BEGUN_FROM
  if not path.exists() and not (folder / 'checkpoints').exists():
    now = contents(config)
    if jax.process_index() == 0:
      files.write_text(path, now)
    return now
  with contextlib.suppress(OSError, ValueError):
    return path.read_text(encoding='utf-8')
  return ''


def has_ended(workdir: pathlib.Path) -> bool:
  """Whether a run has ended in `workdir`; `read` finds out whether its result is whole."""
  return (workdir / _FILE).exists()


def write(result: Result, workdir: pathlib.Path) -> None:
  """Writes `result.json`; a metric that is not a number is null there."""
  if jax.process_index() == 0:
    files.write_json(workdir / _FILE, result._asdict())


@contextlib.contextmanager
def output_in_log(workdir: pathlib.Path) -> Iterator[None]:
  """Appends what is printed to the process's log in `workdir`."""
  files.make_directories(workdir)
  index = jax.process_index()
  path = workdir / (f'log_{index}.txt' if index else 'log.txt')
  with path.open('a', buffering=1, encoding='utf-8') as file, contextlib.redirect_stdout(file):
    yield
  jax.clear_caches()  # the next run has programs of its own
