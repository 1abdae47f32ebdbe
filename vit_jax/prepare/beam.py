"""Writes shards in an Apache Beam pipeline, on the machines of its runner.

Source and destination must be where all workers see them: addresses (gs://…), or a shared disk.
"""

from collections.abc import Callable, Sequence

from vit_jax.foundation.errors import UserError
from vit_jax.prepare import shards


def run(
  jobs: Sequence[shards.Job], runner: str, options: Sequence[str], done: Callable[[shards.Report], None]
) -> None:
  """Writes shards by a runner of Beam's: direct, dataflow, flink, spark, …; `done` is called once all are complete.

  UserError where Beam is not installed, has no such runner, or refuses the options.
  """
  try:
    # An extra, which pyright may not find.
    import apache_beam as beam  # pyright: ignore[reportMissingImports]
    from apache_beam.options.pipeline_options import PipelineOptions  # pyright: ignore[reportMissingImports]
    from apache_beam.runners.runner import create_runner  # pyright: ignore[reportMissingImports]
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
    # Reshuffle: without it, a runner may write all shards on the worker that lists the jobs.
    _ = pipeline | beam.Create(jobs) | beam.Reshuffle() | beam.Map(shards.write)
  for job in jobs:
    done(shards.read_report(job))
