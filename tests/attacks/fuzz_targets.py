"""Sound files of every kind, how each is read, and the process that reads damaged ones in little memory.

python fuzz_targets.py FOLDER SEED FIRST LAST READER…: cases FIRST to LAST, one line of JSON a case (see
fuzz_readers.py, which starts it).
"""

import dataclasses
import hashlib
import json
import pathlib
import random
import resource
import shutil
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable
from typing import Any

import mutations
import numpy as np
import pyarrow
import pyarrow.parquet
from limited import outcome, restrict_memory
from PIL import Image

from vit_jax import config as c
from vit_jax.data.config import DataConfig
from vit_jax.data.preprocess import Preprocess
from vit_jax.data.sources import folder_listing, open_source
from vit_jax.evaluation.real_labels import RealLabels
from vit_jax.foundation import json_lines, pytrees
from vit_jax.foundation.errors import UserError
from vit_jax.models.base import Architecture
from vit_jax.prepare import archives, processes, run, shards
from vit_jax.prepare.images import Shrinking
from vit_jax.prepare.listing import Listing
from vit_jax.pretrained import class_names, formats
from vit_jax.pretrained.base import Pretrained
from vit_jax.training import resume
from vit_jax.training.metrics import read_metrics

MEMORY = (
  3 * 2**30
)  # bytes of address space beyond what the process has; threads of array_record take much of it
SECONDS = 60


@dataclasses.dataclass(frozen=True)
class Target:
  """A reader.

  Attributes:
    make: writes sound files to an empty folder.
    files: those that are damaged, one a case; patterns.
    read: the values that the files of a folder give.
  """

  make: Callable[[pathlib.Path], object]
  files: tuple[str, ...]
  read: Callable[[pathlib.Path], Any]


def checkpoint(kind: str, *, with_sum: bool = True) -> Callable[[pathlib.Path], None]:
  def make(folder: pathlib.Path) -> None:
    model = c.ViTConfig(variant='custom', patch=8, width=16, mlp_dim=16, depth=2, heads=2)
    architecture = Architecture(model, (16, 16), 3, 3)
    rng = np.random.default_rng(0)
    params = {
      path: rng.normal(size=leaf.shape).astype(np.float32) for path, leaf in architecture.shapes().items()
    }
    pretrained = Pretrained(architecture, pytrees.unflatten(params), Preprocess((16, 16)), ('a', 'b', 'c'))
    writer, _ = formats.written_by(kind, pretrained)
    writer.write(pretrained, folder / ('vit.npz' if kind == 'npz' else 'model'))
    if not with_sum:
      (folder / 'model/model.safetensors.sha256').unlink()

  return make


def read_checkpoint(folder: pathlib.Path) -> Any:
  path = folder / 'vit.npz'
  found = formats.read(path if path.exists() else folder / 'model')
  arrays = [(name, array.tobytes()) for name, array in sorted(pytrees.flatten(found.params).items())]
  return found.architecture, found.preprocess, found.class_names, arrays


def images(folder: pathlib.Path) -> None:
  rng = np.random.default_rng(0)
  for name in ('cat', 'dog'):
    (folder / name).mkdir(parents=True)
    for number in range(6):
      pixels = rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)
      Image.fromarray(pixels).save(folder / name / f'{number}.png')


def tar(folder: pathlib.Path) -> None:
  images(folder / 'images')
  with tarfile.open(folder / 'x.tar', 'w') as archive:
    archive.add(folder / 'images', 'images')
  shutil.rmtree(folder / 'images')


def packed_tar(folder: pathlib.Path) -> None:
  tar(folder)
  with tarfile.open(folder / 'x.tar.gz', 'w:gz') as archive:
    archive.add(folder / 'x.tar', 'inner.tar')
  (folder / 'x.tar').unlink()


def zipped(folder: pathlib.Path) -> None:
  images(folder / 'images')
  with zipfile.ZipFile(folder / 'x.zip', 'w', zipfile.ZIP_DEFLATED) as archive:
    for path in sorted((folder / 'images').rglob('*.png')):
      archive.write(path, path.relative_to(folder / 'images').as_posix())
  shutil.rmtree(folder / 'images')


