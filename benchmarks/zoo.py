"""Every registered architecture of timm's ViT-like modules, and transformers' classes: does vit_jax compute the same?

  python benchmarks/zoo.py --write --results=zoo.jsonl --markdown=docs/models.md [--modules=eva,beit] [--names=REGEX]

Each is built by timm at depth 1 or 2 with its own other options and random numbers for all parameters, layer scales,
norms and running statistics, saved as timm saves it, and loaded by `vit_jax.load`. The largest difference of logits is
relative to the largest logit; below 1e-4 it is 'same', otherwise 'WRONG'. Where vit_jax refuses, the table has its
reason. A damaged copy (two halves of a tensor swapped) must not pass as the same. `--write` also writes each
loaded model as a folder of timm's, which timm loads strictly and must compute the same within 1e-6. Module
'transformers' are its classes (zoo_transformers.py).
"""

import argparse
import collections
import json
import pathlib
import re
import shutil
import tempfile

import zoo_transformers  # first: it lets timm import torchvision

# isort: split
import jax
import numpy as np
import safetensors.numpy
import timm
import timm.models
import torch
from timm.models._hub import save_for_hf

import vit_jax
from vit_jax.foundation.errors import UserError
from vit_jax.pretrained import formats
from vit_jax.pretrained.base import FORMATS

TRANSFORMERS = 'transformers'  # no module of timm's: its classes
MODULES = (
  *(
    'vision_transformer',
    'deit',
    'eva',
    'beit',
    'naflexvit',
    'vision_transformer_sam',
    'vision_transformer_hybrid',
  ),
  *('vision_transformer_relpos', 'mlp_mixer', 'resnetv2', 'tf_efficientnet'),
  TRANSFORMERS,
)
CLOSE, WRITTEN_CLOSE = 1e-4, 1e-6
PAGE = """# timm's architectures and transformers' classes

Of {total} registered architectures in timm {timm}'s ViT-like modules: {counts}. Of {classes} vision classes of
transformers {transformers}: {of_classes}. This page is written by

```sh
python benchmarks/zoo.py --write --results=zoo.jsonl --markdown=docs/models.md
```

'same' has the largest difference between their outputs and those of `vit_jax.load`, relative to the largest number,
with two or three blocks (Mixers and convolutional networks: all; resnetv2_152x4_bit: four) and random numbers for all
parameters and running statistics. 'written' has that between their outputs before and after `--format=timm` or `hf`,
loaded strictly; it was measured where it stands. A refused one has its reason.
"""
DEPTH = 2


def names_of(module: str) -> list[str]:
  """The registered architectures of a module; of EfficientNets those with TensorFlow's padding."""
  if module == TRANSFORMERS:
    return zoo_transformers.names()
  if module == 'tf_efficientnet':
    return timm.list_models('tf_efficientnet*', module='efficientnet')
  return timm.list_models(module=module)


