"""Preparing data sets in tests, and reading back what was written."""

from vit_jax.prepare import processes, run, shards
from vit_jax.prepare.images import Shrinking

WHOLE = Shrinking()


def prepared(source, destination, *, shrinking=WHOLE, **options):
  """Prepares a source in shards of about 1 MiB."""
  options = run.Options(shrinking=shrinking, shard_mib=1, **options)
  return run.prepare(str(source), str(destination), options)


def files(folder):
  """The content of all files below a folder, by relative path."""
  return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob('*') if p.is_file()}


def interrupted_after(count, monkeypatch):
  """From here on, preparations stop when `count` shards are written."""

  def write_some(jobs, workers, done):
    for job in jobs[:count]:
      shards.write(job)
    raise KeyboardInterrupt

  monkeypatch.setattr(processes, 'run', write_some)
