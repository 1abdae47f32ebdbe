"""What a model gets right and wrong, class by class: a JSON file and two pictures in a run's report/."""

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib import colors
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from vit_jax.evaluation import classification_metrics
from vit_jax.evaluation.classification_metrics import BINS, Examples
from vit_jax.foundation import files

_NAMED = 30  # the axes name the classes if there are at most so many
_COUNTED = 20  # the matrix's cells show their counts if there are at most so many classes
_LISTED = 20  # confusions, or classes, in a list of the worst
_LONGEST = 22  # characters of a class name
_LARGEST = 4000  # classes; more have no confusion matrix (128 MB)


@matplotlib.rc_context({'text.parse_math': False})  # names may have dollar signs
def save(
  folder: pathlib.Path,
  name: str,
  examples: Examples,
  class_names: Sequence[str],
  facts: Mapping[str, Any] | None = None,
  *,
  pictures: bool = True,
) -> None:
  """Writes <name>_confusion.png and <name>_classes.png, where each example has one class, and then <name>.json.

  The folder is made if it is not there; outputs of the head beyond the class names are called by their number. The
  JSON begins with `facts`.
  """
  files.make_directories(folder)
  names = [*class_names, *map(str, range(len(class_names), examples.num_classes))]
  single = examples.label.ndim == 1
  matrix = None
  if single and examples.num_classes <= _LARGEST:
    matrix = classification_metrics.confusion(examples)
  if pictures and matrix is not None:
    _confusion_figure(name, matrix, names).savefig(folder / f'{name}_confusion.png', dpi=100)
  if pictures and single:
    _classes_figure(name, examples, names).savefig(folder / f'{name}_classes.png', dpi=100)
  files.write_json(folder / f'{name}.json', {**(facts or {}), **_contents(examples, names, matrix)})


def _contents(examples: Examples, names: Sequence[str], matrix: np.ndarray | None) -> dict[str, Any]:
  """The report as `files.write_json` takes it."""
  count = len(examples.prediction)
  low, high = classification_metrics.wilson(classification_metrics.hits(examples).sum(), count)
  contents: dict[str, Any] = {
    'images': count,
    'metrics': classification_metrics.summarise(examples),
    'accuracy_interval': {'low': low, 'high': high, 'level': 0.95, 'method': 'Wilson'},
  }
  if examples.label.ndim > 1:
    return contents
  right, total = classification_metrics.per_class(examples)
  intervals = np.stack(classification_metrics.wilson(right, total), axis=1).tolist()
  contents['classes'] = [
    {'name': label, 'examples': n, 'right': r, 'accuracy': r / n if n else None, 'interval': interval}
    for label, n, r, interval in zip(names, total, right, intervals, strict=True)
  ]
  if matrix is not None:
    contents['confusion'] = [
      {'class': names[i], 'taken_for': names[j], 'examples': matrix[i, j]}
      for i, j in np.argwhere(matrix).tolist()
    ]
  found = classification_metrics.calibration(examples)
  contents['calibration'] = [
    {'above': i / BINS, 'up_to': (i + 1) / BINS, 'examples': n, 'confidence': c, 'accuracy': a}
    for i, (n, c, a) in enumerate(zip(found.count, found.confidence, found.accuracy, strict=True))
  ]
  return contents


def _short(name: str) -> str:
  """A long name without its middle: names often differ at their ends."""
  return name if len(name) <= _LONGEST else f'{name[: _LONGEST - 10]}…{name[-9:]}'


def _confusion_figure(name: str, matrix: np.ndarray, names: Sequence[str]) -> Figure:
  """The matrix, each row in shares; beside it, where there are many classes, the most frequent confusions."""
  classes = len(matrix)
  few = classes <= _NAMED
  side = max(4.5, 0.32 * classes + 2.5) if few else 7
  figure = Figure(figsize=(side + 1, side) if few else (14, 7), layout='constrained')
  total = matrix.sum(axis=1, keepdims=True)
  shares = np.divide(matrix, total, out=np.zeros(matrix.shape), where=total > 0)
  axis, *more = np.atleast_1d(figure.subplots(1, 1 if few else 2))
  # The square root makes rare confusions visible.
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
    for i, j in np.argwhere(matrix).tolist():
      colour = 'white' if shares[i, j] > 0.4 else 'black'
      axis.text(j, i, f'{matrix[i, j]}', ha='center', va='center', color=colour, fontsize=size)
  for second in more:
    _list_confusions(second, matrix, names)
  return figure