def create(name: str, module: str) -> torch.nn.Module:
  """timm's model with few blocks and small images where it takes such, and random numbers."""
  config = timm.models.get_pretrained_cfg(name)
  patch = int(match[1]) if (match := re.search(r'patch(\d+)', name)) else 16
  size = 384 if 'siglip_384' in name or 'siglip_gap_384' in name else patch * 4
  options = {'num_classes': 7}
  if module in ('vision_transformer', 'deit', 'beit', 'vision_transformer_relpos'):
    options |= {'depth': DEPTH, 'img_size': size}
  elif module == 'eva':
    options |= {'depth': DEPTH, 'img_size': size}
    if 'sapiens2' in name:  # some of whose blocks have half as many heads of keys and values
      heads = {'base': 12, 'giant': 24, '5b': 32}.get(name.split('_')[1], 16)
      options['num_kv_heads'] = heads if heads == 12 else (heads, heads // 2)
  elif module in ('naflexvit', 'vision_transformer_hybrid', 'vision_transformer_sam'):
    options |= {'depth': DEPTH}
  if name == 'resnetv2_152x4_bit':  # which takes 15 GB whole
    options |= {'layers': (1, 1, 1, 1), 'width_factor': 4}
    model = timm.models.resnetv2._create_resnetv2_bit(name, **options).eval()
  else:
    model = timm.create_model(name, pretrained=False, **options).eval()
  if 'img_size' in options:  # as the tags of a published model say it
    model.pretrained_cfg['input_size'] = (3, options['img_size'], options['img_size'])
  elif module in ('resnetv2', 'tf_efficientnet'):
    model.pretrained_cfg['input_size'] = (3, 128, 128)
  elif config is not None:
    model.pretrained_cfg['input_size'] = config.input_size
  randomise(
    model, 0.5 if module == 'mlp_mixer' else 1.0
  )  # rounding grows in 24 gated blocks of large numbers
  return model


def randomise(model: torch.nn.Module, share: float) -> None:
  generator = torch.Generator().manual_seed(0)
  norms = {
    id(parameter)
    for module in model.modules()
    if 'norm' in type(module).__name__.lower()
    for key, parameter in module.named_parameters(recurse=False)
    if key == 'weight'
  }
  with torch.no_grad():
    for parameter in model.parameters():
      deviation = 0.2 if parameter.ndim < 2 else share * min(0.2, parameter[0].numel() ** -0.5)
      noise = torch.randn(parameter.shape, generator=generator) * deviation
      parameter.copy_(1 + noise if id(parameter) in norms else noise)
    for key, buffer in model.named_buffers():
      if key.endswith('running_mean'):
        buffer.copy_(torch.randn(buffer.shape, generator=generator) * 0.1)
      if key.endswith('running_var'):
        buffer.copy_(1 + torch.rand(buffer.shape, generator=generator))


def logits(model: torch.nn.Module, images: np.ndarray) -> np.ndarray:
  with torch.no_grad():
    return model(torch.from_numpy(images.transpose(0, 3, 1, 2).copy())).numpy()


def relative(found: np.ndarray, expected: np.ndarray) -> float:
  return float(np.abs(found - expected).max() / np.abs(expected).max())


def folder_of(model: torch.nn.Module, name: str, place: pathlib.Path) -> None:
  """As a published folder: the name of the architecture without model_args."""
  save_for_hf(model, place, model_config={'pretrained_cfg': model.pretrained_cfg}, safe_serialization=True)
  path = place / 'config.json'
  values = json.loads(path.read_text())
  assert values['architecture'] == name
  values.pop('model_args', None)
  path.write_text(json.dumps(values))


def damage(place: pathlib.Path, copy: pathlib.Path) -> None:
  """A copy in which the rows of one kernel of the last block are in another order."""
  shutil.copytree(place, copy)
  tensors = safetensors.numpy.load_file(copy / 'model.safetensors')
  in_blocks = [key for key in tensors if re.search(r'blocks?\.\d|stages', key)]
  kernels = [key for key in in_blocks if tensors[key].ndim >= 2 and len(tensors[key]) > 1]
  key = kernels[-1]
  tensors[key] = np.roll(tensors[key], 1, axis=0)
  safetensors.numpy.save_file(tensors, copy / 'model.safetensors', metadata={'format': 'pt'})


def check(name: str, module: str, *, write: bool) -> tuple[str, str]:
  """(outcome, detail) of an architecture."""
  with tempfile.TemporaryDirectory() as temporary:
    if module == TRANSFORMERS:
      return zoo_transformers.check(name, pathlib.Path(temporary), CLOSE, WRITTEN_CLOSE)
    folder = pathlib.Path(temporary) / 'theirs'
    peer = create(name, module)
    folder_of(peer, name, folder)
    try:
      ours = vit_jax.load(folder)
    except UserError as error:
      return 'refused', str(error).replace(str(folder), 'The folder').rpartition(': ')[2].rstrip('.')
    height, width = ours.preprocess.size
    images = np.random.default_rng(0).uniform(-1, 1, (2, height, width, 3)).astype(np.float32)
    expected = logits(peer, images)
    with jax.default_matmul_precision('highest'):
      difference = relative(np.asarray(ours(images)), expected)
      damage(folder, pathlib.Path(temporary) / 'damaged')
      noticed = relative(np.asarray(vit_jax.load(pathlib.Path(temporary) / 'damaged')(images)), expected)
    if not difference < CLOSE or not noticed > 2 * CLOSE:
      return 'WRONG', f'{difference:.1e} (damaged: {noticed:.1e})'
    return 'same', f'{difference:.1e}' + (written(folder, expected, images) if write else '')


def written(folder: pathlib.Path, expected: np.ndarray, images: np.ndarray) -> str:
  """What becomes of a loaded model that is written for timm, which loads it strictly."""
  pretrained, place = formats.read(folder), folder.with_name('ours')
  for writer in (FORMATS[name]() for name in FORMATS.names() if name.startswith('timm')):
    reason = writer.unfit(pretrained)
    if reason is None:
      writer.write(pretrained, place)
      break
  else:
    return f'; not written: {reason}'
  again = timm.create_model(f'local-dir:{place}', pretrained=True).eval()
  difference = relative(logits(again, images), expected)
  return f'; written {difference:.1e}' + ('' if difference < WRITTEN_CLOSE else ' WRONG')


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('--modules', default=','.join(MODULES))
  parser.add_argument('--names', default='.*', help='a regex')
  parser.add_argument('--write', action='store_true')
  parser.add_argument('--results', type=pathlib.Path, help='JSON lines: what is there is not computed again')
  parser.add_argument('--markdown', type=pathlib.Path, help='where to write the table of all results')
  arguments = parser.parse_args()
  torch.set_num_threads(1)
  results = arguments.results
  rows = (
    [json.loads(line) for line in results.read_text().splitlines()] if results and results.exists() else []
  )
  known = {row['name'] for row in rows}
  for module in arguments.modules.split(','):
    for name in names_of(module):
      if name in known or not re.fullmatch(arguments.names, name):
        continue
      outcome, detail = check(name, module, write=arguments.write)
      rows.append({'module': module, 'name': name, 'outcome': outcome, 'detail': detail})
      print(*rows[-1].values(), flush=True)
      if results is not None:
        with results.open('a') as file:
          file.write(json.dumps(rows[-1]) + '\n')
  print(f'{len(rows)} architectures: {counts(rows)}')
  if arguments.markdown is not None:
    arguments.markdown.write_text(page(rows))


def counts(rows: list[dict[str, str]]) -> str:
  found = collections.Counter(row['outcome'] for row in rows)
  return ', '.join(f'{found[kind]} {kind}' for kind in ('same', 'refused', 'WRONG'))


def page(rows: list[dict[str, str]]) -> str:
  """docs/models.md."""
  of_timm, classes = (
    [row for row in rows if (row['module'] == TRANSFORMERS) == own] for own in (False, True)
  )
  said = {'timm': timm.__version__, 'transformers': zoo_transformers.transformers.__version__}
  said |= {'counts': counts(of_timm), 'of_classes': counts(classes)}
  parts = [PAGE.format(total=len(of_timm), classes=len(classes), **said)]
  for module in dict.fromkeys(row['module'] for row in rows):
    own = [row for row in rows if row['module'] == module]
    parts.append(f'## {module}\n\n{counts(own)}\n\n| architecture | | |\n|---|---|---|')
    parts += [f'| `{row["name"]}` | {row["outcome"]} | {row["detail"]} |' for row in own]
    parts.append('')
  return '\n'.join(parts)


if __name__ == '__main__':
  main()
