"""Evaluates any checkpoint on images whose classes are known: how often it is right, and which images are wrong.

vit_jax evaluate --checkpoint=runs/mine held_out/
vit_jax evaluate --checkpoint=runs/mine
vit_jax evaluate --checkpoint=imagenet21k+imagenet2012/ViT-B_16 imagenet2012 --tta
vit_jax evaluate --checkpoint=a_huggingface_folder gs://bucket/photos/1.0.0 --split=test --output=seen

The checkpoint is what `vit_jax.load` takes. The images are a folder with a sub-folder for each class, perhaps
below val/ or test/, or a source as configs name it (digits, a data set of TFDS, an address); without any, those
of the run's own evaluator. Every image counts once; classes are matched by name. Written to a new folder:
evaluation.json with two pictures, wrong.csv, and wrong.html with the most confident mistakes. An image that
cannot be read is named on stderr and left out; the exit code is then 2.
"""

import contextlib
import os
import pathlib
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from absl import flags

from vit_jax import cli
from vit_jax.foundation.errors import UserError

if TYPE_CHECKING:
  from vit_jax.data.config import DataConfig
  from vit_jax.data.model_inputs import Inputs
  from vit_jax.data.sources.base import Source
  from vit_jax.evaluation.classification_metrics import Examples
  from vit_jax.evaluation.wrong_images import Wrong
  from vit_jax.loaded_model import LoadedModel
  from vit_jax.pretrained.runs import Trained

_CHECKPOINT = cli.define_checkpoint()
_WEIGHTS = cli.define_weights()
_SPLIT = flags.DEFINE_string(
  'split', None, "Split of the data, such as test or 'train[90%:]'. Without: the one that is held out."
)
_OUTPUT = flags.DEFINE_string(
  'output', None, 'A new folder for what is written. Without: one below evaluations/.'
)
_BATCH_SIZE = flags.DEFINE_integer('batch_size', 32, 'Images at a time.', lower_bound=1)
_CLASS_NAMES = cli.define_class_names()
_TTA = cli.define_tta()
_MAX_PATCHES = flags.DEFINE_integer(
  'max_patches', None, 'Patches, at most, of an image that keeps its aspect ratio (NaFlex).', lower_bound=1
)
_TOKEN_MERGING = flags.DEFINE_integer(
  'token_merging', 0, 'Patches that each block merges into others (ToMe).', lower_bound=0
)

_NAME = 'evaluation'  # of the files
_LISTED = 20  # classes in the table on the screen


class _Asked(NamedTuple):
  """What is evaluated: the arguments of `sources.open_source`."""

  spec: str
  split: str
  data: 'DataConfig'
  patch: int | None = None  # that of the run's own evaluator


def main(arguments: Sequence[str]) -> None:
  """Evaluates the checkpoint, prints the numbers and writes the files."""
  checkpoint = cli.required(_CHECKPOINT)
  from vit_jax.data.model_inputs import ModelInputs
  from vit_jax.foundation import compilation_cache
  from vit_jax.loading import load
  from vit_jax.pretrained import class_names

  asked = _asked(arguments, checkpoint)
  source = _opened(asked)
  compilation_cache.enable()
  model = load(
    checkpoint,
    weights=_WEIGHTS.value,
    max_patches=_MAX_PATCHES.value,
    token_merging=_TOKEN_MERGING.value or 0,
    patch=asked.patch,
  )
  model.check_classifies(checkpoint)
  if _CLASS_NAMES.value is not None:
    model.class_names = class_names.read(_CLASS_NAMES.value, model.num_classes)
  outputs, names = _matched(checkpoint, model, source)
  inputs = ModelInputs(
    source.__getitem__,
    len(source),
    model.preprocess,
    batch_size=_BATCH_SIZE.value or 32,
    is_remote=source.is_remote,
  )
  with _new_folder(checkpoint, asked) as folder:
    examples, wrong = _evaluated(model, inputs, outputs, names)
    if examples is not None:
      facts = _facts(checkpoint, asked, inputs.unreadable)
      _write(folder, examples, names, wrong, facts, source)
      print(_text(examples, names), flush=True)
      print(
        f'{len(wrong):,} of {len(examples.label):,} images are wrong: {folder / "wrong.html"} shows them.'
      )
      print(f'Wrote {folder}: {", ".join(sorted(os.listdir(folder)))}.')
  inputs.check()


def _asked(arguments: Sequence[str], checkpoint: str) -> _Asked:
  """The data that the command line names, or that of the run's own evaluator; said in one line."""
  from vit_jax import recipes
  from vit_jax.data import sources
  from vit_jax.data.config import DataConfig
  from vit_jax.pretrained import formats, runs

  if len(arguments) > 1:
    raise UserError(f'There are {len(arguments)} sources of images ({", ".join(arguments)}); give one.')
  run = runs.trained(formats.located(checkpoint))
  if not arguments:
    return _of_run(run, checkpoint)
  spec = sources.spec_of(arguments[0])
  trained = sources.placed(run.config.data, run.directory) if run else DataConfig()
  named = sources.parse(spec, '')[2]
  if named and _SPLIT.value not in (None, named):
    raise UserError(f'{spec} names a split, and --split={_SPLIT.value} another; leave one of them out.')
  images, version = (run.examples, run.data_version) if run else (0, '')
  wanted = _SPLIT.value or named
  split = wanted or recipes.held_out(spec)
  split, data = sources.evaluated(spec, split, DataConfig(), trained, images, version)
  if run and split == 'all' and not wanted:
    print(f'All images of {spec} are counted: the model was trained on {trained.title}.')
  asked = _Asked(spec, wanted or split, data)
  if run:
    _say_if_trained_on(asked, trained)
  return asked


