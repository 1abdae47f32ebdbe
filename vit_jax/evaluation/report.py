"""What a model gets right and wrong, class by class: a JSON file and two pictures in a run's report/."""

import json
import math
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib import colors
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from vit_jax.evaluation import classification
from vit_jax.evaluation.classification import BINS, Examples

_NAMED = 30  # classes, up to which each has its name on the axes
_COUNTED = 20  # classes, up to which a cell has its number
_LISTED = 20  # confusions, and classes, that are listed where there are more
_LONGEST = 22  # characters of a name
_LARGEST = 4000  # classes, above which there is no matrix (128 MB)


def save(folder: pathlib.Path, name: str, examples: Examples, class_names: Sequence[str]) -> None:
  """Writes <name>.json and, of examples of one class each, <name>_confusion.png and <name>_classes.png.

  Args:
    folder: is made if need be.
    name: of the evaluator.
    examples: what the model says of them.
    class_names: label -> name; classes beyond are called by their number.
  """
  folder.mkdir(parents=True, exist_ok=True)
  names = [*class_names, *map(str, range(len(class_names), examples.num_classes))]
  matrix = None
  single = examples.label.ndim == 1
  if single and examples.num_classes <= _LARGEST:
    matrix = classification.confusion(examples)
  path = folder / f'{name}.json'
  partial = path.with_suffix('.json.partial')
  partial.write_text(json.dumps(_contents(examples, names, matrix), indent=1, allow_nan=False))
  partial.replace(path)
  if matrix is not None:
    _confusion_figure(name, matrix, names).savefig(folder / f'{name}_confusion.png', dpi=100)
  if single:
    _classes_figure(name, examples, names).savefig(folder / f'{name}_classes.png', dpi=100)


def _contents(examples: Examples, names: Sequence[str], matrix: np.ndarray | None) -> dict[str, Any]:
  contents: dict[str, Any] = {'metrics': _without_nan(classification.metrics(examples))}
  if examples.label.ndim > 1:
    return contents
  right, total = classification.per_class(examples)
  contents['classes'] = [
    {'name': label, 'examples': int(n), 'right': int(r), 'accuracy': int(r) / int(n) if n else None}
    for label, r, n in zip(names, right, total, strict=True)
  ]
  if matrix is not None:
    rows, columns = np.nonzero(matrix)
    contents['confusion'] = [
      {'class': names[i], 'taken_for': names[j], 'examples': int(matrix[i, j])}
      for i, j in zip(rows, columns, strict=True)
    ]
  found = classification.calibration(examples)
  contents['calibration'] = [
    _without_nan(
      {'above': i / BINS, 'up_to': (i + 1) / BINS, 'examples': int(n), 'confidence': c, 'accuracy': a}
    )
    for i, (n, c, a) in enumerate(zip(found.count, found.confidence, found.accuracy, strict=True))
  ]
  return contents


def _without_nan(values: dict[str, float]) -> dict[str, float | None]:
  """JSON has no NaN."""
  return {name: None if math.isnan(value) else value for name, value in values.items()}


def _short(name: str) -> str:
  """Without its middle where it is long, since names often differ at their ends."""
  return name if len(name) <= _LONGEST else f'{name[: _LONGEST - 10]}…{name[-9:]}'


def _confusion_figure(name: str, matrix: np.ndarray, names: Sequence[str]) -> Figure:
  """The matrix by shares of its rows and, where classes are many, the most frequent confusions by name."""
  classes = len(matrix)
  few = classes <= _NAMED
  side = max(4.5, 0.32 * classes + 2.5) if few else 7
  figure = Figure(figsize=(side + 1, side) if few else (14, 7), layout='constrained')
  total = matrix.sum(axis=1, keepdims=True)
  shares = np.divide(matrix, total, out=np.zeros(matrix.shape), where=total > 0)
  axis, *more = np.atleast_1d(figure.subplots(1, 1 if few else 2))
  # The root shows rare confusions too.
  image = axis.imshow(shares, cmap='Blues', norm=colors.PowerNorm(0.5, 0, 1))
  figure.colorbar(image, ax=axis, label="share of the class's examples", shrink=0.8)
  axis.set(xlabel='taken for', ylabel='class')
  figure.suptitle(f'{name}: {matrix.trace():,} of {matrix.sum():,} examples right')
  if few:
    labels = [_short(label) for label in names]
    axis.set_xticks(range(classes), labels, rotation=90 if max(map(len, labels)) > 2 else 0)
    axis.set_yticks(range(classes), labels)
  if classes <= _COUNTED:
    size = 9 if matrix.max() < 1000 else 7
    for i, j in zip(*np.nonzero(matrix), strict=True):
      colour = 'white' if shares[i, j] > 0.4 else 'black'
      axis.text(j, i, f'{matrix[i, j]}', ha='center', va='center', color=colour, fontsize=size)
  for second in more:
    _list_confusions(second, matrix, names)
  return figure


