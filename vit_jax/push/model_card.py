"""The card of a model: what it is, how to load it, and what its run holds of data, recipe and results."""

import contextlib
import json
import os
import pathlib
import re
import shutil

from vit_jax import config as config_lib
from vit_jax import options
from vit_jax.config import Config
from vit_jax.data import sources
from vit_jax.data.sources.tfds_files import METADATA
from vit_jax.evaluation.base import EMA_SUFFIX, format_metric
from vit_jax.foundation import files, hub, markdown
from vit_jax.foundation.errors import UserError
from vit_jax.foundation.hub import Address
from vit_jax.pretrained import catalogue, formats, peft, peft_export
from vit_jax.pretrained.base import Pretrained
from vit_jax.pretrained.runs import Trained
from vit_jax.training.metrics import read_metrics
from vit_jax.training.workdir import open_workdir

_CURVES = 'curves.png'
_NAMED = 20  # classes
# Options that the table of the recipe always has, and such as stand elsewhere in the card, or nowhere.
_ALWAYS = ('total', 'batch_size', 'optimizer.name', 'schedule.learning_rate')
_ELSEWHERE = ('model.', 'evaluators.', 'data.source', 'data.mixture', 'init.checkpoint')


def write(
  folder: pathlib.Path,
  pretrained: Pretrained,
  source: str,
  trained: Trained | None,
  place: Address | str,
  license_name: str | None,
) -> None:
  """Writes README.md, and the curves that a run has drawn, into the Hugging Face folder of a model from `source`.

  `trained` is how a run trained it (None: it is no run's), and `place` where it is going to be, on the Hub or a folder.
  """
  library = _library(folder)
  task = 'image-classification' if pretrained.architecture.num_classes else 'image-feature-extraction'
  header = {'license': license_name, 'library_name': library, 'pipeline_tag': task, 'tags': ['vit_jax', task]}
  title = place.repository.rpartition('/')[2] if isinstance(place, Address) else pathlib.Path(place).name
  names, (height, width) = pretrained.class_names or (), pretrained.architecture.image_size
  described = pretrained.architecture.model.describe()
  text = f'{described}; {pretrained.num_parameters:,} parameters, {height} × {width} pixels.'
  if names:
    text += f' {len(names):,} classes: {", ".join(names[:_NAMED])}{", …" if len(names) > _NAMED else ""}.'
  if library == 'peft' and pretrained.adapted and (base := peft_export.on_hub(pretrained.adapted)):
    theirs = _loading_adapter(place, base, pretrained.architecture.num_classes)
  else:
    theirs = _loading(place, library, task)
  ours = f'import vit_jax\n\nmodel = vit_jax.load({str(place)!r})'
  parts = [f'# {title}', text, '## How to load it', *(f'```python\n{code}\n```' for code in (ours, theirs))]
  if trained is not None:
    header |= {'base_model': _base_model(trained.config), 'datasets': _hub_data(trained.config)}
    run = re.sub(r'/checkpoints(/\d+)?/*$', '', os.path.expanduser(source))
    with open_workdir(run, read_only=True) as workdir:
      parts += _training(trained, workdir.folder)
      with contextlib.suppress(FileNotFoundError):
        shutil.copyfile(workdir.folder / 'report' / _CURVES, folder / _CURVES)
        parts.append(f'![Loss, accuracy and learning rate over the steps of training]({_CURVES})')
  lines = [f'{name}: {json.dumps(value)}' for name, value in header.items() if value]  # JSON is YAML too
  files.write_text(folder / 'README.md', '\n'.join(['---', *lines, '---', '', '\n\n'.join(parts), '']))


def _library(folder: pathlib.Path) -> str:
  """The library that the files of a folder are for."""
  if (folder / peft.CONFIG).exists():
    return 'peft'
  return 'transformers' if 'model_type' in json.loads((folder / 'config.json').read_bytes()) else 'timm'


def _loading(place: Address | str, library: str, task: str) -> str:
  """Python that loads the model by the library that its files are for."""
  if library == 'timm':
    return f'import timm\n\nmodel = timm.create_model({_of_timm(place)!r}, pretrained=True).eval()'
  model = 'AutoModelForImageClassification' if task == 'image-classification' else 'AutoModel'
  call = f'from_pretrained({_of_transformers(place)})'
  text = f'from transformers import AutoImageProcessor, {model}\n\n'
  return f'{text}processor = AutoImageProcessor.{call}\nmodel = {model}.{call}'


