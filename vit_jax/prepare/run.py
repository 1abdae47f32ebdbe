"""A whole preparation: plan, shards, metadata. What is done is not done again after a restart."""

import contextlib
import dataclasses
import logging
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import filelock

from vit_jax.data.sources import tfds_files
from vit_jax.foundation import files
from vit_jax.foundation.errors import UserError
from vit_jax.prepare import beam, duplicates, listing, metadata, processes, shard_plan, shards, storage
from vit_jax.prepare.images import Shrinking
from vit_jax.prepare.selection import EVERYTHING, Selection
from vit_jax.prepare.tables import USUAL_COLUMNS, Columns

_log = logging.getLogger(__name__)

_WORK = '.unfinished'  # the folder within the destination for what is not part of the data set
_LOCK, _SETTINGS = 'lock', 'settings.json'  # in it


@dataclasses.dataclass(frozen=True)
class Options:
  """How to prepare."""

  shrinking: Shrinking  # the size that images are shrunk to
  # About the size of a shard in MiB; None: it follows from the size of the split.
  shard_mib: int | None = None
  # Whether bad images, and what a tar lost that was cut short, are left out; else they are errors.
  skip_bad: bool = False
  workers: int = 1  # the number of local processes
  runner: str = 'local'  # 'local', or the name of a runner of Apache Beam
  runner_options: tuple[str, ...] = ()  # Beam's own command-line options
  columns: Columns = USUAL_COLUMNS  # which columns of a table to read
  selection: Selection = EVERYTHING  # which images to prepare
  merge_copies: bool = False  # whether equal images of a split become one with the labels of all

  def settings(self, source: str) -> dict[str, Any]:
    """What the result depends on, apart from the images."""
    columns = {f'{what}_column': name for what, name in dataclasses.asdict(self.columns).items() if name}
    others = columns | self.selection.settings() | ({'duplicates': 'merge'} if self.merge_copies else {})
    return {'source': source, 'shard_mib': self.shard_mib, **dataclasses.asdict(self.shrinking), **others}


@dataclasses.dataclass(frozen=True)
class Result:
  """What was prepared."""

  records: Mapping[str, int]  # split -> number of records
  shards: int  # the number of files
  classes: int  # their number
  multi_label: bool  # whether images may have several labels, or none
  record_bytes: int  # the size of all records
  bad: int  # the number of images that were left out
  weighted: bool  # whether labels have weights
  copies: int  # the number of images that equal an earlier one
  longest: int  # the most labels that an image has
  captions: int  # their number


def prepare(
  source: str,
  destination: str,
  options: Options,
  progress: Callable[[int, int], None] = lambda done, total: None,
) -> Result:
  """Prepares a source as a TFDS directory, or goes on where a preparation was interrupted.

  When it returns, the data set survives a power failure.

  Args:
    source: an absolute path or an address; see `listing`.
    destination: a folder or address that is new, empty or of an unfinished preparation.
    options: how to prepare.
    progress: called with the number of images that were done since the last call, and of all images; 0 while
      they are listed.

  Raises:
    UserError: the source cannot be used; there are bad images that are not to be skipped; or the destination
      holds something else.
    Preempted: a process was killed; start again.
    OSError: the destination cannot be written.
  """
  work = storage.join(destination, _WORK)
  if storage.names(destination) and not storage.exists(work):
    raise UserError(f'{destination} is neither empty nor an unfinished preparation; choose another folder.')
  if not storage.exists(shard_plan.plan_path(work)):
    listing.check_exists(source)  # before anything is written
  with _locked(work):
    storage.clear_unfinished(work)
    settings = options.settings(source)
    _claim(destination, work, settings)
    plan = shard_plan.load(work) or shard_plan.make(
      source,
      work,
      options.shard_mib and options.shard_mib * shard_plan.MIB,
      columns=options.columns,
      selection=options.selection,
      lists=options.merge_copies,
      allow_cut=options.skip_bad,
      listed=lambda count: progress(count, 0),
    )
    reports, copies = _write(destination, work, plan, options, progress)
    metadata.write(destination, work, plan, reports, settings, copies)
  storage.remove(work)
  return _result(plan, reports, copies)


