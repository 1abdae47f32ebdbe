"""The original project's files: a flat .npz, in the naming of 2020 or the later one of Linen.

The architecture is read off the names and shapes. What they do not tell is an argument, with what the
original's models have as its default: the tanh approximation of GELU and an epsilon of 1e-6 (ResNets: 1e-5).
"""

import dataclasses
import os
import re

import jax
import numpy as np

from vit_jax import config, pytrees
from vit_jax.errors import UserError
from vit_jax.models.variants import resolve
from vit_jax.pretrained import bit_names
from vit_jax.pretrained.base import Portable, Preprocess
from vit_jax.pretrained.npz_archive import Archive, Writer
from vit_jax.pretrained.released_architecture import BIT_NORM_EPSILON, Architecture, infer

# What is put before the names by a training run of the original or by LiT, and what the file may hold
# beside the model then.
_PREFIXES = {
  'opt/target/': r'opt/state/.*|extra/.*',
  'params/img/': r'params/(txt/.*|t)',
  'params/': r'(opt|state|extra)/.*',
  'img/': r'txt/.*|t',
  '': '',
}

NAMINGS = ('2020', 'linen')
# Our path -> theirs in each naming; 'kernel', 'bias' and 'scale' are called the same.
_NAMES = {
  'class_token': ('cls', 'cls'),
  'position_embedding': ('Transformer/posembed_input/pos_embedding',) * 2,
  'patch_embedding': ('embedding', 'embedding'),
  'norm': ('Transformer/encoder_norm', 'Transformer/encoder_norm'),
  'representation': ('pre_logits', 'pre_logits'),
  'head': ('head', 'head'),
}
_BLOCK_NAMES = {
  'attention_norm': ('LayerNorm_0', 'LayerNorm_0'),
  'attention': ('MultiHeadDotProductAttention_1', 'MultiHeadDotProductAttention_0'),
  'mlp_norm': ('LayerNorm_2', 'LayerNorm_1'),
  'mlp/dense_in': ('MlpBlock_3/Dense_0', 'MlpBlock_0/Dense_0'),
  'mlp/dense_out': ('MlpBlock_3/Dense_1', 'MlpBlock_0/Dense_1'),
}
_BLOCK = 'Transformer/encoderblock_{}/'
_MIXER_NAMES = {'patch_embedding': 'stem', 'norm': 'pre_head_layer_norm', 'head': 'head'}
_MIXER_BLOCK_NAMES = {
  'token_norm': 'LayerNorm_0',
  'token_mlp/dense_in': 'token_mixing/Dense_0',
  'token_mlp/dense_out': 'token_mixing/Dense_1',
  'channel_norm': 'LayerNorm_1',
  'channel_mlp/dense_in': 'channel_mixing/Dense_0',
  'channel_mlp/dense_out': 'channel_mixing/Dense_1',
}
_MIXER_BLOCK = 'MixerBlock_{}/'
_HEAD_CONVOLUTION = '/conv2d/kernel'  # of a ResNet: 1 × 1
_STEM_NAMES = {
  'root': 'conv_root',
  'root_norm': 'gn_root',
  'projection': 'conv_proj',
  'projection_norm': 'gn_proj',
  'norm1': 'gn1',
  'norm2': 'gn2',
  'norm3': 'gn3',
}


def read(
  path: str | os.PathLike,
  *,
  image_size: tuple[int, int] | None = None,
  gelu: str | None = None,
  norm_epsilon: float | None = None,
  pool: str | None = None,
) -> Portable:
  """A file of the original project, or one in its format.

  Args:
    path: the file.
    image_size: that the model was trained with, read where its patches are not a square.
    gelu: 'tanh', which None means too, or 'erf'.
    norm_epsilon: of every norm; None: 1e-6, of a ResNet 1e-5.
    pool: None: the class token if there is one, else the mean of all tokens. 'none': logits of every token.

  Raises:
    UserError: a damaged file, or one whose tensors are not those of a model we know.
  """
  with Archive(path) as archive:
    stored, notes = _stored(archive)
    found = _infer(archive, stored, image_size)
    found = found._replace(model=_told(found.model, gelu, norm_epsilon, pool))
    params = _read_params(archive, stored, found)
    if archive.dtypes != {'float32'}:
      stored_in = ', '.join(sorted(archive.dtypes))
      notes += (f'{archive.path.name} is stored in {stored_in}, and read into float32.',)
  epsilon = found.model.norm_epsilon
  if resolve(found.model).kind == 'resnet' and epsilon != BIT_NORM_EPSILON:
    notes += (
      f'{archive.path.name} is read with norm_epsilon {epsilon:g}, and the published ones have 1e-05.',
    )
  head = params['head']
  if not found.num_classes:
    notes += (f'{archive.path.name} has no head; it is for features, or to fine-tune with num_classes=….',)
  elif not head['kernel'].any() and not head['bias'].any():
    notes += (
      f'The head of {archive.path.name} is all zeros, so that every class gets the same logit; it is for '
      f'features, or to fine-tune with num_classes=….',
    )
  preprocess = Preprocess.from_range(found.image_size, -1.0, 1.0, channels=found.channels)
  return Portable(*found, params, preprocess, notes=notes)


