"""Our input pipeline against tf.data and PyTorch's DataLoader: images/s per core, memory and fidelity.

  pip install -e '.[peers]'
  python -m venv /tmp/tf && /tmp/tf/bin/pip install tensorflow     # for this benchmark alone
  python benchmarks/input_pipeline.py --tensorflow_python=/tmp/tf/bin/python --images=photographs/

All read the same JPEG files in a random order, cut a box of the same distribution (5 to 100 % of the area,
3:4 to 4:3) out of each, resize it and make batches of it:

  ours       vit_jax's TrainPipeline; the device mirrors
  tf.data    decode_and_crop_jpeg of sample_distorted_bounding_box, bilinear, mirrored, as in big_vision
  PyTorch    DataLoader with worker processes; PIL's decoding and its antialiased bilinear resize, mirrored

Each contender is a process of its own (contenders.py), on as many cores as it has threads. One whose library is not
here is left out.
"""

import argparse
import contextlib
import gc
import io
import json
import os
import pathlib
import random
import statistics
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator

import contenders

CONTENDERS = ('ours', 'tf.data', 'PyTorch')
AREA = (0.05, 1.0)
RECORDS = 2**17  # of an epoch: the files over and over, for pipelines are not made for tiny data sets
SETTLE = 1.0  # seconds before a turn, in which the contender before it fills its queues and comes to rest
WARMUP = 6  # batches at the beginning of a turn that are not timed: at least those prefetched


def ours(files: list[str], size: int, batch_size: int, threads: int) -> Iterator:
  import jax
  import numpy as np

  from vit_jax.data.config import DataConfig
  from vit_jax.data.pipeline import TrainPipeline
  from vit_jax.data.sources.base import Record, Source
  from vit_jax.foundation import foreign_files

  class Files(Source):
    class_names = ('photograph',)

    def __len__(self) -> int:
      return RECORDS

    def __getitem__(self, index: int) -> Record:
      path = files[index % len(files)]
      return Record(foreign_files.read_bytes(path, foreign_files.LARGEST_IMAGE), 0, path)

    def labels(self) -> np.ndarray:
      return np.zeros(RECORDS, np.int32)

  gc.set_threshold(50_000)  # as in a command (vit_jax/__init__.py)
  data = DataConfig(image_size=(size, size), crop='inception', area=AREA, threads=threads)
  sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
  pipeline = TrainPipeline(Files(), data, batch_size=batch_size, seed=0, sharding=sharding)
  with pipeline.stream(0, 2**40) as batches:
    for batch in batches:
      yield jax.block_until_ready(batch)


