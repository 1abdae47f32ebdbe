"""`vit_jax.main` for runs that are killed: a lease's holder counts as dead after seconds, a bucket soon as gone."""

from vit_jax import cli, main
from vit_jax.checkpoint import bucket_lease
from vit_jax.foundation import buckets

if __name__ == '__main__':
  bucket_lease._BEAT, bucket_lease._LIMIT = 0.3, 2.0
  buckets.OF_RUNS = buckets.Patience(attempts=3, pause=0.1)
  cli.run(main.main)
