"""Training batches of small images read anew, and kept in memory (config.data.cache), on one thread.

  python benchmarks/cached_input.py --source=tfds:cifar10

Turns alternate, each some batches, after a pass in which all images were read once.
"""

import argparse
import statistics
import time

import jax

from vit_jax.data import sources
from vit_jax.data.config import DataConfig
from vit_jax.data.pipeline import TrainPipeline


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--source', default='tfds:cifar10')
  parser.add_argument('--split', default='train[:10%]')
  parser.add_argument('--image_size', type=int, default=32)
  parser.add_argument('--batch_size', type=int, default=128)
  parser.add_argument('--batches', type=int, default=20, help='in a turn')
  parser.add_argument('--turns', type=int, default=9)
  args = parser.parse_args()
  sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
  pipelines = {}
  for cache in (False, True):
    size = (args.image_size, args.image_size)
    data = DataConfig(args.source, args.split, size, crop='random', padding=4, threads=1, cache=cache)
    source = sources.open_training(data, seed=0)
    pipelines[cache] = TrainPipeline(source, data, batch_size=args.batch_size, seed=0, sharding=sharding)
  first = len(source) // args.batch_size + 1
  for step in range(first):
    pipelines[True].batch(step)
  seconds = {False: [], True: []}
  for _ in range(args.turns):
    for cache, pipeline in pipelines.items():
      begin = time.process_time()
      for step in range(first, first + args.batches):
        pipeline.batch(step)
      seconds[cache].append((time.process_time() - begin) / args.batches)
  read, cached = statistics.median(seconds[False]), statistics.median(seconds[True])
  print(f'{len(source):,} images of {args.source}:{args.split}, a batch of {args.batch_size}, processor time')
  print(f'read anew {read * 1e3:.1f} ms, cached {cached * 1e3:.1f} ms, {read / cached:.1f} times as fast')


if __name__ == '__main__':
  main()
