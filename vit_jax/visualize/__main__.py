"""Draws what a model sees: its filters, positions and attention, as pictures and a page that shows them.

vit_jax visualize --checkpoint=runs/mine --out=seen photo.jpg photos/
vit_jax visualize --checkpoint=runs/mine --out=seen --count=20 --average_over=500 photos/
vit_jax visualize --checkpoint=runs/mine --out=seen --steps=all photo.jpg
vit_jax visualize --checkpoint=imagenet21k+imagenet2012/ViT-L_16 --image_size=512 --out=seen photos/

The checkpoint is what `vit_jax.load` takes; a folder stands for all images below it. Open seen/index.html:
it needs no network. The page and the screen say which pictures the model does not have, and why. An image
that cannot be read is named on stderr and left out; the exit code is then 2. docs/visualize.md explains the
pictures.
"""

import pathlib
import sys
from collections.abc import Sequence

import numpy as np
from absl import flags

from vit_jax import cli
from vit_jax.data.image_files import image_files
from vit_jax.foundation import files, foreign_files
from vit_jax.foundation.errors import UserError

_CHECKPOINT = cli.define_checkpoint()
_OUT = flags.DEFINE_string('out', None, 'A folder for the pictures and index.html.')
_IMAGE_SIZE = flags.DEFINE_list(
  'image_size', None, 'Pixels, or height,width, to adapt the model to. Without: as it was trained.'
)
_COUNT = flags.DEFINE_integer(
  'count', 8, 'Images to draw; where there are more, in equal steps through them.', lower_bound=1
)
_AVERAGE_OVER = flags.DEFINE_integer(
  'average_over', 128, 'Images that attention distance is averaged over, if there are so many.', lower_bound=1
)
_STEPS = flags.DEFINE_list(
  'steps',
  [],
  'Draw images through training too: all checkpoints that the run keeps, or some, such as 100,500.',
)
_DPI = flags.DEFINE_integer(
  'dpi', 110, 'Pixels an inch of the figures; 600 for a paper.', lower_bound=30, upper_bound=2400
)
_ALSO = flags.DEFINE_enum('also', None, ['svg', 'pdf'], 'A second file of each figure, of lines and text.')
_WEIGHTS = cli.define_weights()
_CLASS_NAMES = cli.define_class_names()


def main(arguments: Sequence[str]) -> None:
  """Writes the pictures and the page."""
  checkpoint, out = cli.required(_CHECKPOINT), cli.local_folder(_OUT)
  if not arguments:
    raise cli.missing_arguments('Name the images to look at, or folders of them, behind the flags')
  image_size = _image_size(_IMAGE_SIZE.value)
  paths = image_files(arguments)
  from vit_jax.data.decode import Picture
  from vit_jax.loading import load
  from vit_jax.parallel import distributed
  from vit_jax.pretrained import class_names
  from vit_jax.visualize import gallery, through_training
  from vit_jax.visualize.model_parts import grouped

  distributed.skip_absent_tpu()
  steps = through_training.chosen_steps(checkpoint, _STEPS.value) if _STEPS.value else []
  model = load(checkpoint, image_size=image_size, weights=_WEIGHTS.value)
  model.squash('Visualize')
  given = _CLASS_NAMES.value
  names = None if given is None else class_names.read(given, model.num_classes)
  files.make_directories(out)  # before the work, but not for a command that is refused
  count, average_over = cli.required(_COUNT), cli.required(_AVERAGE_OVER)
  averaged = gallery.spread(paths, max(average_over, count))
  shown = gallery.spread(averaged, count)
  asked: list[pathlib.Path] = []  # of `averaged`; without attention of `shown` alone
  unreadable: list[pathlib.Path] = []

  def read(path: pathlib.Path) -> np.ndarray | None:
    asked.append(path)
    try:
      return Picture(
        foreign_files.read_bytes(path, foreign_files.LARGEST_IMAGE), model.preprocess.channels, str(path)
      ).pixels()
    except (UserError, OSError) as error:
      unreadable.append(path)
      print(error, file=sys.stderr)
      return None

  absent = gallery.make(
    model,
    averaged,
    shown,
    read,
    gallery.Output(out, cli.required(_DPI), _ALSO.value),
    title=checkpoint,
    class_names=names,
    steps=through_training.models(checkpoint, steps, image_size, _WEIGHTS.value),
  )
  for titles, reason in grouped(absent):
    print(f'No {titles.lower()}: {reason}')
  files.sync(
    [
      out / 'index.html',
      *(path for kind in ('png', 'gif', 'csv', 'svg', 'pdf') for path in out.glob(f'*.{kind}')),
    ]
  )
  drawn = len(shown) - len(set(shown) & set(unreadable))
  more = '' if drawn == len(paths) else '; --count=N draws more'
  print(f'Wrote {out / "index.html"}: {drawn} of {len(paths)} images are drawn{more}.')
  if unreadable:
    text = f'{len(unreadable)} of {len(asked)} images could not be read and are left out'
    raise UserError(f'{text}; restore or remove them.')


def _image_size(texts: Sequence[str] | None) -> tuple[int, int] | None:
  """Height and width of --image_size."""
  if texts is None:
    return None
  numbers = [int(text) if text.isdecimal() else 0 for text in texts]
  if len(numbers) not in (1, 2) or min(numbers) < 1:
    raise UserError(
      f'--image_size={",".join(texts)} is no size; write pixels, or height,width, such as 384 or 224,320.'
    )
  return numbers[0], numbers[-1]


if __name__ == '__main__':
  cli.run(main, positional=True)