def architecture(path: str | os.PathLike, image_size: tuple[int, int] | None = None) -> Architecture:
  """What is read off the names and shapes of a file, without its numbers; raises as `read`."""
  with Archive(path) as archive:
    stored, _ = _stored(archive)
    return _infer(archive, stored, image_size)


def write(portable: Portable, path: str | os.PathLike, *, naming: str = '2020') -> tuple[str, ...]:
  """Writes the parameters as a file of the original project.

  Args:
    portable: the model.
    path: the file; what is there is replaced once the new one is complete.
    naming: '2020', which all readers of these files know, or 'linen'.

  Returns:
    Sentences on what the format cannot tell its reader.

  Raises:
    UserError: the model has what the format has no name for.
  """
  flat = pytrees.flatten(portable.params)
  kind = resolve(portable.model).kind
  family = naming if kind == 'vit' else kind
  names = {parameter: _name(parameter, family) for parameter in flat}
  unknown = sorted(parameter for parameter, name in names.items() if name is None)
  if portable.model.position != 'learned':
    unknown = [f'position {portable.model.position!r}']
  if unknown:
    raise UserError(
      f'The released format has no place for {_some(unknown)}; save this model as a run or as a Hugging '
      f'Face folder.'
    )
  with Writer(path) as writer:
    for parameter, name in names.items():
      array = np.asarray(flat[parameter])
      if not array.size:  # the head of a model that has none
        continue
      if '{}' in name:
        for block, part in enumerate(array):
          writer.write(name.format(block), part)
      else:
        group_norm = naming == '2020' and bool(re.search(r'\bgn\w+/(scale|bias)$', name))
        lead = 3 * group_norm + 2 * name.endswith(_HEAD_CONVOLUTION)
        writer.write(name, array.reshape((1,) * lead + array.shape))
  return _untold(portable)


def _stored(archive: Archive) -> tuple[dict[str, str], tuple[str, ...]]:
  """The names of the format -> those in the file, without what lies beside the model; and a note on that."""
  names = list(archive.shapes)
  prefix = next(
    prefix for prefix in _PREFIXES if any(name.startswith(prefix) for name in names) or not prefix
  )
  beside = [name for name in names if _PREFIXES[prefix] and re.fullmatch(_PREFIXES[prefix], name)]
  notes = ()
  if beside:
    others = 'other tensors' if len(beside) > 1 else 'other tensor'
    notes = (
      f'{archive.path.name} holds {len(beside)} {others} beside the model ({_some(beside)}), not read.',
    )
  model = [name for name in names if name not in beside]
  for name in model:
    if not name.startswith(prefix):
      raise _extra(archive, [name])
  return {name.removeprefix(prefix): name for name in model}, notes


def _infer(archive: Archive, stored: dict[str, str], image_size: tuple[int, int] | None) -> Architecture:
  return infer(archive.path, {key: archive.shapes[name] for key, name in stored.items()}, image_size)


def _told(
  model: config.Model, gelu: str | None, norm_epsilon: float | None, pool: str | None
) -> config.Model:
  """The model with what no tensor tells."""
  model = dataclasses.replace(model, gelu=gelu or model.gelu, norm_epsilon=norm_epsilon or model.norm_epsilon)
  if pool is None or pool == model.pool:
    return model
  class_token = model.pool == 'token'
  if pool == 'token' and not class_token:
    raise UserError("pool is 'token', but the file has no class token; leave pool out.")
  return dataclasses.replace(model, pool=pool, class_token=class_token)