def tf_data(files: list[str], size: int, batch_size: int, threads: int) -> Iterator:
  import tensorflow as tf

  tf.config.threading.set_intra_op_parallelism_threads(threads)
  tf.config.threading.set_inter_op_parallelism_threads(threads)

  def example(path):
    data = tf.io.read_file(path)
    begin, extent, _ = tf.image.sample_distorted_bounding_box(
      tf.image.extract_jpeg_shape(data),
      tf.zeros([0, 0, 4], tf.float32),
      area_range=AREA,
      min_object_covered=0,
      use_image_if_no_bounding_boxes=True,
    )
    window = tf.concat([begin[:2], extent[:2]], 0)
    image = tf.image.decode_and_crop_jpeg(data, window, channels=3)
    image = tf.cast(tf.image.resize(image, [size, size]), tf.uint8)
    return tf.image.random_flip_left_right(image)

  options = tf.data.Options()
  options.threading.private_threadpool_size = threads
  options.threading.max_intra_op_parallelism = 1
  paths = tf.data.Dataset.from_tensor_slices(files).repeat(RECORDS // len(files))
  data = paths.shuffle(10 * len(files)).repeat().map(example, num_parallel_calls=threads)
  yield from data.batch(batch_size).prefetch(2).with_options(options)


class PilExamples:
  """A map-style PyTorch dataset, as torchvision's ImageFolder with RandomResizedCrop and a flip."""

  def __init__(self, files: list[str], size: int):
    self.files, self.size = files, size

  def __len__(self) -> int:
    return RECORDS

  def __getitem__(self, index: int):
    import numpy as np
    from PIL import Image

    from vit_jax.data.transforms import sample_box

    with open(self.files[index % len(self.files)], 'rb') as file:
      image = Image.open(file).convert('RGB')
    rng = np.random.default_rng(random.getrandbits(64))
    top, left, height, width = sample_box((image.height, image.width), AREA, rng)
    image = image.crop((left, top, left + width, top + height))
    image = image.resize((self.size, self.size), Image.Resampling.BILINEAR)
    if rng.random() < 0.5:
      image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    return np.asarray(image)


def pytorch(files: list[str], size: int, batch_size: int, threads: int) -> Iterator:
  from torch.utils.data import DataLoader

  options = {'num_workers': threads, 'prefetch_factor': 2, 'persistent_workers': True}
  loader = DataLoader(PilExamples(files, size), batch_size, shuffle=True, drop_last=True, **options)
  while True:
    yield from loader


def made(name: str, args: argparse.Namespace, files: list[str]) -> tuple[dict[str, str], contenders.Work]:
  """A contender as `contenders.serve` takes it, after its first batch; the figures of a turn of some batches."""
  os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: args.threads])
  function = {'ours': ours, 'tf.data': tf_data, 'PyTorch': pytorch}[name]
  batches = function(files, args.image_size, args.batch_size, args.threads)
  next(batches)

  def work(count: int) -> dict[str, float]:
    for _ in range(WARMUP):
      next(batches)
    begin, processor = time.perf_counter(), processor_seconds()
    for _ in range(count):
      next(batches)
    wall, processor = time.perf_counter() - begin, processor_seconds() - processor
    images = count * args.batch_size
    return {'rate': images / wall, 'per_core': images / processor, 'mib': memory() / 2**20}

  return {}, work


def family() -> list[pathlib.Path]:
  """The folders of this process and its children in /proc."""
  children = pathlib.Path(f'/proc/self/task/{os.getpid()}/children').read_text().split()
  return [pathlib.Path('/proc/self'), *(pathlib.Path('/proc') / child for child in children)]


def processor_seconds() -> float:
  """Processor seconds of this process and its children; the children's to a hundredth."""
  ticks = 0
  for process in family()[1:]:
    ticks += sum(map(int, (process / 'stat').read_text().rpartition(')')[2].split()[11:13]))
  return time.process_time() + ticks / os.sysconf('SC_CLK_TCK')


def memory() -> int:
  """Resident bytes of this process and its children; shared ones count once."""
  lines = [line for p in family() for line in (p / 'smaps_rollup').read_text().splitlines()]
  return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith('Pss:'))


def fidelity(files: list[str], size: int) -> str:
  """The PSNR of our boxes against boxes that are cut out of a full decode and resized in float32."""
  import numpy as np
  from PIL import Image

  from vit_jax.data.decode import Picture
  from vit_jax.data.preprocess import Preprocess
  from vit_jax.data.transforms import resize, sample_box

  rng = np.random.default_rng(0)
  values: dict[str, list[float]] = {}
  for path in files * 4:
    data = pathlib.Path(path).read_bytes()
    with Image.open(io.BytesIO(data)) as image:
      whole = np.asarray(image.convert('RGB'))
    picture = Picture(data, 3, path)
    box = top, left, height, width = sample_box(picture.size, AREA, rng)
    pixels, within = picture.part(box, at_least=(size, size))
    kind = 'at full size' if within == box else 'at a reduced scale'
    result = resize(pixels, (size, size), within).astype(float)
    part = whole[top : top + height, left : left + width]
    antialiased = Image.fromarray(part).resize((size, size), Image.Resampling.BILINEAR)
    references = {'bilinear': Preprocess((size, size)).as_bytes(part), 'antialiased': np.asarray(antialiased)}
    for name, reference in references.items():
      error = np.square(result - reference).mean()
      values.setdefault(f'{kind}, against {name}', []).append(10 * np.log10(255**2 / max(error, 1e-9)))
  return '\n'.join(
    f'PSNR of {len(v)} boxes decoded {k}: median {np.median(v):.1f} dB, lowest {min(v):.1f} dB'
    for k, v in sorted(values.items())
  )


