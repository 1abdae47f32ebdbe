"""A whole preparation: plan, shards, metadata. Whatever is done is not done again after a restart."""

import contextlib
import dataclasses
import fcntl
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from vit_jax.errors import UserError
from vit_jax.prepare import beam, metadata, processes, sharding, shards, storage
from vit_jax.prepare.images import Shrinking

_UNFINISHED = '.unfinished'  # the folder, within the destination, for what is not part of the data set


@dataclasses.dataclass(frozen=True)
class Options:
  """How to prepare."""

  shrinking: Shrinking
  shard_mib: int | None = None  # about the size of a shard; None: by the size of the split
  skip_bad: bool = False  # whether bad images are left out; else they are an error, once all are known
  workers: int = 1
  runner: str = 'local'  # or one of Beam's
  runner_options: tuple[str, ...] = ()

  def content(self, source: str) -> dict[str, Any]:
    """What the result depends on, beside the images."""
    return {'source': source, 'shard_mib': self.shard_mib, **dataclasses.asdict(self.shrinking)}


@dataclasses.dataclass(frozen=True)
class Result:
  """What was prepared."""

  records: Mapping[str, int]  # of each split
  shards: int
  classes: int
  multi_label: bool
  record_bytes: int
  bad: int


def prepare(
  source: str, destination: str, options: Options, progress: Callable[[int, int], None] = lambda *_: None
) -> Result:
  """Makes a TFDS directory of a source, or goes on where that was interrupted.

  Args:
    source: see `inputs`; an absolute path or an address.
    destination: a folder or address, new or of an unfinished preparation.
    options: how.
    progress: called with the number of images that are newly done, and of all.

  Raises:
    UserError: the source cannot be used; bad images that are not to be skipped; the destination is of another
      preparation.
    Preempted: interrupted; start again.
  """
  work, settings = storage.join(destination, _UNFINISHED), options.content(source)
  _check_destination(destination, work)
  with _alone(work):
    storage.clear_unfinished(work)
    _check_settings(work, destination, settings)
    decided = sharding.load(work) or sharding.make(
      source, work, options.shard_mib and options.shard_mib * sharding.MIB
    )
    jobs = _jobs(destination, work, decided, options.shrinking)
    _write_shards(jobs, options, decided, progress)
    reports: dict[str, list[shards.Report]] = {}
    for job in jobs:
      reports.setdefault(job.split, []).append(shards.report(job))
    _check_reports(work, reports, options)
    metadata.write(destination, work, decided, reports, settings)
  storage.remove_folder(work)
  return _result(decided, reports)


def complete(source: str, destination: str, options: Options) -> bool:
  """Whether the destination is prepared already, of this source and in this way.

  Raises:
    UserError: it is prepared in another one.
  """
  if not storage.exists(storage.join(destination, metadata.INFO)):
    return False
  _same(destination, _content(storage.join(destination, metadata.METADATA)), options.content(source))
  storage.remove_folder(storage.join(destination, _UNFINISHED))
  return True


def _check_destination(destination: str, work: str) -> None:
  if storage.names(destination) and not storage.exists(work):
    raise UserError(f'{destination} is neither empty nor an unfinished preparation; choose another folder.')


def _check_settings(work: str, destination: str, settings: dict[str, Any]) -> None:
  path = storage.join(work, 'settings.json')
  if storage.exists(path):
    _same(destination, _content(path), settings)
    return
  with storage.writing(path, work) as local, open(local, 'w') as file:
    json.dump(settings, file)


def _same(destination: str, before: dict[str, Any], now: dict[str, Any]) -> None:
  """Raises UserError where a preparation was begun with other settings."""
  for key, value in now.items():
    if before.get(key) != value:
      raise UserError(
        f'{destination} was prepared with {key} {before.get(key)}, not {value}; choose another folder, '
        f'or remove that one.'
      )


def _content(path: str) -> dict[str, Any]:
  if not storage.exists(path):
    return {}
  with storage.open_file(path) as file:
    return json.load(file)


@contextlib.contextmanager
def _alone(work: str) -> Iterator[None]:
  """Keeps a second command on this machine from the same folder."""
  if storage.is_address(work):
    yield
    return
  os.makedirs(work, exist_ok=True)
  with open(os.path.join(work, 'lock'), 'w') as lock:
    try:
      fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
      raise UserError(
        f'Another command is preparing {os.path.dirname(work)}; wait until it is done.'
      ) from None
    yield


def _jobs(destination: str, work: str, decided: sharding.Plan, shrinking: Shrinking) -> list[shards.Job]:
  return [
    shards.Job(
      storage.join(destination, metadata.shard_name(destination, name, shard, split.shards)),
      work,
      name,
      shard,
      len(decided.classes),
      decided.multi_label,
      shrinking,
    )
    for name, split in decided.splits.items()
    for shard in range(split.shards)
  ]


def _write_shards(
  jobs: Sequence[shards.Job], options: Options, decided: sharding.Plan, progress: Callable[[int, int], None]
) -> None:
  """Writes those that are not written, and those with bad images, which may have been repaired."""
  images = sum(split.images for split in decided.splits.values())
  written = storage.names(os.path.dirname(jobs[0].report_path))
  todo = []
  for job in jobs:
    if os.path.basename(job.report_path) in written:
      report = shards.report(job)
      if options.skip_bad or not report.bad:
        progress(report.records + len(report.bad), images)
        continue
    todo.append(job)
  if not todo:
    return
  done = lambda report: progress(report.records + len(report.bad), images)
  if options.runner == 'local':
    processes.run(todo, options.workers, done)
  else:
    beam.run(todo, options.runner, options.runner_options, done)


def _check_reports(work: str, reports: Mapping[str, Sequence[shards.Report]], options: Options) -> None:
  """Raises UserError for bad images, unless they are to be skipped, and for a split without others."""
  every = [report for parts in reports.values() for report in parts]
  bad, good = sum(len(report.bad) for report in every), sum(report.records for report in every)
  if bad and not options.skip_bad:
    table = storage.join(work, metadata.BAD_IMAGES)
    with storage.writing(table, work) as local:
      metadata.write_bad_images(local, reports)
    raise UserError(
      f'{bad} of {bad + good} images are bad, see {table}; repair them and start the same command again, '
      f'or leave them out with --bad_images=skip.'
    )
  for split, parts in reports.items():
    if not any(report.records for report in parts):
      raise UserError(f'All images of {split} are bad, such as {parts[0].bad[0][0]}; check the source.')


def _result(decided: sharding.Plan, reports: Mapping[str, Sequence[shards.Report]]) -> Result:
  every = [report for parts in reports.values() for report in parts]
  return Result(
    records={split: sum(report.records for report in parts) for split, parts in reports.items()},
    shards=len(every),
    classes=len(decided.classes),
    multi_label=decided.multi_label,
    record_bytes=sum(report.record_bytes for report in every),
    bad=sum(len(report.bad) for report in every),
  )
