"""Going on with the run in a workdir: whose config it has, and the state of its newest checkpoint."""

import contextlib
import json
import logging
import os
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax

from vit_jax import config as config_lib
from vit_jax.checkpoint.config import CheckpointConfig
from vit_jax.checkpoint.manager import Manager
from vit_jax.config import Config
from vit_jax.data.sources import Source
from vit_jax.foundation import durations, files, foreign_files
from vit_jax.foundation.errors import UserError
from vit_jax.training.run import Run
from vit_jax.training.state import TrainState

TAKEOVER = 'takeover.json'  # the config of the last takeover
_log = logging.getLogger(__name__)


@contextlib.contextmanager
def claim(config: Config, workdir: pathlib.Path, *, begun: bool, takeover: bool) -> Iterator[str]:
  """Checks that a workdir is free, or that its run has the same config; it is the config's after the block.

  A workdir belongs to a run from its first checkpoint on (`begun`); before that, another config takes it over. From
  then on the config counts that the checkpoint holds under its digest, whatever became of config.json; or the one
  that took over, which is kept in takeover.json since it may have no checkpoint yet. A damaged config.json is moved
  aside. It is written when the block ends without an error: inside, the caller finds out whether a checkpoint fits.

  Yields:
    Sentences for the person where another config is taken over, or config.json was edited, is damaged or missing,
    else ''.

  Raises:
    UserError: a run of another config has begun there, or neither config.json nor a checkpoint can be read.
  """
  path, record = workdir / 'config.json', workdir / TAKEOVER
  written, damage = _config_or_damage(path)
  known = written
  if begun:
    known = _config_or_damage(record)[0] or stored_config(workdir) or written
    if known is None:
      raise _unrepairable(UserError(damage), path)
  edited = known and written and config_lib.differing_options(known, written)
  differing = config_lib.differing_options(known, config) if known else []
  notes = []
  if edited and not differing:
    notes.append(f'{path} was edited ({", ".join(edited)}); it is written again as the checkpoints have it.')
  if known and differing:
    title = f'{workdir}, whose config.json was edited,' if edited else f'{workdir}'
    notes.append(_takeover_note(known, config, differing, title, begun=begun, takeover=takeover))
  if damage and (begun or path.exists()):
    what = 'the checkpoint has the config too' if begun else 'the run there has no checkpoint yet'
    notes.append(f'{damage}{_moved_aside(path)}; it is written again: {what}.')
  yield '\n'.join(notes)
  if jax.process_index() == 0:
    (workdir / 'report').mkdir(parents=True, exist_ok=True)
    if record.exists() or (begun and differing):
      files.write_json(record, config_lib.as_json(config))
    files.write_json(path, config_lib.as_json(config))


def _moved_aside(path: pathlib.Path) -> str:
  """Moves a damaged file aside and says where to; '' if there is none."""
  if not path.exists():
    return ''
  aside = files.move_aside(path) if jax.process_index() == 0 else f'{path}.damaged'
  return f' and was moved to {aside}'


def _takeover_note(
  there: Config, config: Config, differing: Sequence[str], title: str, *, begun: bool, takeover: bool
) -> str:
  """As `claim`, of a workdir called `title`, whose run has the config `there`, in which some options differ."""
  old, new = config_lib.flatten(there), config_lib.flatten(config)
  texts = '; '.join(f'{name} ({old.get(name)!r} there, {new.get(name)!r} here)' for name in differing)
  if not begun:
    return f'{title} held a run without a checkpoint and with another config, which is replaced: {texts}.'
  if takeover:
    return f'Taking over the run in {title}, whose config was another one: {texts}.'
  raise UserError(
    f'{title} holds a run with another config: {texts}; choose another --workdir, give the config it was '
    f'started with, or go on with this one by --takeover.'
  )