def _list_confusions(axis: Axes, matrix: np.ndarray, names: Sequence[str]) -> None:
  """Bars of the most frequent confusions."""
  wrong = matrix - np.diag(matrix.diagonal())
  order = np.argsort(-wrong, axis=None, kind='stable')[:_LISTED]
  pairs = [(i, j) for i, j in zip(*np.unravel_index(order, matrix.shape), strict=True) if wrong[i, j]]
  labels = [f'{_short(names[i])} → {_short(names[j])}' for i, j in pairs]
  _bars(axis, labels, [int(wrong[pair]) for pair in pairs], str)
  axis.set(title='most frequent confusions (class → taken for)', xlabel='examples')


def _bars(axis: Axes, labels: Sequence[str], values: Sequence[float], text) -> None:
  """Horizontal bars from top to bottom, each with its value behind it."""
  bars = axis.barh(range(len(values)), values, color='C0')
  axis.bar_label(bars, [text(value) for value in values], padding=3, fontsize=8)
  axis.set_yticks(range(len(values)), labels, fontsize=8)
  axis.set_ylim(max(len(values), 1) - 0.4, -0.6)
  axis.margins(x=0.12)
  axis.spines[['top', 'right']].set_visible(False)


def _classes_figure(name: str, examples: Examples, names: Sequence[str]) -> Figure:
  """Accuracy of each class, or of the worst ones, and how far confidence can be trusted."""
  figure = Figure(figsize=(13, 6.5), layout='constrained')
  values = classification.metrics(examples)
  figure.suptitle(
    f'{name}: accuracy {values["accuracy"]:.2%}, mean over classes {values["mean_class_accuracy"]:.2%}'
  )
  left, right = figure.subplots(1, 2)
  hit, total = classification.per_class(examples)
  known = np.flatnonzero(total)
  order = known[np.argsort(hit[known] / total[known], kind='stable')]
  shown = order if len(order) <= _NAMED else order[:_LISTED]
  _bars(
    left, [_short(names[i]) for i in shown], [hit[i] / total[i] for i in shown], lambda share: f'{share:.1%}'
  )
  title = (
    'accuracy of each class'
    if len(shown) == len(order)
    else f'the {len(shown)} worst of {len(order):,} classes'
  )
  left.set(title=title, xlabel="share of the class's examples that is right")
  left.set_xlim(0, 1.12)
  left.set_xticks(np.linspace(0, 1, 6))
  _draw_calibration(right, examples)
  return figure


def _draw_calibration(axis: Axes, examples: Examples) -> None:
  found = classification.calibration(examples)
  middles = (np.arange(BINS) + 0.5) / BINS
  axis.bar(middles, np.nan_to_num(found.accuracy), 1 / BINS, color='C0', edgecolor='white', label='accuracy')
  axis.plot(found.confidence, found.confidence, 'o', color='C1', markersize=4, label='mean confidence')
  axis.plot([0, 1], [0, 1], '--', color='grey', linewidth=1)
  top = axis.secondary_xaxis('top')
  top.set_xticks(middles, [f'{count:,}' for count in found.count], fontsize=7, rotation=60)
  top.set_xlabel('examples')
  axis.set(
    title=f'calibration error {found.error:.2%}',
    xlabel='probability of the predicted class',
    ylabel='accuracy',
    xlim=(0, 1),
    ylim=(0, 1),
  )
  axis.legend(loc='upper center', bbox_to_anchor=(0.5, -0.1), ncols=2, frameon=False)