@contextlib.contextmanager
def files_of(images: pathlib.Path) -> Iterator[list[str]]:
  """The JPEG files below a folder or in a tar file."""
  with tempfile.TemporaryDirectory() as folder:
    if images.is_file():
      with tarfile.open(images) as archive:
        archive.extractall(folder, filter='data')
      images = pathlib.Path(folder)
    found = sorted(str(p) for p in images.rglob('*') if p.suffix.lower() in ('.jpg', '.jpeg'))
    if not found:
      sys.exit(f'There are no JPEG files in {images}; give a folder or tar file with some as --images.')
    yield found


def commands(args: argparse.Namespace, threads: int, listing: str) -> dict[str, list[str]]:
  """What starts each contender; tf.data is left out, with a sentence on the screen, where its Python is not named."""
  own = [f'--listing={listing}', f'--threads={threads}']
  own += [f'--image_size={args.image_size}', f'--batch_size={args.batch_size}']
  found = {}
  for name in CONTENDERS:
    python = args.tensorflow_python if name == 'tf.data' else sys.executable
    if python:
      found[name] = [python, __file__, f'--contender={name}', *own]
    else:
      print(f'{name} is left out: name the Python of an environment with TensorFlow as --tensorflow_python.')
  return found


def race(args: argparse.Namespace, threads: int, listing: str) -> None:
  """Prints the medians of alternating turns, with so many threads and cores.

  Raises:
    SystemExit: a contender ended early; with a sentence.
  """
  environment = dict(os.environ, JAX_PLATFORMS='cpu', CUDA_VISIBLE_DEVICES='', TF_CPP_MIN_LOG_LEVEL='3')
  started = contenders.start(commands(args, threads, listing), environment)
  # A first turn imports and compiles.
  turns = contenders.take_turns(started, args.turns, args.batches, uncounted=1, pause=SETTLE)

  def median(name: str, key: str) -> float:
    return statistics.median(turns.each(name, key))

  def ratio(name: str, key: str) -> float:
    pairs = zip(turns.each(name, key), turns.each('tf.data', key), strict=True)
    return statistics.median(own / other for own, other in pairs)

  for name in started if turns else ():
    text = f'{threads} threads, {name:8} {median(name, "rate"):6,.0f} images/s, '
    text += f'{median(name, "per_core"):6,.0f} per second of a core, {median(name, "mib"):5,.0f} MiB'
    if 'tf.data' in started and name != 'tf.data':
      text += f'; of tf.data: {ratio(name, "rate"):.2f}, per core {ratio(name, "per_core"):.2f}'
    print(text, flush=True)
  if turns.ended:
    sys.exit(turns.ended)


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument(
    '--images', type=pathlib.Path, help='a folder or tar file of JPEG photographs at their own size'
  )
  parser.add_argument('--tensorflow_python', help='the Python of an environment with TensorFlow')
  parser.add_argument('--threads', type=int, nargs='+', default=[1, 2], help='and cores')
  parser.add_argument('--image_size', type=int, default=224)
  parser.add_argument('--batch_size', type=int, default=50)
  parser.add_argument('--turns', type=int, default=15)
  parser.add_argument('--batches', type=int, default=20, help='in a turn')
  parser.add_argument('--contender', choices=CONTENDERS, help=argparse.SUPPRESS)
  parser.add_argument('--listing', help=argparse.SUPPRESS)
  args = parser.parse_args()
  if args.contender:
    args.threads = args.threads[0]
    files = json.loads(pathlib.Path(args.listing).read_text())
    return contenders.serve(lambda: made(args.contender, args, files))
  if args.images is None:
    parser.error('name photographs to read, such as --images=photographs/')
  with files_of(args.images) as files, tempfile.NamedTemporaryFile('w', suffix='.json') as listing:
    json.dump(files, listing)
    listing.flush()
    print(f'{len(files)} files, {args.image_size} px, batches of {args.batch_size}, {args.turns} turns')
    print(fidelity(files, args.image_size))
    for threads in args.threads:
      race(args, threads, listing.name)


if __name__ == '__main__':
  main()
