"""ImageNet ReaL: reassessed labels of ImageNet's validation images (arXiv 2006.07159).

Each image has a list of the classes that raters found right. A prediction counts as right if it is on the
list; an image with an empty list does not count at all. The labels are google-research/reassessed-imagenet's
real.json: a list of 50,000 lists in the order of the images' numbers, ILSVRC2012_val_00000001.JPEG first.
Classes are numbered in the order of their WordNet ids.
"""

import json
import pathlib
import re
from collections.abc import Sequence

import numpy as np

from vit_jax.foundation import foreign_files
from vit_jax.foundation.errors import UserError
from vit_jax.pretrained import download

URL = 'https://raw.githubusercontent.com/google-research/reassessed-imagenet/master/real.json'
_NUMBER = re.compile(r'ILSVRC2012_val_(\d{8})')
_WORDNET_ID = re.compile(r'n\d{8}')
_CLASSES = 1000
_UNKNOWN = np.iinfo(np.int32).max  # a class that the model does not know, and so never predicts


class RealLabels:
  """The classes that ReaL accepts for each validation image, as a model numbers them."""

  def __init__(self, place: str, own_names: Sequence[str], class_names: Sequence[str]):
    """Reads real.json from a path, an address, or 'download', its public address.

    `own_names` are the classes of the evaluated data in its own order, `class_names` the model's. Raises UserError
    where the file is not there or not real.json, or the classes are not ImageNet's 1,000.
    """
    self._place = place
    self._lists = _read(place)
    are_ids = all(map(_WORDNET_ID.fullmatch, own_names))
    if len(own_names) != _CLASSES or not are_ids or list(own_names) != sorted(own_names):
      raise UserError(
        f'Labels of ImageNet ReaL ({place}) need the 1,000 classes of ImageNet under their WordNet ids (n01440764), '
        f'in their order, and this data has {len(own_names)} classes, {", ".join(own_names[:2])} …; evaluate '
        'tfds:imagenet2012:validation, or leave them out.'
      )
    numbers = {name: number for number, name in enumerate(class_names)}
    self._labels = np.array([numbers.get(name, _UNKNOWN) for name in own_names], np.int32)
    self.longest = max(map(len, self._lists))

  def of(self, record_name: str) -> np.ndarray:
    """int32 (longest,): the classes accepted for an image, padded with -1; only -1 if there are none.

    Raises UserError where the name of the record contains that of none of the validation images.
    """
    found = _NUMBER.findall(record_name)
    if not found or not 1 <= int(found[-1]) <= len(self._lists):
      raise UserError(
        f'{record_name} is not named ILSVRC2012_val_00000001 to {len(self._lists):08}, by which the labels '
        f"of {self._place} are found; evaluate ImageNet's validation images, or leave real_labels out."
      )
    accepted = self._labels[self._lists[int(found[-1]) - 1]]
    result = np.full(self.longest, -1, np.int32)
    result[: len(accepted)] = accepted
    return result


def _read(place: str) -> list[np.ndarray]:
  address = URL if place == 'download' else place
  if download.is_address(address):
    path = download.local_file(address, 'json')
  else:
    path = pathlib.Path(address).expanduser()
  try:
    lists = json.loads(foreign_files.read_text(path))
  except (OSError, ValueError, RecursionError) as error:
    raise UserError(f'The labels of ImageNet ReaL cannot be read from {path} ({error}).') from error
  sound = isinstance(lists, list) and all(
    isinstance(labels, list) and all(type(label) is int and 0 <= label < _CLASSES for label in labels)
    for labels in lists
  )
  if not sound or not any(lists):
    raise UserError(
      f"{path} is not ImageNet ReaL's real.json, a list of lists of classes from 0 to 999; get it from {URL}"
    )
  return [np.array(labels, np.int64) for labels in lists]
