"""Where records come from: `digits[:SPLIT]`, `tfds:NAME[:SPLIT]`, `tfds:/a/prepared/directory[:SPLIT]` and
`folder:/path[:SPLIT]`.

A split is what TFDS takes: 'train', 'train[:90%]', 'train[100:]', 'train+test'. What follows the last colon
is read as a split if it looks like one and the whole is not an existing directory.
"""

import os
import re
from collections.abc import Sequence

from vit_jax import config
from vit_jax.data.digits import DigitsSource
from vit_jax.data.folder import FolderSource
from vit_jax.data.prepared import PreparedSource, builder_of
from vit_jax.data.records import SPLITS, Source
from vit_jax.errors import UserError

_WITH_SPLIT = re.compile(rf'(.+):({SPLITS.pattern})')


def open_source(
  spec: str, split: str, *, data: config.Data, class_names: Sequence[str] | None = None
) -> Source:
  """The records of a source.

  Args:
    spec: see the module's text.
    split: what to read unless the spec says so itself.
    data: its val_fraction is what a folder without splits holds out.
    class_names: label -> name, from a checkpoint; None: what the data set says.

  Raises:
    UserError: no such source, data set or split, or data in a form that cannot be read.
  """
  kind, rest, split = parse(spec, split)
  if kind == 'digits':
    return DigitsSource(split, class_names)
  if kind == 'folder':
    return FolderSource(rest, split, val_fraction=data.val_fraction, class_names=class_names)
  return PreparedSource(builder_of(rest), split, class_names)


def parse(spec: str, split: str) -> tuple[str, str, str]:
  """'tfds:cifar10:train[:98%]' -> ('tfds', 'cifar10', 'train[:98%]'); `split` if the spec has none."""
  kind, _, rest = spec.partition(':')
  if kind == 'digits':
    return kind, '', rest or split
  if kind not in ('tfds', 'folder') or not rest:
    raise UserError(
      f"{spec!r} is not a source; write 'digits', 'tfds:NAME', 'tfds:/a/prepared/directory' "
      f"or 'folder:/path'."
    )
  match = _WITH_SPLIT.fullmatch(rest)
  if match and not os.path.isdir(os.path.expanduser(rest)):
    return kind, match[1], match[2]
  return kind, rest, split
