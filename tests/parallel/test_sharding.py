import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec as P

from vit_jax import config
from vit_jax.parallel import rules
from vit_jax.parallel.mesh import batch_sharding, make_mesh

L, D, H, DH, M, K, PATCH, N = 3, 16, 4, 4, 32, 8, 2, 5


def _attention(*lead):
  heads = {'kernel': (*lead, D, H, DH), 'bias': (*lead, H, DH)}
  return {
    'query': heads,
    'key': heads,
    'value': heads,
    'out': {'kernel': (*lead, H, DH, D), 'bias': (*lead, D)},
  }


def _mlp(*lead, width=D, hidden=M):
  return {
    'dense_in': {'kernel': (*lead, width, hidden), 'bias': (*lead, hidden)},
    'dense_out': {'kernel': (*lead, hidden, width), 'bias': (*lead, width)},
  }


def _norm(*lead):
  return {'scale': (*lead, D), 'bias': (*lead, D)}


# The parameters of a hybrid ViT and of an MLP-Mixer, every kind of them; path -> shape.
SHAPES = {
  'stem': {
    'root': {'kernel': (7, 7, 3, 4)},
    'root_norm': {'scale': (4,), 'bias': (4,)},
    'block1': {
      'unit1': {
        **{f'conv{i}': {'kernel': (3, 3, 4, 4)} for i in (1, 2, 3)},
        **{f'norm{i}': {'scale': (4,), 'bias': (4,)} for i in (1, 2, 3)},
        'projection': {'kernel': (1, 1, 4, 4)},
        'projection_norm': {'scale': (4,), 'bias': (4,)},
      }
    },
  },
  'patch_embedding': {'kernel': (PATCH, PATCH, 3, D), 'bias': (D,)},
  'class_token': (1, 1, D),
  'register_tokens': (1, 2, D),
  'position_embedding': (1, N, D),
  'blocks': {
    'attention_norm': _norm(L),
    'attention': _attention(L),
    'attention_scale': (L, D),
    'mlp_norm': _norm(L),
    'mlp': _mlp(L),
    'mlp_scale': (L, D),
    'token_norm': _norm(L),
    'token_mlp': _mlp(L, width=6, hidden=4),
    'channel_norm': _norm(L),
    'channel_mlp': _mlp(L, hidden=8),
  },
  'norm': _norm(),
  'map_pool': {'probe': (1, 1, D), 'attention': _attention(), 'norm': _norm(), 'mlp': _mlp()},
  'representation': {'kernel': (D, D), 'bias': (D,)},
  'head': {'kernel': (D, K), 'bias': (K,)},
}
_OFFSETS = {'patches': (5, 7), 'from_others': (2,), 'to_others': (2,), 'among_others': (2, 2)}
POSITIONS = {
  'position_embedding': {'rows': (1, 3, D), 'columns': (1, 4, D), 'class_token': (1, 1, D)},
  'blocks': {
    'attention': {
      'position': {
        'bias': {name: (L, H, *shape) for name, shape in _OFFSETS.items()},
        'keys': {name: (L, DH, *shape) for name, shape in _OFFSETS.items()},
      }
    }
  },
}
PARAMS = jax.tree.map(
  lambda shape: jax.ShapeDtypeStruct(shape, jnp.float32), SHAPES, is_leaf=lambda leaf: isinstance(leaf, tuple)
)

# On fsdp 2 x tensor 2. 'f' and 't' stand for the axis, '.' for not split; all others are copied.
EXPECTED = {
  'stem/root/kernel': '...f',
  'stem/block1/unit1/conv1/kernel': '...f',
  'stem/block1/unit1/conv2/kernel': '...f',
  'stem/block1/unit1/conv3/kernel': '...f',
  'stem/block1/unit1/projection/kernel': '...f',
  'patch_embedding/kernel': '...f',
  'class_token': '..f',
  'register_tokens': '..f',
  'position_embedding': '..f',
  'blocks/attention/query/kernel': '.ft.',
  'blocks/attention/key/kernel': '.ft.',
  'blocks/attention/value/kernel': '.ft.',
  'blocks/attention/query/bias': '.t.',
  'blocks/attention/key/bias': '.t.',
  'blocks/attention/value/bias': '.t.',
  'blocks/attention/out/kernel': '.t.f',
  'blocks/mlp/dense_in/kernel': '.ft',
  'blocks/mlp/dense_in/bias': '.t',
  'blocks/mlp/dense_out/kernel': '.tf',
  'blocks/token_mlp/dense_in/kernel': '.ft',
  'blocks/token_mlp/dense_in/bias': '.t',
  'blocks/token_mlp/dense_out/kernel': '.tf',
  'blocks/channel_mlp/dense_in/kernel': '.ft',
  'blocks/channel_mlp/dense_in/bias': '.t',
  'blocks/channel_mlp/dense_out/kernel': '.tf',
  'map_pool/probe': '..f',
  'map_pool/attention/query/kernel': 'ft.',
  'map_pool/attention/key/kernel': 'ft.',
  'map_pool/attention/value/kernel': 'ft.',
  'map_pool/attention/query/bias': 't.',
  'map_pool/attention/key/bias': 't.',
  'map_pool/attention/value/bias': 't.',
  'map_pool/attention/out/kernel': 't.f',
  'map_pool/mlp/dense_in/kernel': 'ft',
  'map_pool/mlp/dense_in/bias': 't',
  'map_pool/mlp/dense_out/kernel': 'tf',
  'representation/kernel': 'f.',
  'head/kernel': 'ft',
  'head/bias': 't',
}