def _loading_adapter(place: Address | str, base: Address, classes: int) -> str:
  """Python that loads an adapter's base by its library, and the adapter by PEFT."""
  text, merged = 'from peft import PeftModel\n', ''
  if _library(formats.located(str(base))) == 'timm':
    text = f'import timm\n{text}\nbase = timm.create_model({_of_timm(base)!r}, pretrained=True, num_classes={classes})'
    merged = '.merge_and_unload()'  # without which adapters do not count in those of timm's models that have a q_bias
  else:
    call = f'from_pretrained({_of_transformers(base)}, num_labels={classes}, ignore_mismatched_sizes=True)'
    text += f'from transformers import AutoModelForImageClassification as Base\n\nbase = Base.{call}'
  return f'{text}\nmodel = PeftModel.from_pretrained(base, {_of_transformers(place)}){merged}.eval()'


def _of_timm(place: Address | str) -> str:
  return str(place).replace('hf:', 'hf-hub:') if isinstance(place, Address) else f'local-dir:{place}'


def _of_transformers(place: Address | str) -> str:
  """The arguments of from_pretrained."""
  if not isinstance(place, Address):
    return repr(place)
  return repr(place.repository) + (f', revision={place.revision!r}' if place.revision else '')


def _training(trained: Trained, folder: pathlib.Path) -> list[str]:
  """What a run was trained on and how, and its results at the checkpoint's step; `folder` has metrics.jsonl."""
  config, data = trained.config, trained.config.data
  specs, begun = [spec for spec, _ in data.mixture] or [data.source], config.init.checkpoint
  text = f'{" + ".join(_public(spec, data.split) for spec in specs)}, {trained.examples:,} images.'
  text += f' Training began from {_base_model(config) or _short(begun)}.' if begun else ''
  usual, skipped = config_lib.flatten(Config()), (*_ELSEWHERE, *options.resumable(Config))
  recipe = [
    (name, _short(value) if isinstance(value, str) else str(value))
    for name, value in config_lib.flatten(config).items()
    if name in _ALWAYS or (usual.get(name) != value and not name.startswith(skipped))
  ]
  parts = ['## Data', text, '## Recipe', markdown.table(('option', 'value'), recipe)]
  if adapter := config.adapter if config.adapter.rank else None:
    kind = 'DoRA' if adapter.dora else 'LoRA'
    text = f'Trained are {kind} adapters of rank {adapter.rank} (alpha {adapter.alpha:g}) of the kernels that match '
    parts.append(
      f'{text}`{adapter.targets}`, and the parameters that match `{"`, `".join(adapter.trained)}`.'
    )
  line = next((line for line in read_metrics(folder) if line['step'] == trained.step), {})
  rows: list[tuple[str, ...]] = []
  for name, evaluator in config.evaluators.items():
    title = f'{name}{EMA_SUFFIX}' if trained.weights == 'ema' else name
    given = evaluator.given_metrics(title, data)
    values = {key: line[key] for key in line if key in given or key.startswith(f'{title}/')}
    images = f'{trained.evaluated[name]:,}' if name in trained.evaluated else ''
    place = _public(evaluator.source or sources.without_split(data.source), evaluator.split)
    rows += [
      (key.removeprefix(title).lstrip('/_'), format_metric(key, value), images, place)
      for key, value in values.items()
    ]
  if rows:
    table = markdown.table(('metric', 'value', 'images', 'data'), rows)
    parts += ['## Results', f'After step {trained.step:,}:', table]
  return parts


def _base_model(config: Config) -> str | None:
  """The repository of the Hub that a run began from; None: another checkpoint, or none."""
  name = config.init.checkpoint or ''
  address = hub.address_of(name) or (None if '/' in name else hub.guessed(name))
  return address and address.repository


def _hub_data(config: Config) -> list[str]:
  """The data sets of the Hub from which the run's data was prepared, as far as that is here."""
  found = []
  for spec in [spec for spec, _ in config.data.mixture] or [config.data.source]:
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError, UserError):
      prepared = pathlib.Path(sources.parse(spec, '')[1], METADATA).expanduser().read_bytes()
      found += re.findall(r'^hf://datasets/([^/@]+/[^/@]+)', json.loads(prepared)['source'])
  return found


def _public(spec: str, split: str) -> str:
  """What a card calls a split of a source, without where it lies: 'folder:photos train'."""
  with contextlib.suppress(UserError):  # of a kind that is registered elsewhere
    kind, place, split = sources.parse(spec, split)
    return f'{kind}:{_short(place)} {split}' if place else f'{kind} {split}'
  return _short(spec)


def _short(text: str) -> str:
  """The last part of a path or address, without the version behind it; a published name as it is."""
  if catalogue.is_name(text):
    return text
  return re.sub(r'/\d+\.\d+\.\d+/*$', '', text.rstrip('/')).rpartition('/')[2]
