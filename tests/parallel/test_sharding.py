"""Where parameters and optimizer state lie, by the rules of each model."""

import dataclasses

import jax
import jax.numpy as jnp
import optax
import pytest
import tiny
from jax.sharding import PartitionSpec as P

from vit_jax import config
from vit_jax.config import EfficientNetConfig, MixerConfig, ResNetConfig, ViTConfig
from vit_jax.foundation import pytrees
from vit_jax.models.base import Architecture
from vit_jax.parallel import sharding as sharding_lib
from vit_jax.parallel.mesh import make_mesh
from vit_jax.training.run import Dataset, Run

L, D, H, M, K = 3, 16, 4, 32, 8


def _shapes(model):
  """The parameters of a model of 8 classes."""
  return pytrees.unflatten(Architecture(model, (32, 32), 3, K).shapes())


def _kernel(*shape):
  return jax.ShapeDtypeStruct(shape, jnp.float32)


# A hybrid Vision Transformer with parameters of every kind.
HYBRID = ViTConfig(
  *('custom', 2, D, M, L, H),
  **{'pool': 'map', 'class_token': True, 'register_tokens': 2, 'layer_scale': 0.1, 'pre_logits_size': D},
  **{'stem_width': 32, 'stem_blocks': (1,)},
)
MIXER = MixerConfig('custom', 4, 32, 48, 2, 24)
PARAMS, RULES = _shapes(HYBRID), HYBRID.sharding_rules


def _mlp(path, scan='.'):
  """An MLP's letters; those of blocks begin with the axis of the scan."""
  letters = {'dense_in/kernel': 'ft', 'dense_in/bias': 't', 'dense_out/kernel': 'tf'}
  return {f'{path}/{name}': scan + own for name, own in letters.items()}


def _attention(path, scan='.'):
  return {
    **{f'{path}/{name}/kernel': f'{scan}ft.' for name in ('query', 'key', 'value')},
    **{f'{path}/{name}/bias': f'{scan}t.' for name in ('query', 'key', 'value')},
    f'{path}/out/kernel': f'{scan}t.f',
  }


# On fsdp 2 x tensor 2. 'f' and 't' stand for the axis, '.' for not split; all others are copied.
HEAD_EXPECTED = {'head/kernel': 'ft', 'head/bias': 't'}
EXPECTED = {
  'stem/root/kernel': '...f',
  **{f'stem/block1/unit1/{name}/kernel': '...f' for name in ('conv1', 'conv2', 'conv3', 'projection')},
  'patch_embedding/kernel': '...f',
  **dict.fromkeys(('class_token', 'register_tokens', 'position_embedding', 'map_pool/probe'), '..f'),
  **_attention('blocks/attention'),
  **_mlp('blocks/mlp'),
  **_attention('map_pool/attention', scan=''),
  **_mlp('map_pool/mlp', scan=''),
  'pre_logits/kernel': 'f.',
  **HEAD_EXPECTED,
}
MIXER_EXPECTED = {
  'patch_embedding/kernel': '...f',
  **_mlp('blocks/token_mlp'),
  **_mlp('blocks/channel_mlp'),
  **HEAD_EXPECTED,
}


_OFFSETS = 'blocks/attention/position'
RELATIVE_EXPECTED = {
  **{f'{_OFFSETS}/bias/{pairs}': '.t..' for pairs in ('patches', 'among_others')},
  **{f'{_OFFSETS}/bias/{pairs}': '.t.' for pairs in ('from_others', 'to_others')},
}
LEARNED_2D_EXPECTED = {f'position_embedding/{table}': '..f' for table in ('rows', 'columns', 'class_token')}


def _drawn(spec, rank):
  axes = tuple(spec) + (None,) * (rank - len(spec))
  return ''.join('.' if axis is None else axis[0] for axis in axes)


def _mixed():
  return make_mesh(config.MeshConfig(data=2, fsdp=2, tensor=2))


VIT = ViTConfig('custom', 4, 32, 48, 2, 4)


@pytest.mark.parametrize(
  ('model', 'expected', 'part'),
  [
    (HYBRID, EXPECTED, ''),
    (MIXER, MIXER_EXPECTED, ''),
    (dataclasses.replace(VIT, position='relative', register_tokens=1), RELATIVE_EXPECTED, _OFFSETS),
    (dataclasses.replace(VIT, position='relative_query', register_tokens=1), {}, _OFFSETS),
    (dataclasses.replace(VIT, position='learned2d'), LEARNED_2D_EXPECTED, 'position_embedding'),
  ],
  ids=['vit', 'mixer', 'relative', 'relative_query', 'learned2d'],
)
def test_every_parameter_is_split_as_drawn(model, expected, part):
  shapes = pytrees.flatten(_shapes(model))
  tree = sharding_lib.param_shardings(_shapes(model), model.sharding_rules, _mixed(), 0)
  shardings = pytrees.flatten(tree)
  assert shardings.keys() == shapes.keys() and shapes.keys() >= expected.keys()
  drawn = {path: _drawn(shardings[path].spec, leaf.ndim) for path, leaf in shapes.items()}
  split = {path: letters for path, letters in drawn.items() if letters.strip('.') and path.startswith(part)}
  assert split == expected