def _flat(tree):
  return {
    jax.tree_util.keystr(path, simple=True, separator='/'): leaf
    for path, leaf in jax.tree.leaves_with_path(tree)
  }


def _drawn(spec, rank):
  axes = tuple(spec) + (None,) * (rank - len(spec))
  return ''.join('.' if axis is None else axis[0] for axis in axes)


def _mixed():
  return make_mesh(config.MeshConfig(data=2, fsdp=2, tensor=2))


def test_every_path():
  shardings = _flat(rules.param_shardings(PARAMS, _mixed(), 0))
  shapes = _flat(PARAMS)
  assert shardings.keys() == shapes.keys() and shapes.keys() > EXPECTED.keys()
  for path, sharding in shardings.items():
    rank = shapes[path].ndim
    assert _drawn(sharding.spec, rank) == EXPECTED.get(path, '.' * rank), path


def test_data_parallel_copies_everything():
  mesh = make_mesh(config.MeshConfig())
  assert all(s.is_fully_replicated for s in jax.tree.leaves(rules.param_shardings(PARAMS, mesh, 0)))


def test_small_parameters_are_copied():
  shardings = _flat(rules.param_shardings(PARAMS, _mixed(), L * D * M))
  split = {path for path, sharding in shardings.items() if not sharding.is_fully_replicated}
  assert split == {'blocks/mlp/dense_in/kernel', 'blocks/mlp/dense_out/kernel'}


def test_an_axis_that_does_not_divide_copies_along_that_axis_only():
  shapes = {
    'head': {
      'kernel': jax.ShapeDtypeStruct((D, 7), np.float32),
      'bias': jax.ShapeDtypeStruct((7,), np.float32),
    }
  }
  shardings = rules.param_shardings(shapes, _mixed(), 0)
  assert shardings['head']['kernel'].spec == P('fsdp', None)
  assert shardings['head']['bias'].is_fully_replicated


def test_a_parameter_without_a_rule_is_an_error_that_says_where_to_add_one():
  shapes = {'blocks': {'gate': {'kernel': jax.ShapeDtypeStruct((L, D, D), np.float32)}}}
  with pytest.raises(ValueError, match=r"'blocks/gate/kernel'.*vit_jax\.parallel\.rules"):
    rules.param_shardings(shapes, _mixed(), 0)
  with pytest.raises(ValueError, match="'other/norm/scale'"):  # the whole path must match
    rules.param_shardings({'other': {'norm': {'scale': jax.ShapeDtypeStruct((D,), np.float32)}}}, _mixed(), 0)


def test_a_parameter_with_fewer_dimensions_than_its_rule():
  with pytest.raises(ValueError, match='more dimensions'):
    rules.param_shardings({'head': {'kernel': jax.ShapeDtypeStruct((D,), np.float32)}}, _mixed(), 0)


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
  shardings = rules.optimizer_shardings(state, PARAMS, mesh, 0)
  expected = optax.tree.map_params(
    optimizer,
    lambda leaf, sharding: leaf if isinstance(leaf, optax.MaskedNode) else sharding,
    state,
    rules.param_shardings(PARAMS, mesh, 0),
    is_leaf=lambda leaf: isinstance(leaf, optax.MaskedNode),
    transform_non_params=lambda _: jax.sharding.NamedSharding(mesh, P()),
  )
  assert jax.tree.structure(shardings) == jax.tree.structure(expected)
  pairs = list(zip(jax.tree.leaves(shardings), jax.tree.leaves(expected), strict=True))
  assert all(ours == theirs for ours, theirs in pairs)
  split = sum(not ours.is_fully_replicated for ours, _ in pairs)
  assert split >= len([path for path in EXPECTED if 'norm' not in path and 'bias' not in path])