def _of_run(run: 'Trained | None', checkpoint: str) -> _Asked:
  """The data of the evaluator of a run that measures accuracy, of its own data if there is one."""
  from vit_jax.data import sources
  from vit_jax.evaluation.base import EVALUATORS, leading

  if run is None:
    raise cli.missing_arguments(
      'Name the images behind the flags, a folder or a source, since the checkpoint is no run that has its own'
    )
  trained = sources.placed(run.config.data, run.directory)
  if trained.max_labels:
    raise UserError(
      f'{checkpoint} was trained on lists of classes, and one class an image is counted here; evaluate it by '
      'vit_jax train --mode=eval.'
    )
  name, evaluator = leading(run.config.evaluators) or ('', None)
  if evaluator is None or EVALUATORS.name_of(type(evaluator)) != 'classification':
    raise UserError(f'{checkpoint} has no evaluator of its classes; name the images to evaluate.')
  spec = evaluator.source or sources.without_split(trained.source)
  split, data = sources.evaluated(spec, evaluator.split, trained, trained, run.examples, run.data_version)
  print(f"The data is that of the run's own evaluator {name!r}.")
  asked = _Asked(spec, _SPLIT.value or split, data, evaluator.patch_size)
  _say_if_trained_on(asked, trained)
  return asked


def _say_if_trained_on(asked: _Asked, trained: 'DataConfig') -> None:
  from vit_jax.data import sources

  if sources.was_trained_on(asked.spec, asked.split, trained):
    print(f'The model was trained on images of {sources.title(asked.spec, asked.split)}.')


def _opened(asked: _Asked) -> 'Source':
  from vit_jax.data import sources
  from vit_jax.data.sources.base import ListsOfClassesError

  title = sources.title(asked.spec, asked.split)
  try:
    source = sources.open_source(asked.spec, asked.split, data=asked.data)
  except ListsOfClassesError as error:
    raise UserError(
      f'{title} has lists of classes, and one class an image is counted here; train on it, and evaluate by '
      'vit_jax train --mode=eval.'
    ) from error
  print(f'Data: {title}, {len(source):,} images, {len(source.class_names):,} classes', flush=True)
  return source


def _matched(checkpoint: str, model: 'LoadedModel', source: 'Source') -> tuple[np.ndarray, list[str]]:
  """int64 (classes of the data,), the model's output for each, and the name of each output."""
  from vit_jax.foundation import class_matching

  matched = class_matching.rows(
    model.class_names or (),
    source.class_names,
    outputs=model.num_classes,
    what=f'The checkpoint {checkpoint}',
    remedy='evaluate data of its classes, or name its outputs by --class_names',
  )
  for note in matched.notes:
    print(note)
  names = list(model.class_names or map(str, range(model.num_classes)))
  for name, output in zip(source.class_names, matched.rows.tolist(), strict=True):
    if not model.class_names:
      names[output] = name
  return matched.rows, names


def _evaluated(
  model: 'LoadedModel', batches: 'Iterable[Inputs]', outputs: np.ndarray, names: Sequence[str]
) -> 'tuple[Examples | None, list[Wrong]]':
  """What the model says of each image (None: of none), and the images that it takes for another class."""
  import jax
  import jax.numpy as jnp

  from vit_jax.evaluation.classification import answers
  from vit_jax.evaluation.classification_metrics import Examples
  from vit_jax.evaluation.wrong_images import Wrong, worst_first
  from vit_jax.objectives.classification import ClassificationObjective

  scores = ClassificationObjective(loss=model.link)

  @jax.jit
  def said(logits: jax.Array, labels: jax.Array) -> tuple[dict[str, jax.Array], jax.Array]:
    of_truth = jnp.take_along_axis(model.probabilities(logits), labels[:, None], axis=1)
    return answers(scores, logits, labels), of_truth[:, 0]

  parts: list[dict[str, np.ndarray]] = []
  wrong: list[Wrong] = []
  for numbers, records, images in batches:
    labels = np.zeros(len(images), np.int32)
    labels[: len(records)] = outputs[np.array([record.label for record in records])]
    found, of_truth = jax.device_get(said(model(images, tta=bool(_TTA.value)), jnp.asarray(labels)))
    part = {name: values[: len(records)] for name, values in {'label': labels, **found}.items()}
    parts.append(part)
    for row in map(int, np.flatnonzero(part['prediction'] != part['label'])):
      truth, prediction = names[int(part['label'][row])], names[int(part['prediction'][row])]
      shares = float(part['confidence'][row]), float(of_truth[row])
      wrong.append(Wrong(numbers[row], records[row].name, truth, prediction, *shares))
  if not parts:
    return None, []
  arrays: dict[str, Any] = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
  return Examples(model.num_classes, **arrays), worst_first(wrong)


