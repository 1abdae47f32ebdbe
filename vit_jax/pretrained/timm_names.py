"""The tensors of timm's Vision Transformers, of all its modules: what they tell of a model, and where they lie in ours.

`Naming` has where the modules differ. It is read off the tensors, or chosen for a module that is written.
"""

import dataclasses
import re
from collections.abc import Callable, Collection, Iterable, Mapping

from vit_jax.models.base import Grid
from vit_jax.models.vit_config import ViTConfig
from vit_jax.pretrained.base import UnknownModelError
from vit_jax.pretrained.torch_names import Rule, attention, layer, norm
from vit_jax.pretrained.transformers_bit import unit_rules

REL_POS_TABLE = 'attn.rel_pos.relative_position_bias_table'  # of vit_relpos_*
Shapes = Mapping[str, tuple[int, ...]]

# timm's names in a block, where they are not those of 'sequential'; the first of a pair has 0 for *, the second 1.
_PARALLEL = {'norm1': 'in_norm', 'attn.proj': 'attn_out_proj', 'mlp.fc2': 'mlp_out_proj'} | {
  f'attn.{which}_norm': f'{which}_norm' for which in 'qk'
}
_PAIRS = {'norm1': 'attns.*.norm', 'attn': 'attns.*.attn', 'ls1': 'attns.*.ls'} | {
  'norm2': 'ffns.*.norm',
  'mlp': 'ffns.*.mlp',
  'ls2': 'ffns.*.ls',
}


@dataclasses.dataclass(frozen=True)
class Naming:
  """How tensors of the same meaning are called."""

  split: bool = False  # queries, keys and values have a tensor each
  split_bias: bool = False  # their biases have one each, beside one kernel of all
  packed: bool = True  # a SwiGLU's gate and value are one tensor
  gamma: bool = False  # factors of branches are 'gamma_1' and not 'ls1.gamma'
  # A parallel block has the MLP's bias alone, and none of queries, keys and values.
  separate_bias: bool = False
  table: str = 'attn.relative_position_bias_table'  # of a block's relative positions
  interleaved: bool = False  # rotary positions turn neighbouring channels together

  @classmethod
  def of(cls, shapes: Shapes, *, interleaved: bool) -> 'Naming':
    """Read off the tensors, but for what they do not tell."""
    return cls(
      split='blocks.0.attn.q_proj.weight' in shapes,
      split_bias='blocks.0.attn.q_bias' in shapes,
      packed='blocks.0.mlp.fc1_g.weight' not in shapes,
      gamma='blocks.0.gamma_1' in shapes,
      separate_bias='blocks.0.mlp_bias' in shapes,
      table=REL_POS_TABLE if f'blocks.0.{REL_POS_TABLE}' in shapes else cls.table,
      interleaved=interleaved,
    )


def shape_of(shapes: Shapes, name: str, rank: int) -> tuple[int, ...]:
  """The shape of a tensor; UnknownModelError where it is not there, or has another number of dimensions."""
  shape = shapes.get(name)
  if shape is None:
    raise UnknownModelError(f'it has no tensor {name}')
  if len(shape) != rank:
    raise UnknownModelError(
      f"it has {name} of shape {shape}, and that of a model of timm's has {rank} dimensions"
    )
  return shape


def depth_of(shapes: Shapes) -> int:
  """How many blocks there are."""
  return len({match[1] for key in shapes if (match := re.match(r'blocks\.(\d+)\.', key))})


def block_kind(shapes: Shapes) -> str:
  """config.model.block, but for 'post_norm', whose tensors are those of 'sequential'."""
  if 'blocks.0.in_proj.weight' in shapes:
    return 'parallel'
  return 'parallel_pairs' if 'blocks.0.attns.0.norm.weight' in shapes else 'sequential'


def first_block(block: str) -> Callable[[str], str]:
  """A function from a name in a block of the usual kind to the whole one in the first block."""
  name = _renamed({'parallel': _PARALLEL, 'parallel_pairs': _PAIRS}.get(block, {}), '0')
  return lambda usual: name(usual).format(0)


def stem(model: ViTConfig, paths: Collection[str]) -> tuple[Rule, ...]:
  """Of a hybrid's ResNet; `paths`: of all our parameters."""
  backbone = 'patch_embed.backbone.'
  root = f'{backbone}stem.' if model.sizes.stem_blocks else backbone
  around = {
    f'stem/root_norm/{leaf}': f'{root}norm.{theirs}'
    for leaf, theirs in (('scale', 'weight'), ('bias', 'bias'))
  }
  return unit_rules(
    paths, around | {'stem/root/kernel': f'{root}conv.weight'}, f'{backbone}stages.{{}}.blocks.{{}}.'
  )