def csv_table(folder: pathlib.Path) -> None:
  images(folder)
  lines = [
    'image,label,split',
    *(f'{name}/{n}.png,{name},train' for name in ('cat', 'dog') for n in range(6)),
  ]
  (folder / 'x.csv').write_text('\n'.join(lines) + '\n')


def jsonl_table(folder: pathlib.Path) -> None:
  images(folder)
  lines = [{'file_name': f'{name}/{n}.png', 'label': name} for name in ('cat', 'dog') for n in range(6)]
  (folder / 'metadata.jsonl').write_text(''.join(json.dumps(line) + '\n' for line in lines))


def read_source(folder: pathlib.Path) -> Any:
  """What `prepare` lists and reads of an archive or a table."""
  source = next((str(path) for path in sorted(folder.glob('x.*'))), str(folder))
  archives._opened_zip.cache_clear()
  with tempfile.TemporaryDirectory() as scratch:
    found = list(Listing(source, pathlib.Path(scratch), scratch))
    located = [image for image in found if image.location is not None]
    contents = []
    for image in located:
      try:
        contents.append(archives.read(image.path, image.location or 0, image.size))
      except Exception as error:  # as `prepare.images` does, which names the image
        raise UserError(f'{image.name} cannot be read ({" ".join(str(error).split())[:200]}).') from error
  return [(image.name, image.split, image.labels) for image in found], contents


def prepared(folder: pathlib.Path) -> None:
  images(folder / 'images')
  processes.run = lambda jobs, workers, done: [shards.write(job) for job in jobs]  # in this process
  run.prepare(str(folder / 'images'), str(folder / 'set'), run.Options(shrinking=Shrinking(), shard_mib=1))
  shutil.rmtree(folder / 'images')
  (folder / 'set/SHA256SUMS').unlink()


def read_prepared(folder: pathlib.Path) -> Any:
  source = open_source(f'tfds:{folder / "set"}', 'train', data=DataConfig())
  if len(source) > 1000:
    return len(source)
  records = [source[index] for index in range(len(source))]
  return source.class_names, [(record.image, record.label) for record in records]


def listing(folder: pathlib.Path) -> None:
  images(folder / 'images')
  read_listing(folder)


def read_listing(folder: pathlib.Path) -> Any:
  """From the cache, which is made in the folder by the first call."""
  folder_listing._WORTH_KEEPING, folder_listing._SETTLED_NS = 1, -(10**18)
  folder_listing.cache.directory = lambda: folder / 'cache'
  found = folder_listing.list_images(folder / 'images', [''])
  return [found.path(number) for number in range(len(found))]


def config_file(folder: pathlib.Path) -> None:
  (folder / 'config.json').write_text(json.dumps(c.as_json(c.Config())))


def metrics_file(folder: pathlib.Path) -> None:
  lines = ({'step': step, 'train/loss': 1 / step, 'learning_rate': 0.1} for step in range(1, 20))
  (folder / 'metrics.jsonl').write_text(''.join(json_lines.text(line) for line in lines))


def real_labels(folder: pathlib.Path) -> None:
  (folder / 'real.json').write_text(json.dumps([[n % 1000, 3] for n in range(50)]))


def read_real(folder: pathlib.Path) -> Any:
  names = [f'n{number:08}' for number in range(1000)]
  labels = RealLabels(str(folder / 'real.json'), names, names)
  return [labels.of(f'ILSVRC2012_val_{number:08}.JPEG').tolist() for number in range(1, 51)]


def parquet_file(folder: pathlib.Path) -> None:
  """One image a row, as Hugging Face writes them."""
  images(folder / 'images')
  paths = sorted((folder / 'images').rglob('*.png'))
  cells = [{'bytes': path.read_bytes(), 'path': path.name} for path in paths]
  table = pyarrow.table({'image': cells, 'label': [path.parent.name for path in paths]})
  pyarrow.parquet.write_table(table, folder / 'x.parquet')
  shutil.rmtree(folder / 'images')


def name_list(folder: pathlib.Path) -> None:
  (folder / 'names.txt').write_text('cat\ndog\nbird\n')