def _write(
  destination: str, work: str, plan: shard_plan.Plan, options: Options, progress: Callable[[int, int], None]
) -> tuple[dict[str, list[shards.Report]], duplicates.Groups]:
  """Writes all shards, and again those with copies that are merged: split -> their reports, and the equal images."""
  merges = duplicates.load_merges(work)
  if merges is None:
    jobs = _jobs(destination, work, plan, options.shrinking)
    _write_shards(jobs, options, plan, progress)
    reports = _reports(jobs)
    _check_reports(work, reports, options)
    digests = {
      (split, number): (report.digests, set(report.bad_rows))
      for split, parts in reports.items()
      for number, report in enumerate(parts)
    }
    copies = duplicates.groups(work, digests)
    if not (copies and options.merge_copies):
      return reports, copies
    duplicates.save_merges(work, copies)
    merges = duplicates.load_merges(work)
    assert merges is not None, 'they were just written'
  copies, merged = merges
  jobs = _jobs(destination, work, plan, options.shrinking, merged)
  _write_shards(jobs, options, plan, progress)
  return _reports(jobs), copies


def _reports(jobs: Sequence[shards.Job]) -> dict[str, list[shards.Report]]:
  """split -> the reports of its shards, in order."""
  reports: dict[str, list[shards.Report]] = {}
  for job in jobs:
    reports.setdefault(job.split, []).append(shards.read_report(job))
  return reports


def complete_records(source: str, destination: str, options: Options) -> dict[str, int] | None:
  """split -> number of records, where the destination holds this source, prepared in this way; None: it is unfinished.

  Raises UserError where it holds another source, or this one prepared otherwise.
  """
  info = storage.join(destination, tfds_files.INFO)
  if not storage.exists(info):
    return None
  before = _json_or_empty(storage.join(destination, tfds_files.METADATA))
  if difference := _difference(before, options.settings(source)):
    raise _prepared_differently(destination, *difference)
  storage.remove(storage.join(destination, _WORK))
  splits = storage.read_json(info)['splits']
  return {split['name']: sum(map(int, split['shardLengths'])) for split in splits}


def _claim(destination: str, work: str, settings: dict[str, Any]) -> None:
  """Writes down the settings, or checks that they are those that the preparation began with.

  As long as no record is complete, nothing is lost if other settings take the destination over.
  """
  path = storage.join(work, _SETTINGS)
  before = _json_or_empty(path)
  if before == settings:
    return
  if before and (difference := _difference(before, settings)):
    if _has_records(destination, work):
      raise _prepared_differently(destination, *difference)
    told = '%s was begun %s, and no file of that is complete; it starts anew %s.'
    _log.warning(told, destination, *difference)
    _discard(destination, work)
  storage.write_json(path, settings, work)


def _difference(before: Mapping[str, Any], now: Mapping[str, Any]) -> tuple[str, str] | None:
  """The first setting that differs, as it was and is: ('without limit', 'with limit 5'); None: all are the same."""
  for name in [*now, *before]:
    values = before.get(name), now.get(name)
    if values[0] != values[1]:
      old, new = (f'without {name}' if value is None else f'with {name} {value}' for value in values)
      return old, new
  return None


def _prepared_differently(destination: str, old: str, new: str) -> UserError:
  return UserError(f'{destination} was prepared {old}, not {new}; choose another folder, or remove that one.')


def _has_records(destination: str, work: str) -> bool:
  """Whether a shard is complete that has records."""
  plan = shard_plan.load(work)
  if plan is None:
    return False
  written = storage.names(shards.reports_folder(work))
  jobs = _jobs(destination, work, plan, Shrinking())
  return any(shards.read_report(job).records for job in jobs if os.path.basename(job.report_path) in written)


def _discard(destination: str, work: str) -> None:
  """Removes the files of a preparation.

  The plan, which names the shards, goes after them; and before the rest, so that no plan lacks its lists.
  """
  plan = shard_plan.load(work)
  if plan is not None:
    for job in _jobs(destination, work, plan, Shrinking()):
      storage.remove(job.path)
    storage.remove(shard_plan.plan_path(work))
  for name in storage.names(work) - {_LOCK, _SETTINGS}:
    storage.remove(storage.join(work, name))


