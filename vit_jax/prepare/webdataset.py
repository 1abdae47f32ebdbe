"""Shards of WebDataset: tars of samples, each an image and files of the same name (`.cls`, `.json`, `.txt`).

A sample's name ends at the first dot of the last part of its path. Its class is the content of `.cls`, the
number or name of one class; without `.cls`, `.json` has it, or a list of classes and perhaps their weights. Its
captions are the content of a file of another ending, such as `.txt`, or a field of `.json`.
"""

import itertools
import json
import posixpath
from collections.abc import Iterator
from typing import Any

from vit_jax.data.sources.folder_listing import EXTENSIONS
from vit_jax.foundation.errors import UserError
from vit_jax.prepare import archives, sample_labels
from vit_jax.prepare.archives import Member
from vit_jax.prepare.captions import captions_of
from vit_jax.prepare.source_image import SourceImage
from vit_jax.prepare.tables import Columns

_LABEL_PARTS = ('cls', 'json')
_LARGEST_TEXT = 2**20  # bytes of a .cls, .json or .txt file
_LOOKED_AT = 20  # members of the first tar, which tell whether it is a shard


def is_shards(source: str, columns: Columns) -> bool:
  """Whether a source is a shard, or a folder whose first archive is one."""
  first = archives.first_data(source)
  if not first.lower().endswith('.tar'):
    return False
  try:
    members = list(itertools.islice(archives.members(first, allow_cut=True), _LOOKED_AT))
  except UserError:  # damaged, of which listing it says more
    return False
  names = {member.name for member in members if not member.folder}
  images = {_key(name) for name in names if _is_image(name)}
  return any(_key(name) in images and _part(name) in (*_LABEL_PARTS, columns.caption) for name in names)


def list_images(
  source: str, columns: Columns, *, allow_cut: bool, limit: int | None
) -> Iterator[SourceImage]:
  """Lists the samples of all shards, of each at most `limit`; arguments as of `Listing`.

  UserError where a shard cannot be read, a sample has no label, or there is other data beside the shards.
  """
  for name, place in archives.data_files(source, '.tar'):
    shard = archives.stem(name)
    split = sample_labels.split_of(shard)
    members = archives.members(place, allow_cut=allow_cut)
    samples = (group for _, group in itertools.groupby(members, key=lambda member: _key(member.name)))
    images = (image for group in samples if (image := _image(place, shard, list(group), columns)))
    for image in itertools.islice(images, limit):
      yield image._replace(split=split)


def _image(place: str, shard: str, members: list[Member], columns: Columns) -> SourceImage | None:
  """The image of a sample; None: the files of this name are no sample, for they have no image."""
  images = [member for member in members if _is_image(member.name)]
  parts = {_part(member.name): member for member in members}
  where = f'{place}: {members[0].name}'
  if any(member.folder for member in members):
    raise UserError(f'{where} is in an archive within the shard; give a folder of the shards alone.')
  if not images and 'cls' not in parts:
    return None
  if len(images) != 1:
    raise UserError(
      f'{where} is of a sample of {len(images)} images, and it should have one; correct the shard.'
    )
  image = images[0]
  where = f'{place}: {image.name}'
  of_cls = columns.has_labels and 'cls' in parts and columns.label in (None, 'cls')
  of_json = columns.has_labels and not of_cls
  if of_json and 'json' not in parts:
    raise UserError(
      f'{where} has no label, neither a .cls nor a .json file; list the images in a .csv file, or '
      'name the ending of its captions with --caption_column=txt.'
    )
  own_file = parts.get(columns.caption or '')
  # Read once, and only for what it has: where shards are far away, each file is a request.
  reads_json = of_json or (columns.caption is not None and own_file is None)
  fields: dict[str, Any] = _json(place, parts['json']) if reads_json and 'json' in parts else {}
  caption = _text(place, own_file) if own_file else fields.get(columns.caption or '')
  fields = {'cls': _text(place, parts['cls'])} if of_cls else fields
  labels, weights = sample_labels.labels_and_weights(fields, columns, where)
  name, captions = f'{shard}/{image.name}', captions_of(caption, where)
  return SourceImage(name, place, image.location, image.size, '', labels, weights, captions)


def _text(place: str, member: Member) -> str:
  try:
    if member.size > _LARGEST_TEXT:
      raise OSError(f'it has {member.size} bytes, too many for a label or a caption')
    return archives.read(place, member.location, member.size).decode('utf-8').strip()
  except (OSError, EOFError, UnicodeDecodeError) as error:
    raise UserError(f'{place}: {member.name} cannot be read ({error}); restore the shard.') from error


def _json(place: str, member: Member) -> dict[str, Any]:
  try:
    content = json.loads(_text(place, member))
    if not isinstance(content, dict):
      raise ValueError('it is no object')
  except (ValueError, RecursionError) as error:
    raise UserError(f'{place}: {member.name} is not JSON ({error}); correct the shard.') from error
  return content


def _key(name: str) -> str:
  folder, base = posixpath.split(name)
  return posixpath.join(folder, base.partition('.')[0])


def _part(name: str) -> str:
  return posixpath.basename(name).partition('.')[2].lower()


def _is_image(name: str) -> bool:
  return name.lower().endswith(EXTENSIONS)
