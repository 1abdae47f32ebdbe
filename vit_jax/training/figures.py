"""Pictures of a run in `report/`: its first batch and its curves."""

import pathlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

import jax
import numpy as np
from flax import nnx

from vit_jax.config import Config
from vit_jax.data import geometry
from vit_jax.data.config import DataConfig
from vit_jax.foundation.naflex import Patches
from vit_jax.models.capabilities import Attends
from vit_jax.training import metrics
from vit_jax.training.run import Run
from vit_jax.training.step import Batch, Params, model_inputs

if TYPE_CHECKING:
  from matplotlib.axes import Axes
  from matplotlib.figure import Figure

_ATTENTION_IMAGES = 4
_LONG = 100  # points of a curve, from which on it is smoothed
_MOST_ATTENTION_BYTES = 4 * 2**30  # all blocks and heads of these images are in memory at once


def draw_first_batch(run: Run, batch: Batch, workdir: pathlib.Path) -> None:
  """Writes report/first_batch.png, on process 0, of the rows of step 0 that its first device holds; all call this."""
  inputs = jax.jit(lambda batch: model_inputs(run.config, batch, 0))(batch)
  if jax.process_index() != 0:
    return
  del inputs['key']
  arrays = jax.tree.map(lambda leaf: np.asarray(leaf.addressable_data(0)), inputs)
  images = arrays['image']
  if isinstance(images, Patches):
    images = list(map(geometry.picture, images.pixels, images.grids))
  labels = [arrays[name].reshape(len(images), -1) for name in ('label', 'label_b') if name in arrays]
  path = workdir / 'report' / 'first_batch.png'
  save_first_batch(path, images, np.concatenate(labels, axis=1), run.dataset.class_names, run.config.data)


def draw_attention(run: Run, params: Params, batch: Batch, workdir: pathlib.Path) -> None:
  """Writes report/attention.png: images of a batch and the attention that their patches get in the last block.

  It is the mean over heads, from the class token if the head reads it, otherwise over all tokens. The CPU computes
  it, since training may fill the memory of the devices.
  Nothing is written of a model without attention, of images of any shape, in a run of several processes, or where the
  weights take more than 4 GiB.
  """
  if jax.process_count() > 1 or run.config.data.max_patches:
    return
  prepared = jax.jit(lambda batch: model_inputs(run.config, batch, 0)['image'])(batch)
  images = np.asarray(prepared.addressable_data(0))[:_ATTENTION_IMAGES]
  network = run.architecture.abstract()
  if not isinstance(network, Attends):
    return
  graphdef = nnx.graphdef(network)
  function = jax.jit(lambda params, images: nnx.merge(graphdef, params).attention(images))
  if 4 * jax.eval_shape(function, params, images).size > _MOST_ATTENTION_BYTES:
    return
  weights = function(*jax.device_put((jax.device_get(params), images), jax.local_devices(backend='cpu')[0]))
  rows, columns = run.config.model.grid(images.shape[1:3])
  reads_class_token = network.reads_class_token
  heads_mean = np.asarray(weights)[-1].mean(axis=1)  # (B, N, N)
  received = heads_mean[:, 0] if reads_class_token else heads_mean.mean(axis=1)
  received = received[:, -rows * columns :].reshape(-1, rows, columns)
  figure = _figure(2 * len(images), 4.4)
  who = 'of the class token, mean over heads' if reads_class_token else 'mean over heads and tokens'
  figure.suptitle(f'Attention to each patch in the last block, {who}')
  height, width = run.config.model.covered(images.shape[1:3])
  axes = figure.subplots(2, len(images), squeeze=False).T
  for (above, below), image, share in zip(axes, images, received, strict=True):
    _show(above, image[:height, :width], run.config.data)
    below.imshow(share, cmap='inferno', extent=(0, width, height, 0))
    below.set_axis_off()
  figure.savefig(workdir / 'report' / 'attention.png', dpi=100)


