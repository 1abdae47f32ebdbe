"""The card of a model: what it is, how to load it, and what its run holds of data, recipe and results."""

import contextlib
import json
import pathlib
import re
import shutil
from collections.abc import Iterator
from typing import Any, NamedTuple

from vit_jax import config as config_lib
from vit_jax import options
from vit_jax.config import Config
from vit_jax.data import sources
from vit_jax.data.sources.tfds_files import METADATA
from vit_jax.evaluation.base import EMA_SUFFIX, format_metric
from vit_jax.foundation import files, hub, markdown
from vit_jax.foundation.errors import UserError
from vit_jax.foundation.hub import Address
from vit_jax.pretrained import catalogue, formats, runs
from vit_jax.pretrained.base import Pretrained
from vit_jax.pretrained.config import Weights
from vit_jax.pretrained.runs import Trained
from vit_jax.training.metrics import read_metrics
from vit_jax.training.workdir import open_workdir

CARD, CURVES = 'README.md', 'curves.png'
_NAMED = 20  # classes
# Options of the recipe that are shown where they have their defaults too.
_ALWAYS = ('total', 'batch_size', 'optimizer.name', 'schedule.learning_rate')
# Options that the card says elsewhere or not at all.
_ELSEWHERE = ('model.', 'evaluators.', 'data.source', 'data.mixture', 'init.checkpoint')


class History(NamedTuple):
  """A run, as far as its workdir is there."""

  trained: Trained
  folder: pathlib.Path  # of metrics.jsonl and report/

  def results(self) -> list[list[str]]:
    """Rows of metrics at the checkpoint's step: name, value, how many images it is of ('' if unknown), and of what."""
    config = self.trained.config
    line = next((line for line in read_metrics(self.folder) if line['step'] == self.trained.step), {})
    rows = []
    for name, evaluator in config.evaluators.items():
      title = f'{name}{EMA_SUFFIX}' if self.trained.weights == 'ema' else name
      values = {
        key.rpartition('/')[2]: value for key, value in line.items() if key.rpartition('/')[0] == title
      }
      data = _public(evaluator.source or config.data.source, evaluator.split)
      images = self._images(title, values)
      rows += [[key, format_metric(f'{title}/{key}', value), images, data] for key, value in values.items()]
    return rows

  def _images(self, title: str, values: dict[str, float]) -> str:
    """How many images metrics are of: as their report says, where it has the same values."""
    try:
      report = json.loads((self.folder / 'report' / f'{title}.json').read_bytes())
      return f'{report["images"]:,}' if values and report['metrics'] == values else ''
    except (OSError, ValueError, TypeError, KeyError):
      return ''


@contextlib.contextmanager
def history(source: str, weights: Weights | None) -> Iterator[History | None]:
  """The run that trained a checkpoint, of which `weights` are asked for; None: it is no run that has trained."""
  trained = runs.trained(formats.located(source), weights)
  if trained is None:
    yield None
    return
  with open_workdir(re.sub(r'/checkpoints(/\d+)?/*$', '', source), read_only=True) as workdir:
    yield History(trained, workdir.folder)


def write(
  folder: pathlib.Path,
  pretrained: Pretrained,
  history: History | None,
  place: Address | str,
  license_name: str | None,
) -> None:
  """Writes the card, and the curves that the run has drawn, beside a model's files.

  Args:
    folder: where a Hugging Face folder was written.
    pretrained: the model.
    history: what is known of its training.
    place: where it is going to be, on the Hub or in a local folder.
    license_name: as the Hub calls it; None: the card names none.
  """
  library = 'transformers' if 'model_type' in json.loads((folder / 'config.json').read_text()) else 'timm'
  task = 'image-classification' if pretrained.architecture.num_classes else 'image-feature-extraction'
  header = {'license': license_name, 'library_name': library, 'pipeline_tag': task, 'tags': ['vit_jax', task]}
  title = place.repository.rpartition('/')[2] if isinstance(place, Address) else pathlib.Path(place).name
  parts = [f'# {title}', _described(pretrained), '## How to load it', _loading(place, library, task)]
  if history is not None:
    config = history.trained.config
    header |= {'base_model': _base_model(config), 'datasets': _hub_data(config)}
    parts += ['## Data', _data(history.trained), '## Recipe', _recipe(config)]
    if rows := history.results():
      parts += ['## Results', f'After step {history.trained.step:,}:']
      parts.append(markdown.table(['metric', 'value', 'images', 'data'], rows))
    curves = history.folder / 'report' / CURVES
    if curves.is_file():
      shutil.copyfile(curves, folder / CURVES)
      parts.append(f'![Loss, accuracy and learning rate over the steps of training]({CURVES})')
  # JSON is YAML too.
  lines = [f'{name}: {json.dumps(value)}' for name, value in header.items() if value]
  files.write_text(folder / CARD, '\n'.join(['---', *lines, '---', '']) + '\n' + '\n\n'.join(parts) + '\n')