TARGETS = {
  'npz': Target(checkpoint('npz'), ('vit.npz',), read_checkpoint),
  'safetensors': Target(checkpoint('vit'), ('model/*.safetensors',), read_checkpoint),
  'safetensors, no checksum': Target(
    checkpoint('vit', with_sum=False), ('model/*.safetensors',), read_checkpoint
  ),
  'JSON of transformers': Target(checkpoint('vit'), ('model/*.json',), read_checkpoint),
  'JSON of timm': Target(checkpoint('timm'), ('model/*.json',), read_checkpoint),
  'features.json': Target(prepared, ('set/features.json',), read_prepared),
  'dataset_info.json': Target(prepared, ('set/dataset_info.json',), read_prepared),
  'array_record': Target(prepared, ('set/*.array_record*',), read_prepared),
  'tar': Target(tar, ('x.tar',), read_source),
  'tar in tar.gz': Target(packed_tar, ('x.tar.gz',), read_source),
  'zip': Target(zipped, ('x.zip',), read_source),
  'CSV': Target(csv_table, ('x.csv',), read_source),
  'metadata.jsonl': Target(jsonl_table, ('metadata.jsonl',), read_source),
  'cache of a listing': Target(listing, ('cache/folders/*.npz',), read_listing),
  'config.json': Target(config_file, ('config.json',), lambda folder: repr(resume.read_config(folder))),
  'metrics.jsonl': Target(metrics_file, ('metrics.jsonl',), read_metrics),
  'real.json': Target(real_labels, ('real.json',), read_real),
  'class names': Target(name_list, ('names.txt',), lambda folder: class_names.read(f'{folder}/names.txt', 3)),
  'parquet': Target(parquet_file, ('x.parquet',), read_source),
}


def main() -> None:
  place, seed, first, last = pathlib.Path(sys.argv[1]), *map(int, sys.argv[2:5])
  names = sys.argv[5:] or list(TARGETS)
  (place / 'modules').mkdir(parents=True, exist_ok=True)
  (place / 'modules' / f'{mutations.PAYLOAD}.py').write_text('open(__file__ + ".ran", "w").close()\n')
  sys.path.insert(0, str(place / 'modules'))
  sums = {}
  for name in names:
    folder = place / str(list(TARGETS).index(name))
    if not folder.exists():
      folder.mkdir()
      TARGETS[name].make(folder)
    sums[name] = digest(TARGETS[name].read(folder))
  restrict_memory(MEMORY)
  for number in range(first, last):
    name = names[number % len(names)]
    print(json.dumps(case(place, name, sums[name], f'{seed}/{number}')), flush=True)


def case(place: pathlib.Path, name: str, expected: str, seed: str) -> dict[str, Any]:
  """Damages a file, reads it, and puts it back."""
  rng, target, folder = random.Random(seed), TARGETS[name], place / str(list(TARGETS).index(name))
  file = rng.choice(sorted(path for pattern in target.files for path in folder.glob(pattern)))
  sound = file.read_bytes()
  mark = place / 'modules' / f'{mutations.PAYLOAD}.py.ran'
  found: list[str] = []
  file.write_bytes(mutations.mutated(sound, rng, file.suffix in ('.json', '.jsonl')))
  try:
    kind, text, seconds = outcome(lambda: found.append(digest(target.read(folder))), SECONDS)
  finally:
    file.write_bytes(sound)
  if kind == 'read':
    kind = 'same values' if found == [expected] else 'other values'
  elif kind == 'UserError':
    kind = 'one sentence' if '\n' not in text and len(text) < 2000 else 'no sentence'
  elif kind == 'TooLong':
    kind = 'hang'
  else:
    kind, text = 'traceback', f'{kind}: {text}'
  if mark.exists():
    mark.unlink()
    kind = 'code ran'
  memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
  return {'reader': name, 'case': seed, 'outcome': kind, 'text': text, 'seconds': seconds, 'MiB': memory}


def digest(values: Any) -> str:
  return hashlib.sha256(repr(values).encode(errors='surrogatepass')).hexdigest()


if __name__ == '__main__':
  main()
