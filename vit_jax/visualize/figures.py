"""The pictures as matplotlib figures, for the page or for a notebook's `display`.

'The paper' is arXiv 2010.11929.
"""

from collections.abc import Sequence
from typing import Any

import cv2
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from vit_jax.loaded_model import LoadedModel
from vit_jax.visualize import measures, model_parts
from vit_jax.visualize.observations import Observation
from vit_jax.visualize.through_training import Moment

_WIDTH = 10.0  # inches of the widest pictures
_TILES = 16  # maps of position similarity along a side, at most
_ATTENTION = 'inferno'  # black: none
_TINY = np.finfo(np.float32).tiny  # the smallest divisor
_SMALL = 9  # of a font
_BRIGHTEST = 0.98  # quantile of a rollout that is shown brightest: a few outliers would leave the rest dark


def filters(model: LoadedModel, count: int = 28) -> Figure:
  """The first principal components of the filters that meet the pixels (figure 7, left).

  Each goes from its smallest number, black, to its largest, white.
  """
  name, kernel = model_parts.filters(model)
  components, shares = measures.principal_filters(kernel, count)
  columns = min(7, len(components))
  rows = -(-len(components) // columns)
  figure = Figure(figsize=(1.1 * columns + 0.2, 1.1 * rows + 0.75), layout='constrained')
  height, width, _, number = kernel.shape
  figure.suptitle(
    f'{name}: {len(components)} principal components\nof {number:,} filters of {height} × {width} pixels, '
    f'{shares.sum():.0%} of their variance',
    fontsize=10,
  )
  axes = figure.subplots(rows, columns, squeeze=False)
  for axis in axes.flat:
    axis.set_axis_off()
  for axis, component in zip(axes.flat, components):
    low, high = component.min(), component.max()
    show(axis, (component - low) / max(high - low, _TINY))
  return figure


def positions(model: LoadedModel) -> Figure:
  """How similar position embeddings are (figure 7, centre): a map for each patch, whose own place is 1.

  Of many patches, some in equal steps are shown.
  """
  similarity = model_parts.position_similarity(model)
  rows, columns = similarity.shape[:2]
  shown = [np.unique(np.linspace(0, n - 1, min(n, _TILES)).round().astype(int)) for n in (rows, columns)]
  tiles = similarity[np.ix_(*shown)]
  # Cells of several pixels, so that gaps of less than one are possible.
  cell = -(-32 // max(rows, columns))
  gap = max(2, round(0.1 * cell * max(rows, columns)))
  picture = _spaced(tiles.repeat(cell, axis=2).repeat(cell, axis=3), gap)
  high, wide = (0.78 * _WIDTH * side / max(picture.shape) for side in picture.shape)
  figure = Figure(figsize=(max(wide, 4.5) + 1.2, high + 0.9), layout='constrained')
  axis = figure.subplots()
  colours = axis.imshow(picture, cmap='viridis', vmin=-1, vmax=1, interpolation='nearest')
  for set_ticks, places, cells in ((axis.set_yticks, shown[0], rows), (axis.set_xticks, shown[1], columns)):
    side = cell * cells
    set_ticks([number * (side + gap) + (side - 1) / 2 for number in range(len(places))], places + 1)
  axis.tick_params(length=0, labelsize=_SMALL)
  axis.spines[:].set_visible(False)
  which = 'each patch' if tiles.shape == similarity.shape else f'{tiles.shape[0]} × {tiles.shape[1]} patches'
  axis.set(
    xlabel="patch's column",
    ylabel="patch's row",
    title=f'Position embeddings: similarity of {which} to all {rows} × {columns}',
  )
  figure.colorbar(colours, ax=axis, label='cosine similarity', shrink=0.8, pad=0.02)
  return figure


def distances(values: np.ndarray, model: LoadedModel) -> Figure:
  """Mean attention distance of every head by depth (figures 7, right, and 11), of (images, L, H) in pixels."""
  images, depth, heads = values.shape
  size, grid = model_parts.covered(model), model_parts.patch_grid(model)
  assert grid is not None
  figure = Figure(figsize=(8, 5), layout='constrained')
  axis = figure.subplots()
  blocks = np.arange(1, depth + 1)
  # Heads beside each other, so that none hides another.
  offsets = 0.5 * (np.arange(heads) - (heads - 1) / 2) / heads
  mean = values.mean(axis=0)
  axis.scatter(
    (blocks[:, None] + offsets).ravel(),
    mean.ravel(),
    c=np.tile(np.arange(heads), depth),
    cmap='viridis',
    s=28,
    label='a head',
    zorder=3,
  )
  axis.plot(blocks, mean.mean(axis=1), color='0.35', linewidth=1.2, label='mean of the heads', zorder=2)
  alike = measures.patch_distances(grid, size).mean()
  axis.axhline(alike, color='C3', linestyle='--', linewidth=1, label='attention to all alike', zorder=1)
  axis.set(
    title=f'Mean attention distance, {images} {"image" if images == 1 else "images"} '
    f'of {size[0]} × {size[1]} pixels',
    xlabel='block',
    ylabel='pixels',
    xlim=(0.4, depth + 0.6),
    ylim=(0, 1.12 * max(mean.max(), alike)),
  )
  axis.set_xticks(blocks if depth <= 16 else blocks[::2])
  axis.grid(axis='y', alpha=0.3)
  axis.spines[['top', 'right']].set_visible(False)
  figure.legend(loc='outside lower center', ncols=3, frameon=False, fontsize=_SMALL)
  return figure


def patches(seen: Observation) -> Figure:
  """The image cut into patches, row by row from the upper left."""
  assert seen.grid is not None
  rows, columns = seen.grid
  # Pixels of the picture along a patch; small images are enlarged.
  side = max(12, *(round(n / cells) for n, cells in zip(seen.photograph.shape, seen.grid)))
  size = (columns * side, rows * side)
  photo = cv2.resize(seen.photograph, size, interpolation=cv2.INTER_NEAREST)
  tiles = photo.reshape(rows, side, columns, side, -1).transpose(0, 2, 1, 3, 4)
  picture = _spaced(tiles, max(2, side // 8), fill=1.0)
  scale = 5 / max(picture.shape[:2])  # inches of a pixel
  size = (max(scale * picture.shape[1], 3.5), scale * picture.shape[0] + 0.4)
  figure = Figure(figsize=size, layout='constrained')
  axis = figure.subplots()
  show(axis, picture)
  height, width = seen.photograph.shape[:2]
  axis.set_title(
    f'{rows} × {columns} = {rows * columns} patches of {height / rows:g} × {width / columns:g} pixels',
    fontsize=10,
  )
  return figure


def layers(seen: Observation) -> Figure:
  """The tokens of each depth, their first three principal components as red, green and blue."""
  assert seen.layers is not None
  titles = ['photograph', 'before block 1']
  titles += [f'block {number}' for number in range(1, len(seen.layers))]
  rows = -(-len(titles) // 7)
  figure, axes = _tiles(len(titles), -(-len(titles) // rows), seen.photograph.shape)
  figure.suptitle("Through the layers: the tokens' first three principal components as colours", fontsize=10)
  for axis, title, picture in zip(axes, titles, [seen.photograph, *seen.layers]):
    show(axis, picture)
    axis.set_title(title, fontsize=_SMALL)
  return figure


def heads(seen: Observation) -> Figure:
  """Attention to each patch in every head of every block, each map from 0 to its own largest weight."""
  assert seen.heads is not None
  depth, number = seen.heads.shape[:2]
  aspect = seen.photograph.shape[0] / seen.photograph.shape[1]
  figure, axes = matrix(depth, number, aspect, (0.8, 1.2))
  title = f'Attention maps: what {seen.attending} attends to'
  # Clear of the heads' numbers.
  figure.suptitle(title, fontsize=10, y=1 + 0.06 / figure.get_figheight(), va='bottom')
  colours: Any = None
  for block in range(depth):
    for head in range(number):
      axis, weights = axes[block, head], seen.heads[block, head]
      colours = axis.imshow(
        weights / max(weights.max(), _TINY), cmap=_ATTENTION, vmin=0, vmax=1,
        extent=(0, 1, 0, aspect), interpolation='nearest',
      )  # fmt: skip
      axis.set(xticks=[], yticks=[])
      axis.spines[:].set_visible(False)
      if block == 0:
        axis.set_title(f'head {head + 1}' if number <= 8 else f'{head + 1}', fontsize=_SMALL)
      if head == 0:
        axis.set_ylabel(f'block {block + 1}', fontsize=_SMALL, rotation=0, ha='right', va='center')
  _attention_bar(figure, colours, axes, 'share of the largest weight in the map')
  return figure


def rollout(seen: Observation) -> Figure:
  """The photograph, attention rollout, and the photograph lit by the rollout (figures 6 and 14)."""
  assert seen.rollout is not None
  height, width = seen.photograph.shape[:2]
  figure, axes = _tiles(3, 3, seen.photograph.shape, inches=3.1)
  figure.suptitle(f'Attention rollout to {seen.attending}', fontsize=10)
  show(axes[0], seen.photograph)
  axes[0].set_title('photograph', fontsize=_SMALL)
  colours = axes[1].imshow(
    _share(seen.rollout), cmap=_ATTENTION, vmin=0, vmax=1, extent=(0, width, height, 0)
  )
  axes[1].set_title('rollout', fontsize=_SMALL)
  show(axes[2], lit(seen.photograph, seen.rollout))
  axes[2].set_title('photograph × rollout', fontsize=_SMALL)
  _attention_bar(figure, colours, axes, f'rollout, as a share of its {_BRIGHTEST:.0%} quantile')
  return figure


def steps(moments: Sequence[Moment]) -> Figure:
  """A column for each step: the tokens before the first block and after each, and attention rollout."""
  columns = [_of_moment(moment) for moment in moments]
  shape = moments[0].seen.photograph.shape
  figure, axes = matrix(len(columns[0]), len(columns), shape[0] / shape[1], (1.0, 0.9))
  for column, (moment, pictures) in enumerate(zip(moments, columns, strict=True)):
    for row, (title, picture) in enumerate(pictures.items()):
      axis = axes[row, column]
      show(axis, picture)
      if row == 0:
        axis.set_title(f'{moment.step:,}', fontsize=_SMALL)
      if column == 0:
        axis.text(-0.08, 0.5, title, fontsize=_SMALL, ha='right', va='center', transform=axis.transAxes)
  figure.suptitle('Through training: a column for each step', fontsize=10)
  return figure


def moment(moment: Moment) -> Figure:
  """One frame of the animation: the photograph, what the model of a step makes of it, and its best class."""
  pictures = {'photograph': moment.seen.photograph, **_of_moment(moment)}
  figure, axes = _tiles(len(pictures), min(7, len(pictures)), moment.seen.photograph.shape)
  best = ''.join(f': {name} {share:.0%}' for name, share in moment.seen.predictions[:1])
  figure.suptitle(f'step {moment.step:,}{best}', fontsize=10)
  for axis, (title, picture) in zip(axes, pictures.items(), strict=True):
    show(axis, picture)
    axis.set_title(title, fontsize=_SMALL)
  return figure


def _of_moment(moment: Moment) -> dict[str, np.ndarray]:
  """Title -> (h, w, 1 or 3) in 0 … 1."""
  seen = moment.seen
  assert seen.layers is not None
  pictures = {'patch embedding': seen.layers[0]}
  pictures |= {f'block {number}': layer for number, layer in enumerate(seen.layers[1:], 1)}
  if seen.rollout is not None:
    pictures['rollout'] = lit(seen.photograph, seen.rollout)
  return pictures


def matrix(rows: int, columns: int, aspect: float, margins: tuple[float, float]) -> tuple[Figure, Any]:
  """A figure and its axes, close to each other; the margins, in inches, are beside all and above and below all."""
  side = min(_WIDTH / (columns + 1), 1.2)
  size = (max(side * columns + margins[0], 5), side * aspect * rows + margins[1])
  engine = ConstrainedLayoutEngine(w_pad=0.02, h_pad=0.02, wspace=0, hspace=0, compress=True)
  figure = Figure(figsize=size, layout=engine)
  return figure, figure.subplots(rows, columns, squeeze=False)


def _share(rollout: np.ndarray) -> np.ndarray:
  """(rows, columns) in 0 … 1, the outliers at 1."""
  return np.minimum(rollout / max(np.quantile(rollout, _BRIGHTEST), _TINY), 1)


def lit(photograph: np.ndarray, rollout: np.ndarray) -> np.ndarray:
  """The photograph (H, W, C) in 0 … 1, bright where the rollout (rows, columns) is."""
  return photograph * (0.2 + 0.8 * _smooth(_share(rollout), photograph.shape[:2])[..., None])


def _attention_bar(figure: Figure, colours: Any, axes: Any, label: str) -> None:
  bar = figure.colorbar(colours, ax=axes, location='bottom', shrink=0.8, aspect=30, pad=0.03)
  bar.ax.tick_params(labelsize=_SMALL)
  bar.set_label(label, fontsize=_SMALL)


def show(axis: Axes, picture: np.ndarray) -> None:
  """(h, w, 1 or 3) in 0 … 1, its first row above, without axes."""
  gray = picture.shape[-1] == 1
  axis.imshow(picture[..., 0] if gray else picture, cmap='gray', vmin=0, vmax=1, interpolation='nearest')
  axis.set_axis_off()


def _tiles(
  count: int, columns: int, shape: tuple[int, ...], inches: float | None = None
) -> tuple[Figure, Any]:
  """A figure, and `count` axes of it, for pictures whose sides are as those of `shape`."""
  rows, aspect = -(-count // columns), shape[0] / shape[1]
  width = inches or min(_WIDTH / columns, 2.0)
  title = 0.75 if inches is None else 1.3  # there is a bar too
  figure = Figure(figsize=(width * columns, rows * (width * aspect + 0.25) + title), layout='compressed')
  axes = figure.subplots(rows, columns, squeeze=False).ravel()
  for axis in axes:
    axis.set_axis_off()
  return figure, axes[:count]


def _spaced(tiles: np.ndarray, gap: int, fill: float = np.nan) -> np.ndarray:
  """(rows, columns, h, w, ...) as one picture, with gaps."""
  rows, columns, height, width, *rest = tiles.shape
  shape = (rows * (height + gap) - gap, columns * (width + gap) - gap, *rest)
  picture = np.full(shape, fill)
  for row in range(rows):
    for column in range(columns):
      top, left = row * (height + gap), column * (width + gap)
      picture[top : top + height, left : left + width] = tiles[row, column]
  return picture


def _smooth(share: np.ndarray, size: tuple[int, int]) -> np.ndarray:
  """(rows, columns) in 0 … 1 -> float64 of `size`, each patch's number at its centre."""
  return np.clip(cv2.resize(share.astype(np.float64), size[::-1], interpolation=cv2.INTER_CUBIC), 0, 1)