def heads(model: ViTConfig, head: bool) -> tuple[Rule, ...]:
  """Of the head, and of that of the distillation token, where there are any."""
  if not head:
    return ()
  return (
    *layer('head', 'head'),
    *(layer('distillation_head', 'head_dist') if model.distillation_token else ()),
  )


def rules(model: ViTConfig, naming: Naming, grid: Grid) -> tuple[Rule, ...]:
  """Of a model without its head, its tokens and its stem; `grid`: of its patches."""
  found = [*layer('patch_embedding', 'patch_embed.proj', 'conv')[: 2 if model.patch_bias else 1]]
  last = {'tokens': (('norm', 'norm'),), 'pooled': (('pooled_norm', 'fc_norm'),), 'none': ()}[
    model.final_norm
  ]
  norms = [*last, *((('pre_norm', 'norm_pre'),) if model.pre_norm else ())]
  norms += (('patch_norm', 'patch_embed.norm'),) if model.patch_norm else ()
  for path, name in norms:
    found += norm(path, name, model.norm)
  if model.block == 'parallel_pairs':
    for number, path in enumerate(('blocks/first', 'blocks/second')):
      found += _block(model, naming, path, _renamed(_PAIRS, str(number)))
  else:
    found += _block(model, naming, 'blocks', _renamed(_PARALLEL if model.block == 'parallel' else {}))
  if 'rotary_mixed' in model.position:
    found.append(Rule('blocks/attention/position/waves', 'blocks.{}.rope.freqs'))
  if 'relative' in model.position:
    found += relative(model, grid, f'blocks.{{}}.{naming.table}')
  if model.pool in ('map', 'map_patches'):
    found += _map_pool(f'{model.pool}_pool', model)
  return tuple(found)


def _renamed(names: Mapping[str, str], number: str = '') -> Callable[[str], str]:
  """A function from a name in a block of the usual kind to the whole one, {} being the number of the block."""

  def name(usual: str) -> str:
    for start, other in names.items():
      if usual == start or usual.startswith(f'{start}.'):
        return f'blocks.{{}}.{other.replace("*", number)}{usual[len(start) :]}'
    return f'blocks.{{}}.{usual}'

  return name


def _block(model: ViTConfig, naming: Naming, ours: str, name: Callable[[str], str]) -> list[Rule]:
  found = [*norm(f'{ours}/attention_norm', name('norm1'), model.norm)]
  if model.block == 'parallel':
    found += _packed_projections(model, naming, ours)
  else:
    found += norm(f'{ours}/mlp_norm', name('norm2'), model.norm)
    found += _projections(naming, ours, name) + _into_mlp(model, naming, ours, name)
  if model.qk_norm:
    for which in ('query', 'key'):
      path, theirs = f'{ours}/attention/{which}_norm', name(f'attn.{which[0]}_norm')
      found += norm(path, theirs, model.norm, interleaved=naming.interleaved)
  for there, part in ((model.attention_sub_norm, 'attention'), (model.mlp_sub_norm, 'mlp')):
    found += (
      norm(f'{ours}/{part}/sub_norm', name(f'{part.replace("attention", "attn")}.norm'), model.norm)
      if there
      else ()
    )
  found += layer(f'{ours}/attention/out', name('attn.proj'), 'out')
  found += layer(f'{ours}/mlp/dense_out', name('mlp.fc2'))
  if model.layer_scale is not None and model.block == 'parallel':
    found.append(Rule(f'{ours}/both_scale', name('ls.gamma')))
  elif model.layer_scale is not None:
    for number, part in enumerate(('attention', 'mlp'), 1):
      theirs = name(f'gamma_{number}' if naming.gamma else f'ls{number}.gamma')
      found.append(Rule(f'{ours}/{part}_scale', theirs))
  return found


