"""Memory of the input pipeline over many batches from a bucket: it must not grow.

  gcp-storage-emulator start --port=9023 --in-memory --default-bucket=bucket &
  export STORAGE_EMULATOR_HOST=http://127.0.0.1:9023
  python -m vit_jax.prepare /path/to/images gs://bucket/data/1.0.0
  python benchmarks/bucket_input.py --source=tfds:gs://bucket/data/1.0.0

Prints, at equal intervals, the resident memory of this process, the threads it has and the images a second.
"""

import argparse
import threading
import time

import jax
from process_memory import resident_mib

from vit_jax.data import sources
from vit_jax.data.config import DataConfig
from vit_jax.data.pipeline import TrainPipeline


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('--source', required=True, help='as config.data.source')
  parser.add_argument('--batches', type=int, default=20_000)
  parser.add_argument('--batch_size', type=int, default=4)
  parser.add_argument('--image_size', type=int, default=32)
  parser.add_argument('--lines', type=int, default=20, help='how often the memory is printed')
  args = parser.parse_args()
  data = DataConfig(source=args.source, image_size=(args.image_size,) * 2, crop='inception', flip=True)
  source = sources.open_training(data, 0)
  sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
  pipeline = TrainPipeline(source, data, batch_size=args.batch_size, seed=0, sharding=sharding)
  every = max(args.batches // args.lines, 1)
  print(f'{len(source):,} images; before the first batch {resident_mib():.1f} MiB', flush=True)
  with pipeline.stream(0, args.batches) as batches:
    begin = time.perf_counter()
    for number, batch in enumerate(batches, 1):
      jax.block_until_ready(batch)
      if number % every == 0:
        rate = every * args.batch_size / (time.perf_counter() - begin)
        text = f'{number:6,} batches: {resident_mib():.1f} MiB, {threading.active_count()} threads'
        print(f'{text}, {rate:,.0f} images/s', flush=True)
        begin = time.perf_counter()


if __name__ == '__main__':
  main()
