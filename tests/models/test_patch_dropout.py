"""Patch dropout: which patches stay, and what is computed of them."""

import jax
import numpy as np
import numpy_vit
import pytest
import tiny

from vit_jax.foundation.errors import UserError

OPTIONS = {'patch_dropout': 0.6, 'register_tokens': 2}
STAY = 2  # of 6 patches


@pytest.mark.slow
@pytest.mark.parametrize('unroll', [False, True])
def test_a_training_step_computes_what_numpy_computes_of_the_patches_that_stay(unroll):
  graphdef, params = tiny.build(tiny.options(**OPTIONS, unroll=unroll))
  x, keys = tiny.images(), tiny.keys()
  noise = [jax.random.uniform(jax.random.fold_in(key, 3), (6,)) for key in keys]  # 0 … 2: blocks and dropout
  stay = 3 + np.argsort(np.asarray(noise), axis=1)[:, :STAY]  # behind the class token and the registers

  def drop(place, layer, z):
    return np.stack([z[b][[0, 1, 2, *stay[b]]] for b in range(3)]) if place == 'embedding' else z

  expected = numpy_vit.forward(params, x, drop=drop)['logits']
  found = tiny.apply(graphdef, params, x, keys)
  np.testing.assert_allclose(found, expected, atol=1e-5)
  np.testing.assert_allclose(tiny.apply(graphdef, params, x[1:2], keys[1:2]), found[1:2], atol=1e-6)
  everything = numpy_vit.forward(params, x)['logits']
  np.testing.assert_allclose(tiny.apply(graphdef, params, x), everything, atol=1e-5)


@pytest.mark.parametrize(
  ('options', 'said'),
  [
    ({'position': 'rotary'}, "position 'rotary', of which attention knows; choose one that is added"),
    ({'pool': 'gap', 'axial': True}, 'axial, which needs the whole grid; leave it out'),
    ({'mlp': 'local'}, "mlp 'local', which needs the whole grid; leave it out"),
    ({'pool': 'none'}, "pool 'none', by which every patch gets logits; choose another pool"),
  ],
  ids=lambda value: None if isinstance(value, str) else ' '.join(value),
)
def test_models_that_need_every_patch_are_refused(options, said):
  with pytest.raises(UserError, match=r'config\.model\.patch_dropout is 0\.6, and the model has ' + said):
    tiny.options(**OPTIONS | {'register_tokens': 0} | options).check('config.model')
