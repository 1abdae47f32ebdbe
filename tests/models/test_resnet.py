"""The hybrids' ResNet against NumPy, and against what the original code computed."""

import jax
import jax.numpy as jnp
import numpy as np
import numpy_resnet
import original
import pytest
import tiny
from flax import nnx

from vit_jax import config

STEM = {'patch': 1, 'stem_width': 32, 'stem_blocks': (1, 2)}


@pytest.mark.parametrize('image_size', [(16, 24), (17, 31)])
@pytest.mark.parametrize('channels', [1, 3])
@pytest.mark.parametrize('blocks', [(), (2,), (1, 2)])
def test_forward_equals_numpy(blocks, channels, image_size):
  """Odd sizes too: 'SAME' pads more at the end, with zeros or, before the maximum, with -inf."""
  model = tiny.options(**STEM | {'stem_blocks': blocks})
  graphdef, params = tiny.build(model, image_size=image_size, channels=channels)
  x = tiny.images(2, image_size, channels)
  expected = numpy_resnet.forward(params['stem'], x)
  with jax.default_matmul_precision('highest'):
    features = nnx.merge(graphdef, params).stem(x)
  rows, columns = ((side + 3) // 4 for side in image_size)
  if len(blocks) == 2:
    rows, columns = (rows + 1) // 2, (columns + 1) // 2
  assert features.shape == expected.shape == (2, rows, columns, [32, 128, 256][len(blocks)])
  np.testing.assert_allclose(features, expected, atol=2e-5)
  assert expected.std() > 0.1


GOLDEN = {
  'd1_hybrid_1_1_w05': {'patch': 1, 'stem_blocks': (1, 1)},
  'd2_hybrid_stem_only_w05': {'patch': 8, 'stem_blocks': ()},
}


@pytest.mark.parametrize('name', GOLDEN)
def test_original_code(golden, name):
  model = tiny.options(width=64, mlp_dim=128, depth=2, stem_width=32, **GOLDEN[name])
  graphdef, own = tiny.build(model, image_size=(64, 64), num_classes=10)
  params, expected = original.vit(golden / f'{name}.released.npz'), original.outputs(golden, name)
  assert jax.tree.map(jnp.shape, params) == jax.tree.map(jnp.shape, own)

  def stages(params, x):
    vit = nnx.merge(graphdef, params)
    stem = vit.stem
    stages = {'gn_root': stem.root_norm(stem.root(x))}
    y = nnx.max_pool(jax.nn.relu(stages['gn_root']), (3, 3), (2, 2), 'SAME')
    for b in range(stem.stages):
      for unit in getattr(stem, f'block{b + 1}'):
        y = unit(y)
      stages[f'block{b + 1}'] = y
    stages['embedding'] = vit.patch_embedding(stem(x))
    stages['Transformer'] = vit.encode(vit.embed(x))
    stages['pre_logits'] = vit.pool(stages['Transformer'])
    return {f'act/{stage}': value for stage, value in stages.items()} | {'logits': vit(x)}

  with jax.default_matmul_precision('highest'):
    found = jax.jit(stages, compiler_options=tiny.QUICK)(params, expected['images'])
  assert set(found) | {'images'} == set(expected)
  for stage, value in found.items():
    value = value.reshape(expected[stage].shape)
    np.testing.assert_allclose(value, expected[stage], atol=5e-6, err_msg=stage)


COUNTS = {
  'R+Ti/16': 6_337_704,
  'R26+S/32': 36_431_912,
  'R26+B/32': 101_383_976,
  'R50+B/16': 98_659_112,
  'R50+L/32': 328_994_856,
}


@pytest.mark.parametrize('variant', COUNTS)
def test_parameter_count(variant):
  assert tiny.count(config.Model(variant=variant), 1000) == COUNTS[variant]