def read_config(workdir: pathlib.Path) -> Config:
  """The config of the run in a workdir, perhaps of an older version.

  Where config.json is damaged or missing, it is that of the newest checkpoint, and a warning says so; without a
  checkpoint it is a UserError.
  """
  path = workdir / 'config.json'
  try:
    return _parsed(path)
  except UserError as error:
    stored = stored_config(workdir)
    if stored is None and not path.exists():
      raise UserError(f'There is no run in {workdir} (it has no config.json); check --workdir.') from error
    if stored is None:
      raise _unrepairable(error, path) from error
    _log.warning('%s; the config of the newest checkpoint is used.', error)
    return stored


def _config_or_damage(path: pathlib.Path) -> tuple[Config | None, str]:
  """The config that a file holds and '', or None and what is wrong with the file."""
  try:
    return _parsed(path), ''
  except UserError as error:
    return None, str(error)


def _parsed(path: pathlib.Path) -> Config:
  """The config that a file holds; a UserError without a remedy where it is damaged or missing."""
  if not path.exists():
    raise UserError(f'{path} is missing')
  try:
    values = json.loads(foreign_files.read_bytes(path, foreign_files.LARGEST_TEXT))
    if not isinstance(values, dict) or not values:
      raise UserError('it is not a JSON object with options')
    return config_lib.from_config_dict(values)
  except (ValueError, RecursionError, OSError, UserError) as error:
    raise UserError(f'{path} is damaged ({str(error).removesuffix(".")})') from error


def _unrepairable(damage: UserError, path: pathlib.Path) -> UserError:
  """The error where no checkpoint lies beside a damaged or missing config.json to take the config from."""
  if path.exists():
    return UserError(f'{damage}; remove it and give the config of the run.')
  return UserError(
    f'{damage} and no checkpoint beside it can be read, so that nothing tells what run this is; restore it, or '
    f'choose another --workdir.'
  )


def has_begun(checkpoints: str | os.PathLike[str]) -> bool:
  """Whether a run has a checkpoint, sound or not."""
  return Manager(checkpoints, CheckpointConfig(), read_only=True).latest_step() is not None


def stored_config(workdir: pathlib.Path) -> Config | None:
  """The config that the newest checkpoint of a workdir has; None: there is none that can be read."""
  meta = Manager(workdir / 'checkpoints', CheckpointConfig(), read_only=True).newest_meta()
  return None if meta is None else config_lib.from_config_dict(meta['config'])


def stored_classes(checkpoints: str | os.PathLike[str]) -> tuple[str, ...] | None:
  """The classes by which the newest checkpoint was trained, label -> name; None: there is none that can be read."""
  meta = Manager(checkpoints, CheckpointConfig(), read_only=True).newest_meta()
  return None if meta is None else tuple(meta['class_names'])


def restore(
  manager: Manager, run: Run, *, takeover: bool = False
) -> tuple[TrainState | None, dict[str, Any]]:
  """The state of the newest sound checkpoint and what it says of its run; (None, {}) where there is none.

  Raises UserError where the training data has another number of images than before, unless `takeover` and there are
  steps to come; and where batches of another size leave none, although images are left.
  """

  def wanted(meta: dict[str, Any]) -> dict[str, Any]:
    _check_images(meta.get('examples'), run, takeover=takeover)
    return run.program.state.items()

  newest = manager.restore_newest(wanted)
  if newest is None:
    return None, {}
  step, items, meta = newest
  _check_batches(step, config_lib.from_config_dict(meta['config']).batch_size, run)
  return TrainState.from_items(items), meta


def _check_batches(step: int, before: int, run: Run) -> None:
  """Warns where batches had another number of images than now; UserError where no step is left, but images are."""
  timeline = run.timeline
  if before == timeline.batch_size:
    return
  seen, counted = (step * images / timeline.examples for images in (before, timeline.batch_size))
  text = (
    f'A batch has {timeline.batch_size} images, and {before} before: the {step:,} steps until here count as '
    f'{counted:.4g} epochs of the schedule, and were {seen:.4g}'
  )
  in_images = durations.parse(run.config.total)[1] != 'step'
  if in_images and step >= timeline.total > 0 and seen < timeline.epochs:
    raise UserError(
      f'{text}, so that none of {run.config.total!r} is left; give config.total in steps, or begin a new --workdir '
      f'with config.init.checkpoint.'
    )
  _log.warning('%s.', text)