def _json_or_empty(path: str) -> dict[str, Any]:
  return storage.read_json(path) if storage.exists(path) else {}


@contextlib.contextmanager
def _locked(work: str) -> Iterator[None]:
  """Keeps a second command on this machine from preparing the same folder; addresses have no such lock."""
  if storage.is_address(work):
    yield
    return
  files.make_directories(work)
  try:
    with filelock.FileLock(os.path.join(work, _LOCK), timeout=0):
      yield
  except filelock.Timeout:
    raise UserError(f'Another command is preparing {os.path.dirname(work)}; wait until it is done.') from None


def _jobs(
  destination: str,
  work: str,
  plan: shard_plan.Plan,
  shrinking: Shrinking,
  merged: Collection[tuple[str, int]] = (),
) -> list[shards.Job]:
  """All shards of a plan, split by split; those of `merged` (split, number) have copies to be merged."""
  return [
    shards.Job(
      path=storage.join(destination, metadata.shard_name(destination, name, shard, split.shards)),
      work=work,
      split=name,
      shard=shard,
      num_classes=len(plan.classes),
      multi_label=plan.multi_label,
      shrinking=shrinking,
      weighted=plan.weighted,
      captioned=plan.captioned,
      merged=(name, shard) in merged,
    )
    for name, split in plan.splits.items()
    for shard in range(split.shards)
  ]


def _write_shards(
  jobs: Sequence[shards.Job], options: Options, plan: shard_plan.Plan, progress: Callable[[int, int], None]
) -> None:
  """Writes the shards that are not written, and those with bad images, which may have been repaired."""
  images = sum(split.images for split in plan.splits.values())

  def done(report: shards.Report) -> None:
    progress(report.records + len(report.bad), images)

  written = storage.names(shards.reports_folder(jobs[0].work))
  remaining = []
  for job in jobs:
    report = shards.read_report(job) if os.path.basename(job.report_path) in written else None
    # One that was written before its copies were merged is not as its job wants it.
    if report is not None and report.merged == job.merged and (options.skip_bad or not report.bad):
      done(report)
    else:
      remaining.append(job)
  if not remaining:
    return
  if options.runner == 'local':
    processes.run(remaining, options.workers, done)
  else:
    beam.run(remaining, options.runner, options.runner_options, done)


def _check_reports(work: str, reports: Mapping[str, Sequence[shards.Report]], options: Options) -> None:
  """Raises UserError for bad images, unless they are skipped, and for a split that has no others."""
  bad = [entry for parts in reports.values() for report in parts for entry in report.bad]
  good = sum(report.records for parts in reports.values() for report in parts)
  if bad and not options.skip_bad:
    table = storage.join(work, tfds_files.BAD_IMAGES)
    with storage.atomic_path(table, work) as local:
      metadata.write_bad_images(local, reports)
    name, reason = bad[0]
    count, them = f'{len(bad)} of {len(bad) + good} images', 'it' if len(bad) == 1 else 'them'
    said = f'{count} is bad: {name}' if len(bad) == 1 else f'{count} are bad (all: {table}), such as {name}'
    raise UserError(
      f'{said}, which {reason}; repair {them} and start the same command again, or leave {them} out with '
      f'--bad_images=skip.'
    )
  for split, parts in reports.items():
    if not any(report.records for report in parts):
      name = next(name for report in parts for name, _ in report.bad)
      raise UserError(f'All images of {split} are bad, such as {name}; check the source.')


def _result(
  plan: shard_plan.Plan, reports: Mapping[str, Sequence[shards.Report]], copies: duplicates.Groups
) -> Result:
  every = [report for parts in reports.values() for report in parts]
  return Result(
    records={split: sum(report.records for report in parts) for split, parts in reports.items()},
    shards=len(every),
    classes=len(plan.classes),
    multi_label=plan.multi_label,
    record_bytes=sum(report.record_bytes for report in every),
    bad=sum(len(report.bad) for report in every),
    weighted=plan.weighted,
    copies=sum(len(group) - 1 for group in copies),
    longest=max(report.longest for report in every),
    captions=sum(report.captions for report in every),
  )