def save_first_batch(
  path: pathlib.Path,
  images: Sequence[np.ndarray],
  labels: np.ndarray,
  class_names: tuple[str, ...],
  data: DataConfig,
) -> None:
  """Draws the first 32 images as the model is given them, (H, W, C) each in `data.value_range`, with their labels.

  Those are int (B,), or (B, max_labels) padded with -1.
  """
  images, labels = images[:32], labels[:32]
  columns = 8
  rows = -(-len(images) // columns)
  figure = _figure(1.5 * columns, 1.75 * rows + 0.5)
  low, high = data.value_range
  height, width, channels = images[0].shape
  size = f'at most {max(data.max_patches)} patches' if data.max_patches else f'{height} × {width}'
  values = f'{np.min(low):.4g} to {np.max(high):.4g}'
  figure.suptitle(f'First batch: {size} × {channels}, values {values}')
  axes = np.atleast_2d(figure.subplots(rows, columns))
  for axis in axes.flat:
    axis.set_axis_off()
  for axis, image, label in zip(axes.flat, images, labels, strict=False):
    _show(axis, image, data)
    name = ', '.join(class_names[number] for number in np.ravel(label) if number >= 0)
    axis.set_title(name if len(name) <= 16 else name[:15] + '…', fontsize=9, parse_math=False)
  path.parent.mkdir(parents=True, exist_ok=True)
  figure.savefig(path, dpi=100)


def _show(axis: 'Axes', image: np.ndarray, data: DataConfig) -> None:
  """Draws an image as the model is given it, float (height, width, channels) in `data.value_range`."""
  low, high = data.value_range
  pixels = np.clip((image - low) / (high - low), 0, 1)
  axis.imshow(pixels if image.shape[-1] == 3 else pixels[..., 0], cmap='gray', vmin=0, vmax=1)
  axis.set_axis_off()


def save_curves(workdir: pathlib.Path, config: Config | None = None) -> None:
  """Draws losses, scores and learning rate over steps from `metrics.jsonl` into report/curves.png.

  Long curves are faint, with a smoothed line over them. What makes the loss of training another than that of an
  evaluator, by the config, is the title of their panel.
  """
  lines = metrics.read_metrics(workdir)
  names = sorted({name for line in lines for name in line})
  panels = {
    'loss': [name for name in names if name.endswith('/loss')],
    'accuracy': [name for name in names if name.endswith('/accuracy')],
    'learning rate': [name for name in names if name == 'learning_rate'],
  }
  for title, ending in (
    ('mean average precision', '/mean_average_precision'),
    ('recall at 1', '_recall_at_1'),
  ):
    if found := [name for name in names if name.endswith(ending)]:
      panels[title] = found
  # One colour for what is measured on the same data, 'train' first.
  sets = sorted({name.split('/')[0] for name in names}, key=lambda name: (name != 'train', name))
  colours = {name: f'C{number}' for number, name in enumerate(sets)}
  figure = _figure(13 / 3 * len(panels), 4)
  for axis, (title, members) in zip(figure.subplots(1, len(panels)), panels.items(), strict=True):
    for name in members:
      steps, values = zip(*((line['step'], line[name]) for line in lines if name in line), strict=True)
      label = name.split('/')[0]
      smooth = len(steps) >= _LONG and title != 'learning rate'
      marker = '.' if len(steps) < 30 else ''
      style = {'alpha': 0.3, 'linewidth': 0.8} if smooth else {'label': label}
      axis.plot(steps, values, color=colours[label], marker=marker, **style)
      if smooth:
        axis.plot(steps, smoothed(values), label=f'{label}, smoothed', color=colours[label])
    axis.set(title=_loss_title(config) if title == 'loss' and config else title, xlabel='step')
    axis.grid(alpha=0.3)
    if title != 'learning rate' and members:
      for text in axis.legend().get_texts():
        text.set_parse_math(False)  # names may have dollar signs
  path = workdir / 'report' / 'curves.png'
  path.parent.mkdir(parents=True, exist_ok=True)
  figure.savefig(path, dpi=100)


def smoothed(values: Sequence[float]) -> np.ndarray:
  """The exponential moving average over a twentieth of the points, without a bias to the first."""
  decay = 1 - 20 / max(len(values), 20)
  total, weight, means = 0.0, 0.0, []
  for value in values:
    total, weight = decay * total + value, decay * weight + 1
    means.append(total / weight)
  return np.array(means)


def _loss_title(config: Config) -> str:
  """'loss', and what training has and evaluation has not."""
  data = config.data
  only = {
    'label smoothing': getattr(config.objective, 'label_smoothing', 0),
    'mixed images': data.mixup or data.cutmix,
    'augmentation': data.augment != 'none',
    'dropout': getattr(config.model, 'dropout', 0) or getattr(config.model, 'stochastic_depth', 0),
  }
  parts = ', '.join(name for name, is_on in only.items() if is_on)
  return f'loss (of training, with {parts})' if parts else 'loss'


def _figure(width: float, height: float) -> 'Figure':
  """An empty figure of so many inches."""
  from matplotlib.figure import Figure  # takes 0.3 s, for which no first step shall wait

  return Figure(figsize=(width, height), layout='constrained')