def test_factored_moments_are_copied():
  state = jax.eval_shape(optax.scale_by_factored_rms(min_dim_size_to_factor=4).init, PARAMS)
  shapes = jax.tree.leaves(state)
  for leaf, sharding in zip(
    shapes, jax.tree.leaves(rules.optimizer_shardings(state, PARAMS, _mixed(), 0)), strict=True
  ):
    sharding.shard_shape(leaf.shape)  # raises where the sharding does not fit the shape


def _toy_step(mesh, optimizer):
  """One training step of a stack of MLPs and a head, the residual stream split by batch."""

  def loss(params, x):
    def block(x, mlp):
      y = jax.nn.gelu(x @ mlp['dense_in']['kernel'] + mlp['dense_in']['bias'])
      x = x + y @ mlp['dense_out']['kernel'] + mlp['dense_out']['bias']
      return jax.lax.with_sharding_constraint(x, batch_sharding(mesh)), None

    x, _ = jax.lax.scan(block, x, params['blocks']['mlp'])
    return jnp.sum((x @ params['head']['kernel'] + params['head']['bias']) ** 2)

  def step(params, state, x):
    updates, state = optimizer.update(jax.grad(loss)(params, x), state, params)
    return optax.apply_updates(params, updates), state

  return step


def _compiled_toy_step(mesh):
  """(compiled step, its inputs on the mesh) with the shardings of the rules."""
  optimizer = optax.sgd(0.1, momentum=0.9)
  keys = iter(jax.random.split(jax.random.key(0), 10))
  shapes = {'blocks': {'mlp': PARAMS['blocks']['mlp']}, 'head': PARAMS['head']}
  params = jax.tree.map(lambda leaf: 0.1 * jax.random.normal(next(keys), leaf.shape), shapes)
  shardings = rules.param_shardings(shapes, mesh, 0)
  state_shapes = jax.eval_shape(optimizer.init, shapes)
  state_shardings = rules.optimizer_shardings(state_shapes, shapes, mesh, 0)
  x = np.linspace(-1, 1, 8 * D, dtype=np.float32).reshape(8, D)
  inputs = jax.device_put(
    (params, optimizer.init(params), x), (shardings, state_shardings, batch_sharding(mesh))
  )
  # The new state's shardings are left to the compiler: it must come to ours by itself.
  return jax.jit(_toy_step(mesh, optimizer), out_shardings=(shardings, None)).lower(*inputs).compile(), inputs


def test_a_compiled_program_has_the_shardings_and_computes_the_same():
  compiled, inputs = _compiled_toy_step(_mixed())
  (params_in, state_in, _), _ = compiled.input_shardings
  moments = state_in[0].trace
  for path, sharding in _flat(params_in).items():
    shape = _flat(PARAMS)[path].shape
    letters = EXPECTED.get(path, '.' * len(shape))
    part = tuple(n if letter == '.' else n // 2 for n, letter in zip(shape, letters, strict=True))
    assert sharding.shard_shape(shape) == part, path
    assert _flat(moments)[path].shard_shape(shape) == part, path
    assert _flat(compiled.output_shardings[0])[path].shard_shape(shape) == part, path
    assert _flat(compiled.output_shardings[1][0].trace)[path].shard_shape(shape) == part, path

  alone, one = _compiled_toy_step(make_mesh(config.MeshConfig(), jax.devices()[:1]))
  for ours, expected in zip(jax.tree.leaves(compiled(*inputs)), jax.tree.leaves(alone(*one)), strict=True):
    np.testing.assert_allclose(ours, expected, rtol=1e-4, atol=1e-5)


def test_paths_of_other_positions():
  shapes = jax.tree.map(
    lambda shape: jax.ShapeDtypeStruct(shape, jnp.float32), POSITIONS, is_leaf=lambda x: isinstance(x, tuple)
  )
  shardings = _flat(rules.param_shardings(shapes, _mixed(), 0))
  drawn = {path: _drawn(shardings[path].spec, leaf.ndim) for path, leaf in _flat(shapes).items()}
  split = {path: letters for path, letters in drawn.items() if letters.strip('.')}
  bias = 'blocks/attention/position/bias'
  assert split == {
    **{f'position_embedding/{table}': '..f' for table in ('rows', 'columns', 'class_token')},
    **{f'{bias}/{pairs}': '.t..' for pairs in ('patches', 'among_others')},
    **{f'{bias}/{pairs}': '.t.' for pairs in ('from_others', 'to_others')},
  }
