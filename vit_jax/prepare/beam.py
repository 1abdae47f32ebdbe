"""Shards written by an Apache Beam pipeline, on whatever its runner runs on.

Source and destination must be where all workers see them: addresses (gs://…), or a shared disk.
"""

from collections.abc import Callable, Sequence

from vit_jax.errors import UserError
from vit_jax.prepare import shards


def run(
  jobs: Sequence[shards.Job], runner: str, options: Sequence[str], done: Callable[[shards.Report], None]
) -> None:
  """Writes shards.

  Args:
    jobs: the shards.
    runner: as Beam calls it: direct, dataflow, flink, spark, …
    options: Beam's own.
    done: called for each shard, when all are complete.

  Raises:
    UserError: Beam is not installed, has no such runner, or refuses the options.
  """
  try:
    import apache_beam as beam
    from apache_beam.options.pipeline_options import PipelineOptions
    from apache_beam.runners import create_runner
  except ImportError as error:
    raise UserError(
      f"--runner={runner} needs Apache Beam ({error}); pip install -e '.[beam]', or use --runner=local."
    ) from error
  try:
    chosen = create_runner(runner)
    parsed = PipelineOptions(list(options))
  except (ImportError, ValueError) as error:
    raise UserError(f'Apache Beam refuses --runner={runner} ({error}); correct it.') from error
  with beam.Pipeline(runner=chosen, options=parsed) as pipeline:
    # Reshuffle: a runner would otherwise write all shards where it made the list of them.
    _ = pipeline | beam.Create(jobs) | beam.Reshuffle() | beam.Map(shards.write)
  for job in jobs:
    done(shards.report(job))
