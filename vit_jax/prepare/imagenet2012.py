"""ImageNet's challenge of 2012 as image-net.org gives it out: two tars, and the development kit.

The validation tar has no classes. They are in the kit: a list of numbers in the order of the images' names,
and a table of the WordNet id of each number.
"""

import io
import tarfile
from collections.abc import Iterator

from vit_jax.foundation.errors import UserError
from vit_jax.prepare import archives, storage
from vit_jax.prepare.source_image import SourceImage

_TRAIN, _VAL = 'ILSVRC2012_img_train.tar', 'ILSVRC2012_img_val.tar'
_KIT = 'ILSVRC2012_devkit_t12.tar.gz'
_TRUTH, _TABLE = 'data/ILSVRC2012_validation_ground_truth.txt', 'data/meta.mat'


def is_challenge(source: str) -> bool:
  """Whether a source is a folder with the tar of training images under its own name."""
  return storage.is_folder(source) and storage.exists(storage.join(source, _TRAIN))


def list_images(source: str, *, allow_cut: bool, limit: int | None) -> Iterator[SourceImage]:
  """Lists the images of both tars, `limit` of each class of the training images; arguments as of `Listing`.

  UserError where a file is missing or damaged, or they do not fit each other.
  """
  for name in (_VAL, _KIT):
    if not storage.exists(storage.join(source, name)):
      raise UserError(f'{source} has {_TRAIN} and not {name}; download it from image-net.org too.')
  val_classes = _validation_classes(storage.join(source, _KIT))
  train, val = storage.join(source, _TRAIN), storage.join(source, _VAL)
  for member in archives.members(train, allow_cut=allow_cut, limit=limit):
    if not member.folder:
      raise UserError(
        f'{train} holds {member.name}, and should hold a tar for each class; download it again.'
      )
    yield SourceImage(f'train/{member.name}', train, member.location, member.size, 'train', (member.folder,))
  for member in archives.members(val, allow_cut=allow_cut):
    number = member.name.rpartition('_')[2].partition('.')[0]
    if not number.isdecimal() or not 1 <= int(number) <= len(val_classes):
      raise UserError(f'{val} holds {member.name}, which {_KIT} gives no class; download both again.')
    label = val_classes[int(number) - 1]
    yield SourceImage(f'val/{member.name}', val, member.location, member.size, 'val', (label,))


def _validation_classes(kit: str) -> list[str]:
  """The WordNet ids of the validation images, in the order of their names."""
  import scipy.io

  try:
    with storage.open_file(kit) as file, tarfile.open(fileobj=file, mode='r:gz') as archive:
      contents = {
        path: content.read()
        for info in archive
        for path in (_TRUTH, _TABLE)
        if info.name.endswith(path) and (content := archive.extractfile(info))
      }
    synsets = scipy.io.loadmat(io.BytesIO(contents[_TABLE]), squeeze_me=True)['synsets']
    ids = {int(row['ILSVRC2012_ID']): str(row['WNID']) for row in synsets}
    return [ids[int(number)] for number in contents[_TRUTH].split()]
  except Exception as error:  # tar, gzip and .mat raise many types for a damaged file
    raise UserError(f'{kit} cannot be read ({error}); download it again.') from error