@pytest.mark.parametrize(
  'model',
  [
    ResNetConfig('custom', (1, 2), 32),
    EfficientNetConfig('custom', 0.5, 0.5),
    EfficientNetConfig('custom', 0.5, 0.5, family='V2-B'),
    dataclasses.replace(MIXER, token_mixing='linear', norm='affine', layer_scale=0.1),
    dataclasses.replace(MIXER, token_mixing='gate'),
    dataclasses.replace(MIXER, mlp='swiglu'),
    dataclasses.replace(VIT, pool='none', mask_token=True, pre_logits_size=24, qk_norm=True, mlp='local'),
    dataclasses.replace(VIT, distillation_token=True),
    dataclasses.replace(VIT, block='parallel', layer_scale=0.1, pool='map_patches', patch_norm=True),
    dataclasses.replace(VIT, block='parallel_pairs', layer_scale=0.1),
    dataclasses.replace(
      VIT,
      **{'mlp': 'swiglu', 'mlp_sub_norm': True, 'attention_sub_norm': True, 'pre_norm': True},
      **{'final_norm': 'pooled', 'position': 'learned+rotary_mixed', 'norm': 'rms_norm'},
    ),
    tiny.mae(),
    tiny.dino(patch_projection=True),
    tiny.moco(),
    tiny.two_towers(),
    dataclasses.replace(VIT, pool='gap', axial=True, position='relative_query'),
  ],
  ids=[
    'resnet',
    'efficientnet',
    'v2',
    'resmlp',
    'gmlp',
    'gmixer',
    'pre_logits',
    'distillation',
    'parallel',
    'parallel_pairs',
    'parts',
    'mae',
    'dino',
    'moco',
    'two_towers',
    'axial',
  ],
)
def test_every_parameter_of_a_model_has_a_rule_and_every_large_kernel_is_split(model):
  shapes = Architecture(model, (16, 16), 3, 8).shapes()
  shardings = sharding_lib.param_shardings(shapes, model.sharding_rules, _mixed(), 0)
  for path, sharding in shardings.items():
    if path.endswith('kernel') and 'depthwise' not in path:
      assert 'fsdp' in sharding.spec, path


def test_small_parameters_are_copied_and_by_a_data_parallel_mesh_all():
  copied = sharding_lib.param_shardings(PARAMS, RULES, make_mesh(config.MeshConfig()), 0)
  assert all(sharding.is_fully_replicated for sharding in jax.tree.leaves(copied))
  shardings = pytrees.flatten(sharding_lib.param_shardings(PARAMS, RULES, _mixed(), L * D * M))
  split = {path for path in shardings if path[:6] == 'blocks' and not shardings[path].is_fully_replicated}
  assert split == {'blocks/mlp/dense_in/kernel', 'blocks/mlp/dense_out/kernel'}


def test_an_axis_that_does_not_divide_copies_along_that_axis_only():
  shapes = {'head': {'kernel': _kernel(D, 7), 'bias': _kernel(7)}}
  shardings = sharding_lib.param_shardings(shapes, RULES, _mixed(), 0)
  assert shardings['head']['kernel'].spec == P('fsdp', None)
  assert shardings['head']['bias'].is_fully_replicated


@pytest.mark.parametrize(
  ('axes', 'expected'),
  [
    ({'fsdp': 4}, {'query': '..f.', 'out': '.f..', 'dense_out': '.f.'}),
    ({'fsdp': 8}, {'query': '.f..', 'out': '...f', 'dense_out': '.f.'}),  # 8 does not divide the 4 heads
    ({'fsdp': 4, 'tensor': 2}, {'query': '.ft.', 'out': '.t.f', 'dense_out': '.tf'}),
    ({'tensor': 8}, {'query': '....', 'out': '....', 'dense_out': '.t.'}),
  ],
)
def test_fsdp_alone_splits_no_last_dimension_of_a_block_unless_it_does_not_divide_the_heads(axes, expected):
  mesh = make_mesh(config.MeshConfig(**axes))
  shardings = pytrees.flatten(sharding_lib.param_shardings(PARAMS, RULES, mesh, 0))
  for name, letters in expected.items():
    part = 'mlp' if name == 'dense_out' else 'attention'
    assert _drawn(shardings[f'blocks/{part}/{name}/kernel'].spec, len(letters)) == letters


