"""The shuffle of a run over more records than a disk here holds: speed, memory and coverage.

  python benchmarks/data_order.py --figure=data_order.png

The training pipeline reads a virtual source of 303 million records (the size of JFT-300M), images of 2 × 2
pixels made from the record's number: first batches of random steps, one by one, then 20,000 batches in a row,
with the memory of the process after every 1,000. Last, two passes over a smaller source count each record.
"""

import argparse
import gc
import statistics
import time
from collections.abc import Callable

import jax
import numpy as np
from process_memory import resident_mib

from vit_jax.data.config import DataConfig
from vit_jax.data.pipeline import TrainPipeline
from vit_jax.data.sources.base import Record, Source


class VirtualSource(Source):
  """Records that exist only as their numbers."""

  class_names = tuple(map(str, range(1000)))

  def __init__(self, size: int):
    self._size = size

  def __len__(self) -> int:
    return self._size

  def __getitem__(self, index: int) -> Record:
    return Record(np.full((2, 2, 3), index % 256, np.uint8), index % 1000, f'virtual {index}')

  def labels(self) -> np.ndarray:
    return np.arange(self._size, dtype=np.int32) % 1000


def pipeline(size: int, batch_size: int) -> TrainPipeline:
  """The training pipeline over a virtual source of `size` records."""
  data = DataConfig(image_size=(2, 2), crop='resize')
  sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
  return TrainPipeline(VirtualSource(size), data, batch_size=batch_size, seed=0, sharding=sharding)


def milliseconds(
  action: Callable[[int], object], steps: np.ndarray, clock: Callable[[], float]
) -> list[float]:
  """The time of `action(step)` for each step."""
  taken = []
  for step in steps.tolist():
    begin = clock()
    action(step)
    taken.append(1000 * (clock() - begin))
  return taken


def random_steps(size: int, batch_size: int, count: int) -> None:
  """Times batches of random steps."""
  batches = pipeline(size, batch_size)
  steps = np.random.default_rng(0).integers(0, 300 * size // batch_size, count)
  for name, action in (('record numbers', batches.indices), ('batch(step)', batches.batch)):
    taken = milliseconds(action, steps, time.perf_counter)
    busy = statistics.median(milliseconds(action, steps, time.process_time))
    print(
      f'{name} of {count} random steps, batch {batch_size}: median {statistics.median(taken):.1f} ms, '
      f'slowest {max(taken):.1f} ms; processor time {busy:.1f} ms, {1000 * busy / batch_size:.1f} µs a record'
    )


def memory(size: int, batch_size: int, count: int, figure: str | None) -> None:
  """Prints, and perhaps draws, the memory of the process over many batches in a row."""
  every, mib = max(count // 20, 1), []
  begin = time.perf_counter()
  with pipeline(size, batch_size).stream(0, count) as stream:
    for step, _ in enumerate(stream, start=1):
      if step % every == 0:
        gc.collect()
        mib.append(resident_mib())
        print(f'{step:6} batches: {mib[-1]:.1f} MiB resident', flush=True)
  seconds = time.perf_counter() - begin
  print(
    f'{count * batch_size / seconds:,.0f} records/s; from the first to the last: {mib[-1] - mib[0]:+.1f} MiB'
  )
  if figure:
    draw(np.arange(1, len(mib) + 1) * every, mib, f'{size:,} virtual records, batch {batch_size}', figure)


def draw(batches: np.ndarray, mib: list[float], title: str, path: str) -> None:
  from matplotlib.figure import Figure

  picture = Figure(figsize=(7, 3.5), layout='constrained')
  axes = picture.subplots()
  axes.plot(batches, mib, marker='.')
  axes.set(title=title, xlabel='batches', ylabel='resident memory, MiB', ylim=(0, 1.2 * max(mib)))
  axes.grid(alpha=0.3)
  picture.savefig(path, dpi=100)


def coverage(size: int, batch_size: int) -> None:
  """Checks that two passes have each record twice."""
  batches = pipeline(size, batch_size)
  counts = np.zeros(size, np.int8)
  for step in range(2 * size // batch_size + 1):
    first = step * batch_size
    numbers = batches.indices(step)[: max(2 * size - first, 0)]
    np.add.at(counts, numbers, 1)
  assert (counts == 2).all(), 'a record was left out or repeated'
  print(f'{size:,} records: each exactly once in each of two passes of batches of {batch_size}')


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('--records', type=int, default=303_000_000)
  parser.add_argument('--batch_size', type=int, default=128, help='for the batches in a row')
  parser.add_argument('--batches', type=int, default=20_000)
  parser.add_argument('--coverage', type=int, default=1_281_167, help='records of the two passes')
  parser.add_argument('--figure', help='where to write a PNG of the memory')
  args = parser.parse_args()
  for batch_size in (1024, 4096):
    random_steps(args.records, batch_size, 50)
  memory(args.records, args.batch_size, args.batches, args.figure)
  coverage(args.coverage, 4096)


if __name__ == '__main__':
  main()
