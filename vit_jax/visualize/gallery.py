"""All pictures of a model and some images, written to a folder with a page that shows them."""

import csv
import pathlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

import jax
import numpy as np
from flax import nnx
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

from vit_jax.foundation.errors import UserError
from vit_jax.loaded_model import LoadedModel
from vit_jax.models.capabilities import leading_tokens
from vit_jax.visualize import figures, foreground, measures, model_parts, page, through_training
from vit_jax.visualize.observations import Observation, Observer
from vit_jax.visualize.through_training import Moment

_STRIP = 10  # steps of training side by side, at most
_FRAME_MILLISECONDS = 600
_PHOTOGRAPH = 224  # pixels along the longer side, at least


class Output(NamedTuple):
  """Where and how figures are written."""

  folder: pathlib.Path
  dpi: int = 110  # of the PNGs
  also: str | None = None  # 'svg' or 'pdf': a second file of each figure, of lines and text


# Path -> uint8 pixels; None where the file cannot be read.
Read = Callable[[pathlib.Path], np.ndarray | None]
T = TypeVar('T')


def spread(items: Sequence[T], count: int) -> list[T]:
  """`count` of them in equal steps, the first and the last among them; all, if there are no more."""
  places = np.linspace(0, len(items) - 1, min(count, len(items))).round().astype(int)
  return [items[place] for place in places]


def make(
  model: LoadedModel,
  paths: Iterable[pathlib.Path],
  shown: Sequence[pathlib.Path],
  read: Read,
  output: Output,
  *,
  title: str,
  class_names: tuple[str, ...] | None = None,
  steps: Iterable[tuple[int, LoadedModel]] = (),
) -> Mapping[str, str]:
  """Writes PNGs, index.html and, of a model that has attention, distances.csv; picture -> why the model has none of it.

  Args:
    model: of `vit_jax.load`.
    paths: images that the attention distance is averaged over; `shown` are among them.
    shown: images with pictures of their own.
    read: a path's uint8 pixels, or None: to be left out.
    output: its folder is there.
    title: of the page, the checkpoint's name.
    class_names: of the logits; None: the model's own, or numbers.
    steps: (step of training, model), in ascending order, whose pictures of each image stand side by side.

  Raises:
    UserError: none of the images can be read.
  """
  observer, out = Observer(model, class_names), output.folder
  drawn, distances, images = [], [], []
  for path in paths if 'distances' not in observer.absent else shown:
    if (pixels := read(path)) is None:
      continue
    if path in shown:
      seen = observer.look(pixels, str(path))
      drawn.append((seen, _draw_image(seen, f'image_{len(drawn) + 1}', observer.absent, output)))
      distances.append(seen.distances)
      images.append(pixels)
    else:
      distances.append(observer.distances(pixels))
  if not drawn:
    raise UserError('None of the images can be read; restore them, or name others.')
  if 'layers' not in observer.absent:
    for number, moments in enumerate(through_training.watch(steps, images, class_names)):
      drawn[number][1].update(_draw_steps(moments, f'image_{number + 1}', output))
  files = _draw_model(model, distances, [seen for seen, _ in drawn], observer.absent, output)
  if 'distances' not in observer.absent:
    _write_distances(model, np.stack(distances), out / 'distances.csv')
  text = page.write(_facts(model, title, len(distances), observer.absent), files, drawn)
  # A file's name may have bytes that are not UTF-8.
  (out / 'index.html').write_text(text, encoding='utf-8', errors='backslashreplace')
  return observer.absent


def _draw_model(
  model: LoadedModel,
  distances: Sequence[np.ndarray],
  seen: Sequence[Observation],
  absent: Mapping[str, str],
  output: Output,
) -> dict[str, str]:
  draw: dict[str, Callable[[], Figure]] = {
    'filters': lambda: figures.filters(model),
    'positions': lambda: figures.positions(model),
    'distances': lambda: figures.distances(np.stack(distances), model),
    'pca': lambda: foreground.pca(seen),
  }
  chosen = {picture: draw[picture] for picture in model_parts.OF_MODEL if picture not in absent}
  return _save(chosen, '', output)