def _check_images(images_there: int | None, run: Run, *, takeover: bool) -> None:
  """Raises UserError, or with `takeover` warns, where the training data has more or fewer images than it had.

  That number is 0 or None where it is not known, as of converted models.
  """
  if images_there in (None, 0, run.dataset.examples):
    return
  text = (
    f'The training data has {run.dataset.examples:,} images, and {images_there:,} when the run began: epochs, the '
    f'schedule and the order of the images are no longer the same'
  )
  if not run.timeline.total:
    raise UserError(
      f'The training data has {run.dataset.examples:,} images, and {images_there:,} when the head was fitted; begin a '
      'new --workdir, or restore the data.'
    )
  _refuse(text, 'restore the data, begin a new --workdir, or go on with it by --takeover', takeover=takeover)


def check_teachers(there: Mapping[str, str], now: Mapping[str, str], *, takeover: bool) -> None:
  """Raises UserError, or with `takeover` warns, where a frozen model is not the one that a checkpoint's steps asked.

  Both map the addresses of frozen models to digests of their parameters (FrozenModels.digests); `there` is {} of older
  checkpoints, and has not the addresses that a takeover has changed.
  """
  for address, digest in now.items():
    if there.get(address, digest) == digest:
      continue
    text = f'{address} has other parameters than at the last checkpoint, which makes it another teacher'
    remedy = 'restore what was there, begin a new --workdir, or go on with this one by --takeover'
    _refuse(text, remedy, takeover=takeover)


def _refuse(text: str, remedy: str, *, takeover: bool) -> None:
  """Raises UserError, or with `takeover` warns, that a run would not go on as it began."""
  if not takeover:
    raise UserError(f'{text}; {remedy}.')
  _log.warning('%s.', text)


def data_versions(source: Source) -> dict[str, str]:
  """What a checkpoint says of the files of its training data; '' where nothing is known."""
  return {'data_version': source.version(), 'data_sums': source.sums()}


def warn_of_changed_data(meta: Mapping[str, Any], now: Mapping[str, str]) -> None:
  """Logs a warning where the `data_versions` of now, as far as they are known, are not those of a checkpoint."""
  changed = [name for name in now if now[name] and meta.get(name) and now[name] != meta[name]]
  if changed:
    _log.warning(
      'The files of the training data were changed, replaced or copied since the last checkpoint (%s then, %s now): if '
      'their contents are others, the run no longer ends in the bits of one that was not stopped. A full check is '
      '`sha256sum --check` with a list of sums that was made before, such as SHA256SUMS beside prepared data.',
      *('; '.join(there[name] for name in changed) for there in (meta, now)),
    )


def changed_evaluators_text(meta: Mapping[str, Any], now: Mapping[str, int]) -> str:
  """A sentence about evaluators (name -> images) that had other numbers of images at a checkpoint; '' of none."""
  before = meta.get('evaluated', {})
  changed = [
    f'evaluator {name} has {now[name]:,} images and had {before[name]:,}'
    for name in now
    if name in before and before[name] != now[name]
  ]
  if not changed:
    return ''
  return f'Warning: {", ".join(changed)} at the last checkpoint; numbers from before cannot be compared with new ones.'


def checkpoint_meta(run: Run, evaluated: Mapping[str, int]) -> dict[str, object]:
  """What a checkpoint says of its run, with the images of each evaluator, beside the arrays and `data_versions`.

  `directory` is where the config's relative places begin.
  """
  return {
    'config': config_lib.as_json(run.asked),
    'class_names': list(run.dataset.class_names),
    'examples': run.dataset.examples,
    'evaluated': dict(evaluated),
    'directory': os.getcwd(),
  }