def _read_params(archive: Archive, stored: dict[str, str], found: Architecture) -> dict:
  """The parameters, each read to its place in the array that holds it.

  Args:
    archive: the file.
    stored: the names of the format -> those in the file.
    found: the architecture.
  """
  try:
    _, shapes = pytrees.shapes(*found)
  except UserError as error:
    raise UserError(f'{archive.path} fits no architecture we know: {error}') from error
  kind = resolve(found.model).kind
  naming = NAMINGS[any('/MlpBlock_0/' in key for key in stored)] if kind == 'vit' else kind
  places = {}  # their name -> our path, block number or None
  for path, leaf in shapes.items():
    name = _name(path, naming)
    if path.startswith('head/') and not found.num_classes:
      continue
    if '{}' in name:
      places |= {name.format(block): (path, block) for block in range(leaf.shape[0])}
    else:
      places[name] = (path, None)
  _check_complete(archive, stored, shapes, places)
  params = {path: np.empty(leaf.shape, np.float32) for path, leaf in shapes.items()}
  for key, (path, block) in places.items():
    archive.read_into(stored[key], params[path] if block is None else params[path][block])
  return pytrees.unflatten(params)


def _check_complete(
  archive: Archive,
  stored: dict[str, str],
  shapes: dict[str, jax.ShapeDtypeStruct],
  places: dict[str, tuple[str, int | None]],
) -> None:
  """Raises UserError where a tensor is missing, of another shape, or one too many."""
  missing = sorted(places.keys() - stored.keys())
  if missing:
    raise UserError(
      f'{archive.path} has no tensor {_some(missing)}, which a model of its shapes needs; the file is '
      f'incomplete, get it again.'
    )
  extra = sorted(stored.keys() - places.keys())
  if extra:
    raise _extra(archive, extra)
  for key, (path, block) in places.items():
    shape = archive.shapes[stored[key]]
    wanted = shapes[path].shape if block is None else shapes[path].shape[1:]
    # The scale and bias of a hybrid's GroupNorm are (1, 1, 1, C) in the naming of 2020, and the kernel of a
    # ResNet's head is (1, 1, D, K).
    lead = 2 if key.endswith(_HEAD_CONVOLUTION) else 3
    if shape not in (wanted, (1,) * lead + wanted):
      raise UserError(
        f'{archive.path} has {key} of shape {shape} where its other tensors ask for {wanted}; it fits no '
        f'architecture we know.'
      )


def _extra(archive: Archive, names: list[str]) -> UserError:
  return UserError(
    f'{archive.path} has the tensor {_some(names)}, which belongs to no model we know; remove it, or choose '
    f'another file.'
  )


def _some(names: list[str]) -> str:
  return names[0] + (f' (and {len(names) - 1} more)' if len(names) > 1 else '')


def _name(path: str, naming: str) -> str | None:
  """Their name of a parameter, with {} for the number of the block; None: there is none.

  Args:
    path: ours.
    naming: one of NAMINGS, 'mixer' or 'resnet'.
  """
  if naming == 'resnet':
    return bit_names.published(path)
  if path.startswith('stem/'):
    return '/'.join(_STEM_NAMES.get(part, part) for part in path.split('/')[1:])
  in_block, path = path.startswith('blocks/'), path.removeprefix('blocks/')
  if naming == 'mixer':
    names, block = (_MIXER_BLOCK_NAMES if in_block else _MIXER_NAMES), _MIXER_BLOCK
  else:
    names, block = (_BLOCK_NAMES if in_block else _NAMES), _BLOCK
    names = {ours: theirs[NAMINGS.index(naming)] for ours, theirs in names.items()}
  for ours, theirs in names.items():
    if path == ours or path.startswith(ours + '/'):
      return block * in_block + theirs + path.removeprefix(ours)
  return None


def _untold(portable: Portable) -> tuple[str, ...]:
  """What a reader of the file must be told."""
  model = portable.model
  arguments = []
  if model.gelu != 'tanh':
    arguments.append(f'gelu={model.gelu!r}')
  resnet = resolve(model).kind == 'resnet'
  if model.norm_epsilon != (BIT_NORM_EPSILON if resnet else 1e-6):
    arguments.append(f'norm_epsilon={model.norm_epsilon:g}')
  if model.pool not in ('token', 'gap') or (model.pool == 'gap' and model.class_token):
    arguments.append(f'pool={model.pool!r}')
  height, width = portable.image_size
  if (height, width) != (224, 224) if resnet else height != width:
    arguments.append(f'image_size={portable.image_size}')
  notes = []
  if arguments:
    notes.append(f'The file cannot say how it is to be computed: load it with {", ".join(arguments)}.')
  plain = Preprocess.from_range(portable.image_size, -1.0, 1.0, channels=portable.channels)
  if portable.preprocess != plain:
    notes.append('The file does not tell how its images are prepared, which is not as in the original.')
  if portable.class_names:
    notes.append('The file does not hold the names of the classes.')
  return tuple(notes)