def _write_distances(model: LoadedModel, values: np.ndarray, path: pathlib.Path) -> None:
  """The numbers of distances.png, in pixels: a row for each block, and one for attention to all patches alike."""
  grid = model_parts.patch_grid(model)
  assert grid is not None
  heads = values.shape[2]
  alike = measures.patch_distances(grid, model_parts.covered(model)).mean()
  with path.open('w', encoding='utf-8', newline='') as file:
    rows = csv.writer(file)
    rows.writerow(['block', 'mean', *(f'head_{number + 1}' for number in range(heads))])
    for number, block in enumerate(values.mean(axis=0)):
      rows.writerow([number + 1, *(f'{value:.4f}' for value in (block.mean(), *block))])
    rows.writerow(['alike', *[f'{alike:.4f}'] * (1 + heads)])


def _draw_image(seen: Observation, prefix: str, absent: Mapping[str, str], output: Output) -> dict[str, str]:
  photograph = f'{prefix}.png'
  _as_image(seen.photograph).save(output.folder / photograph)
  draw: dict[str, Callable[[], Figure]] = {
    'patches': lambda: figures.patches(seen),
    'layers': lambda: figures.layers(seen),
    'heads': lambda: figures.heads(seen),
    'rollout': lambda: figures.rollout(seen),
  }
  chosen = {picture: draw[picture] for picture in model_parts.OF_IMAGE if picture not in absent}
  return {'photograph': photograph, **_save(chosen, f'{prefix}_', output)}


def _draw_steps(moments: Sequence[Moment], prefix: str, output: Output) -> dict[str, str]:
  """The strip of a step each, and the animation; {} without steps."""
  if not moments:
    return {}
  frames = [_pixels(figures.moment(moment)) for moment in moments]
  animation = f'{prefix}_steps.gif'
  frames[0].save(
    output.folder / animation, save_all=True, append_images=frames[1:], duration=_FRAME_MILLISECONDS, loop=0
  )
  strip = spread(moments, _STRIP)
  return {**_save({'steps': lambda: figures.steps(strip)}, f'{prefix}_', output), 'animation': animation}


def _pixels(figure: Figure) -> Image.Image:
  canvas = FigureCanvasAgg(figure)
  canvas.draw()
  return Image.fromarray(np.asarray(canvas.buffer_rgba())[..., :3].copy())


def _save(draw: Mapping[str, Callable[[], Figure]], prefix: str, output: Output) -> dict[str, str]:
  """picture -> the name of its PNG."""
  files = {picture: f'{prefix}{picture}.png' for picture in draw}
  for picture, function in draw.items():
    figure, path = function(), output.folder / files[picture]
    figure.savefig(path, dpi=output.dpi, bbox_inches='tight')
    if output.also:
      figure.savefig(path.with_suffix(f'.{output.also}'), dpi=output.dpi, bbox_inches='tight')
  return files


def _as_image(photograph: np.ndarray) -> Image.Image:
  """Small ones enlarged by a whole number, their pixels squares."""
  pixels = (255 * photograph).round().astype(np.uint8)
  times = -(-_PHOTOGRAPH // max(pixels.shape[:2]))
  pixels = pixels.repeat(times, axis=0).repeat(times, axis=1)
  return Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels)


def _facts(model: LoadedModel, title: str, averaged: int, absent: Mapping[str, str]) -> page.Facts:
  height, width = model.preprocess.size
  parameters = sum(leaf.size for leaf in jax.tree.leaves(nnx.state(model.module, nnx.Param)))
  return page.Facts(
    title=title,
    rows={
      'model': model.config.describe(),
      'parameters': f'{parameters:,}',
      'input': f'{height} × {width} pixels, {"colour" if model.preprocess.channels == 3 else "gray"}',
    },
    absent=absent,
    averaged=f'{averaged} images' if averaged > 1 else 'one image',
    hybrid=model.config.first_layer.kernel == 'stem/root/kernel',
    leading_tokens=leading_tokens(model.module) > 0,
  )