@pytest.mark.parametrize(
  ('path', 'shape', 'said'),
  [
    ('blocks/gate/kernel', (L, D, D), "'blocks/gate/kernel': add one to the rules of its model"),
    ('other/norm/scale', (D,), "'other/norm/scale'"),  # the whole path must match
    ('head/kernel', (D,), 'more dimensions'),
  ],
)
def test_a_parameter_that_no_rule_fits_is_an_error_that_says_where_to_add_one(path, shape, said):
  with pytest.raises(ValueError, match=said):
    sharding_lib.param_shardings(pytrees.unflatten({path: _kernel(*shape)}), RULES, _mixed(), 0)


def _is_kernel(params):
  return jax.tree.map(lambda leaf: leaf.ndim > 1, params)


OPTIMIZERS = {
  'adamw': optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3)),
  'sgd': optax.chain(optax.add_decayed_weights(1e-4, mask=_is_kernel), optax.sgd(0.1, momentum=0.9)),
  'masked': optax.masked(optax.adam(1e-3), _is_kernel),
  'partition': optax.partition(
    {'train': optax.adam(1e-3), 'freeze': optax.set_to_zero()},
    lambda params: jax.tree.map_with_path(
      lambda path, _: 'freeze' if 'norm' in jax.tree_util.keystr(path) else 'train', params
    ),
  ),
  'accumulated': optax.MultiSteps(optax.adam(1e-3), 2),
  'injected': optax.inject_hyperparams(optax.adam)(learning_rate=1e-3),
}


@pytest.mark.parametrize('name', OPTIMIZERS)
def test_moments_lie_where_their_parameter_lies(name):
  """Against optax's own notion of which leaves of the state belong to which parameter."""
  mesh, optimizer = _mixed(), OPTIMIZERS[name]
  state = jax.eval_shape(optimizer.init, PARAMS)
  shardings = sharding_lib.state_shardings(state, PARAMS, RULES, mesh, 0)
  expected = optax.tree.map_params(
    optimizer,
    lambda leaf, sharding: leaf if isinstance(leaf, optax.MaskedNode) else sharding,
    state,
    sharding_lib.param_shardings(PARAMS, RULES, mesh, 0),
    is_leaf=lambda leaf: isinstance(leaf, optax.MaskedNode),
    transform_non_params=lambda _: jax.sharding.NamedSharding(mesh, P()),
  )
  assert jax.tree.structure(shardings) == jax.tree.structure(expected)
  pairs = list(zip(jax.tree.leaves(shardings), jax.tree.leaves(expected), strict=True))
  assert all(ours == theirs for ours, theirs in pairs)
  split = sum(not ours.is_fully_replicated for ours, _ in pairs)
  assert split >= len([path for path in EXPECTED if 'norm' not in path and 'bias' not in path])


def test_a_moment_belongs_to_the_parameter_with_the_longest_ending_of_its_path():
  params = {'norm': {'scale': _kernel(8)}, 'blocks': {'norm': {'scale': _kernel(8)}}}
  rules = ((r'norm/scale', ()), (r'blocks/norm/scale', ('fsdp',)))
  found = sharding_lib.state_shardings({'mu': params}, params, rules, _mixed(), 0)['mu']
  assert found['norm']['scale'].is_fully_replicated and found['blocks']['norm']['scale'].spec == P('fsdp')


def test_factored_moments_are_copied():
  state = jax.eval_shape(optax.scale_by_factored_rms(min_dim_size_to_factor=4).init, PARAMS)
  shardings = sharding_lib.state_shardings(state, PARAMS, RULES, _mixed(), 0)
  for name in ('v_row', 'v_col'):
    assert any(leaf.size > 1 for leaf in jax.tree.leaves(getattr(state, name)))
    assert all(sharding.is_fully_replicated for sharding in jax.tree.leaves(getattr(shardings, name)))
  # The moments of parameters that are not factored lie where those lie.
  assert not shardings.v['head']['bias'].is_fully_replicated
  # Raises where the sharding does not fit the shape.
  jax.tree.map(lambda leaf, sharding: sharding.shard_shape(leaf.shape), state, shardings)


@pytest.mark.slow
def test_a_compiled_step_takes_and_gives_parameters_and_moments_as_drawn():
  mesh = config.MeshConfig(data=2, fsdp=2, tensor=2, min_shard_size=0)
  values = config.Config(batch_size=8, model=HYBRID, data=config.DataConfig(image_size=(32, 32)), mesh=mesh)
  program = Run(values, Dataset(100, num_classes=K)).program
  compiled = program.step.lower(program.state, program.batch).compile()
  (taken, _), _ = compiled.input_shardings
  given, _ = compiled.output_shardings
  for path, leaf in pytrees.flatten(PARAMS).items():
    letters = EXPECTED.get(path, '.' * leaf.ndim)
    part = tuple(n if letter == '.' else n // 2 for n, letter in zip(leaf.shape, letters, strict=True))
    for state in (taken, given):
      moments = optax.tree.get(state.opt_state, 'mu')
      for tree in (state.params, moments):
        assert pytrees.flatten(tree)[path].shard_shape(leaf.shape) == part, path