def _projections(naming: Naming, ours: str, name: Callable[[str], str]) -> list[Rule]:
  """Of queries, keys and values."""
  found = []
  for number, which in enumerate(('query', 'key', 'value')):
    path, turned = f'{ours}/attention/{which}', naming.interleaved and which != 'value'
    theirs = name(f'attn.{which[0]}_proj' if naming.split else 'attn.qkv')
    kernel, bias = attention(path, theirs, (0, 1) if naming.split else (number, 3), interleaved=turned)
    if naming.split_bias:
      bias = dataclasses.replace(bias, name=name(f'attn.{which[0]}_bias'), part=(0, 1))
    found += [kernel, bias]
  return found


def split(rules: Iterable[Rule]) -> tuple[Rule, ...]:
  """The same of a model whose queries, keys and values have a tensor each, as those of some EVA-02 have."""
  return tuple(
    dataclasses.replace(
      rule, name=rule.name.replace('attn.qkv', f'attn.{"qkv"[rule.part[0]]}_proj'), part=(0, 1)
    )
    if '.attn.qkv.' in rule.name
    else rule
    for rule in rules
  )


def _packed_projections(model: ViTConfig, naming: Naming, ours: str) -> list[Rule]:
  """Of a parallel block: hidden units of the MLP, queries, keys and values are one tensor."""
  hidden, width = model.sizes.mlp_dim, model.sizes.width
  total = hidden + 3 * width
  kernel, bias = layer(f'{ours}/mlp/dense_in', 'blocks.{}.in_proj')
  found = [dataclasses.replace(rule, rows=(0, hidden, total)) for rule in (kernel, bias)]
  if naming.separate_bias:
    found[1] = Rule(bias.path, 'blocks.{}.mlp_bias')
  for number, which in enumerate(('query', 'key', 'value')):
    for rule in attention(f'{ours}/attention/{which}', 'blocks.{}.in_proj'):
      found.append(dataclasses.replace(rule, rows=(hidden + number * width, width, total)))
  return found


def _into_mlp(model: ViTConfig, naming: Naming, ours: str, name: Callable[[str], str]) -> list[Rule]:
  if model.mlp != 'swiglu':
    return [*layer(f'{ours}/mlp/dense_in', name('mlp.fc1'))]
  found = []
  for number, (part, theirs) in enumerate((('dense_gate', 'fc1_g'), ('dense_in', 'fc1_x'))):
    for rule in layer(f'{ours}/mlp/{part}', name('mlp.fc1' if naming.packed else f'mlp.{theirs}')):
      found.append(dataclasses.replace(rule, part=(number, 2)) if naming.packed else rule)
  return found


def _map_pool(path: str, model: ViTConfig) -> list[Rule]:
  return [
    Rule(f'{path}/probe', 'attn_pool.latent'),
    *attention(f'{path}/attention/query', 'attn_pool.q'),
    *attention(f'{path}/attention/key', 'attn_pool.kv', (0, 2)),
    *attention(f'{path}/attention/value', 'attn_pool.kv', (1, 2)),
    *layer(f'{path}/attention/out', 'attn_pool.proj', 'out'),
    *norm(f'{path}/norm', 'attn_pool.norm', model.norm),
    *layer(f'{path}/mlp/dense_in', 'attn_pool.mlp.fc1'),
    *layer(f'{path}/mlp/dense_out', 'attn_pool.mlp.fc2'),
  ]


def relative(model: ViTConfig, grid: Grid, name: str) -> list[Rule]:
  """Of a table with a row for each offset of two patches, and three of a class token: its queries, its keys, itself."""
  path, offsets = 'blocks/attention/position/bias', (2 * grid[0] - 1) * (2 * grid[1] - 1)
  total = offsets + 3 * model.leading_tokens
  parts = {'patches': (0, offsets, total)}
  if model.leading_tokens:
    others = ('from_others', 'to_others', 'among_others')
    parts |= {part: (offsets + number, 1, total) for number, part in enumerate(others)}
  return [Rule(f'{path}/{part}', name, 'into', rows=rows) for part, rows in parts.items()]


def missing_biases(found: tuple[Rule, ...], names: Collection[str]) -> frozenset[str]:
  """Paths of the biases that a model without them lacks: of queries, keys and values, or also of all other layers."""
  absent = {rule.path for rule in found if rule.path.endswith('/bias') and rule.name.format(0) not in names}
  projected = {path for path in absent if re.fullmatch(r'.*/(query|key|value)/bias', path)}
  others = {
    rule.path
    for rule in found
    if re.fullmatch(r'blocks.*/(out|dense_in|dense_out|dense_gate)/bias', rule.path)
  }
  return frozenset(absent if absent - projected == others else projected)