def _described(pretrained: Pretrained) -> str:
  """The model in a sentence, and its classes."""
  architecture = pretrained.architecture
  height, width = architecture.image_size
  text = (
    f'{architecture.model.describe()}; {pretrained.num_parameters:,} parameters, {height} × {width} pixels.'
  )
  names = pretrained.class_names
  if names:
    more = ', …' if len(names) > _NAMED else ''
    text += f' {len(names):,} classes: {", ".join(names[:_NAMED])}{more}.'
  return text


def _loading(place: Address | str, library: str, task: str) -> str:
  """Python that loads the model by vit_jax, and by the library that its files are for."""
  name, revision = (place.repository, place.revision) if isinstance(place, Address) else (place, None)
  ours = ['import vit_jax', '', f'model = vit_jax.load({str(place)!r})']
  if library == 'timm':
    scheme = 'hf-hub' if isinstance(place, Address) else 'local-dir'
    address = f'{scheme}:{name}@{revision}' if revision else f'{scheme}:{name}'
    theirs = ['import timm', '', f'model = timm.create_model({address!r}, pretrained=True).eval()']
  else:
    model = 'AutoModelForImageClassification' if task == 'image-classification' else 'AutoModel'
    arguments = f'{name!r}, revision={revision!r}' if revision else repr(name)
    theirs = [f'from transformers import AutoImageProcessor, {model}', '']
    theirs += [f'processor = AutoImageProcessor.from_pretrained({arguments})']
    theirs += [f'model = {model}.from_pretrained({arguments})']
  return '\n\n'.join('\n'.join(['```python', *lines, '```']) for lines in (ours, theirs))


def _data(trained: Trained) -> str:
  """What the run was trained on, and began from."""
  config, data = trained.config, trained.config.data
  specs = [spec for spec, _ in data.mixture] or [data.source]
  text = f'{" + ".join(_public(spec, data.split) for spec in specs)}, {trained.examples:,} images.'
  begun = config.init.checkpoint
  return f'{text} Training began from {_base_model(config) or _short(begun)}.' if begun else text


def _recipe(config: Config) -> str:
  """A table of the options that have other values than by default, without those that change no result."""
  usual, known = config_lib.flatten(Config()), config_lib.flatten(config)
  skipped = (*_ELSEWHERE, *options.resumable(Config))
  rows = [
    (name, _short(value) if isinstance(value, str) else str(value))
    for name, value in known.items()
    if name in _ALWAYS or (usual.get(name) != value and not name.startswith(skipped))
  ]
  return markdown.table(('option', 'value'), rows)


def _base_model(config: Config) -> str | None:
  """The repository of the Hub that a run began from; None: another checkpoint, or none."""
  name = config.init.checkpoint
  address = hub.address_of(name) if name else None
  if name and '/' not in name and address is None:
    address = hub.guessed(name)
  return address.repository if address else None


def _hub_data(config: Config) -> list[str]:
  """The data sets of the Hub from which the run's data was prepared, as far as that is here."""
  found = {}
  for spec in [spec for spec, _ in config.data.mixture] or [config.data.source]:
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError, UserError):
      path = pathlib.Path(sources.parse(spec, '')[1], METADATA).expanduser()
      if name := re.match(r'hf://datasets/([^/@]+/[^/@]+)', json.loads(path.read_bytes())['source']):
        found[name[1]] = None
  return list(found)


def _public(spec: str, split: str) -> str:
  """What a card calls a split of a source: 'folder:photos train'. Where it lies is nobody's business."""
  with contextlib.suppress(UserError):  # of a kind that is registered elsewhere
    kind, place, split = sources.parse(spec, split)
    return f'{kind}:{_short(place)} {split}' if place else f'{kind} {split}'
  return _short(spec)


def _short(text: Any) -> str:
  """The last part of a path or address, without the version behind it; a published name as it is."""
  if catalogue.is_name(text):
    return text
  return re.sub(r'/\d+\.\d+\.\d+/*$', '', text.rstrip('/')).rpartition('/')[2]