@contextlib.contextmanager
def _new_folder(checkpoint: str, asked: _Asked) -> Iterator[pathlib.Path]:
  """Makes the folder of --output, or a new one; where nothing was written, it is removed again."""
  from vit_jax.data import sources
  from vit_jax.foundation import files

  if _OUTPUT.value is None:
    _, place, split = sources.parse(asked.spec, asked.split)
    places = (re.sub(r'/\d+\.\d+\.\d+/*$', '', text) for text in (checkpoint, place or asked.spec))
    words = filter(None, [*(pathlib.PurePath(text).stem for text in places), split if split != 'all' else ''])
    name = re.sub(r'[^\w.+=-]+', '_', '-'.join(words))
    folder = files.make_new_directory(pathlib.Path('evaluations') / name)
  else:
    folder = cli.local_path('output', _OUTPUT.value)
    files.make_directories(folder)
    if any(folder.iterdir()):
      raise UserError(f'{folder} is not empty; choose a new folder for --output.')
  try:
    yield folder
  finally:
    with contextlib.suppress(OSError):  # it is not empty, as it should be
      folder.rmdir()


def _facts(checkpoint: str, asked: _Asked, unreadable: Sequence[str]) -> dict[str, Any]:
  """What evaluation.json begins with."""
  from vit_jax.data import sources

  return {
    'checkpoint': checkpoint,
    'data': sources.title(asked.spec, asked.split),
    'tta': bool(_TTA.value),
    'max_patches': _MAX_PATCHES.value,
    'token_merging': _TOKEN_MERGING.value,
    'unreadable': list(unreadable),
  }


def _write(
  folder: pathlib.Path,
  examples: 'Examples',
  names: Sequence[str],
  wrong: 'Sequence[Wrong]',
  facts: dict[str, Any],
  source: 'Source',
) -> None:
  """Writes all files; the JSON last."""
  from vit_jax.evaluation import report, wrong_images

  wrong_images.write_csv(folder / wrong_images.CSV, wrong)
  title = f'What {facts["checkpoint"]} gets wrong'
  shown = {'data': facts['data'], 'accuracy': _accuracy(examples), 'wrong': f'{len(wrong):,} images'}
  if facts['unreadable']:
    shown['left out'] = f'{len(facts["unreadable"]):,} images that could not be read'
  wrong_images.write_page(folder / wrong_images.PAGE, title, shown, wrong, source.__getitem__)
  report.save(folder, _NAME, examples, names, facts)


def _accuracy(examples: 'Examples') -> str:
  """'94.20% of 500 images (95% interval 91.80% to 95.93%)'."""
  from vit_jax.evaluation import classification_metrics

  right = int(classification_metrics.hits(examples).sum())
  return classification_metrics.share_text(right, len(examples.label))


def _text(examples: 'Examples', names: Sequence[str]) -> str:
  """The numbers, and a table of the classes or of the worst of them."""
  from vit_jax.evaluation import classification_metrics
  from vit_jax.evaluation.base import format_metric
  from vit_jax.foundation import markdown

  values = classification_metrics.summarise(examples)
  others = [f'{name} {format_metric(name, value)}' for name, value in values.items() if name != 'accuracy']
  right, total = classification_metrics.per_class(examples)
  confusion = _taken_for(examples, names)
  there = np.flatnonzero(total)
  worst = there[np.argsort(right[there] / total[there], kind='stable')]
  rows = [
    (
      names[number],
      f'{right[number]:,} of {total[number]:,}',
      f'{right[number] / total[number]:.1%}',
      classification_metrics.interval_text(int(right[number]), int(total[number])),
      confusion.get(number, ''),
    )
    for number in map(int, worst[:_LISTED])
  ]
  table = markdown.table(('class', 'right', 'accuracy', '95% interval', 'most often taken for'), rows)
  lines = [f'Accuracy {_accuracy(examples)}', ', '.join(others), '', table, '']
  if len(worst) > _LISTED:
    lines.append(f'These are the {_LISTED} worst of {len(worst):,} classes; {_NAME}.json has all.')
  return '\n'.join(lines)


def _taken_for(examples: 'Examples', names: Sequence[str]) -> dict[int, str]:
  """Class -> the other that its images are most often taken for, and how many: 'cat (3)'."""
  wrong = examples.prediction != examples.label
  pairs, counts = np.unique(
    np.stack([examples.label[wrong], examples.prediction[wrong]], axis=1), axis=0, return_counts=True
  )
  rarest_first = np.argsort(counts, kind='stable')
  return {int(pairs[at, 0]): f'{names[pairs[at, 1]]} ({counts[at]})' for at in rarest_first}


if __name__ == '__main__':
  cli.run(main, positional=True)