def _list_confusions(axis: Axes, matrix: np.ndarray, names: Sequence[str]) -> None:
  """Bars of the most frequent confusions."""
  wrong = matrix - np.diag(matrix.diagonal())
  largest = np.argsort(-wrong, axis=None, kind='stable')[:_LISTED]
  rows, columns = np.unravel_index(largest[wrong.flat[largest] > 0], wrong.shape)
  labels = [f'{_short(names[int(i)])} → {_short(names[int(j)])}' for i, j in zip(rows, columns, strict=True)]
  counts = wrong[rows, columns].tolist()
  _bars(axis, labels, counts, [str(count) for count in counts])
  axis.set(title='most frequent confusions (class → taken for)', xlabel='examples')


def _bars(axis: Axes, labels: Sequence[str], values: Sequence[float], texts: Sequence[str]) -> None:
  """Horizontal bars from top to bottom; `labels` in front of them, `texts` behind."""
  bars = axis.barh(range(len(values)), values, color='C0')
  axis.bar_label(bars, texts, padding=3, fontsize=8)
  axis.set_yticks(range(len(values)), labels, fontsize=8)
  axis.set_ylim(max(len(values), 1) - 0.4, -0.6)
  axis.margins(x=0.12)
  axis.spines[['top', 'right']].set_visible(False)


def _classes_figure(name: str, examples: Examples, names: Sequence[str]) -> Figure:
  """Left: the accuracy of each class, or of the worst ones. Right: how far confidence can be trusted."""
  figure = Figure(figsize=(13, 6.5), layout='constrained')
  values = classification_metrics.summarise(examples)
  hits, total = classification_metrics.per_class(examples)
  interval = classification_metrics.interval_text(int(hits.sum()), int(total.sum()))
  figure.suptitle(
    f'{name}: accuracy {values["accuracy"]:.2%} of {len(examples.prediction):,} images (95% interval {interval}), '
    f'mean over classes {values["mean_class_accuracy"]:.2%}'
  )
  left, right = figure.subplots(1, 2)
  accuracy = {number: hits[number] / total[number] for number in np.flatnonzero(total).tolist()}
  worst_first = sorted(accuracy, key=lambda number: accuracy[number])
  shown = worst_first if len(worst_first) <= _NAMED else worst_first[:_LISTED]
  shares = [float(accuracy[number]) for number in shown]
  texts = [f'{accuracy[number]:.1%} of {total[number]:,}' for number in shown]
  _bars(left, [_short(names[number]) for number in shown], shares, texts)
  title = 'accuracy of each class'
  if len(shown) < len(worst_first):
    title = f'the {len(shown)} worst of {len(worst_first):,} classes'
  left.set(title=title, xlabel="share of the class's examples that is right")
  left.set_xlim(0, 1.2)
  left.set_xticks(np.linspace(0, 1, 6))
  _draw_calibration(right, examples)
  return figure


def _draw_calibration(axis: Axes, examples: Examples) -> None:
  """Accuracy and mean confidence of each bin of confidence."""
  found = classification_metrics.calibration(examples)
  middles = (np.arange(BINS) + 0.5) / BINS
  axis.bar(middles, np.nan_to_num(found.accuracy), 1 / BINS, color='C0', edgecolor='white', label='accuracy')
  axis.plot(found.confidence, found.confidence, 'o', color='C1', markersize=4, label='mean confidence')
  axis.plot([0, 1], [0, 1], '--', color='grey', linewidth=1)
  top = axis.secondary_xaxis('top')
  top.set_xticks(middles.tolist(), [f'{count:,}' for count in found.count.tolist()], fontsize=7, rotation=60)
  top.set_xlabel('examples')
  axis.set(
    title=f'calibration error {found.error:.2%}',
    xlabel='probability of the predicted class',
    ylabel='accuracy',
    xlim=(0, 1),
    ylim=(0, 1),
  )
  axis.legend(loc='upper center', bbox_to_anchor=(0.5, -0.1), ncols=2, frameon=False)
