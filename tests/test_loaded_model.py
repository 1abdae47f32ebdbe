"""What `vit_jax.load` gives is compiled: once a shape, with the module's parameters as they are at the call."""

import copy
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
from flax import nnx
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from vit_jax.data.preprocess import Preprocess
from vit_jax.foundation.errors import UserError
from vit_jax.loaded_model import LoadedModel
from vit_jax.models.base import ModelConfig


def loaded(config: ModelConfig | None = None, **sizes) -> LoadedModel:
  return LoadedModel(
    nnx.merge(*tiny.build(config or tiny.options(), **sizes)), Preprocess.from_range((12, 8), -1, 1), None
  )


def count_traces(model: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
  """The shapes of images with which the network is called in Python, which a compiled program does not do."""
  network, shapes = type(model.module), []
  original = network.__call__

  def counted(self, images, **options):
    shapes.append(images.shape)
    return original(self, images, **options)

  monkeypatch.setattr(network, '__call__', counted)
  return shapes


@pytest.mark.slow
def test_a_shape_is_compiled_once(monkeypatch):
  model = loaded(num_classes=6)
  shapes = count_traces(model, monkeypatch)
  for batch, size in ((2, (12, 8)), (2, (12, 8)), (3, (12, 8)), (2, (16, 8)), (3, (12, 8)), (2, (16, 8))):
    model(np.zeros((batch, *size, 3), np.float32))
  assert shapes == [(2, 12, 8, 3), (3, 12, 8, 3), (2, 16, 8, 3)]


@pytest.mark.slow
def test_parameters_and_layers_replaced_in_the_module_are_seen(monkeypatch):
  model, images = loaded(num_classes=8), tiny.images()
  before = model(images)
  shapes = count_traces(model, monkeypatch)
  model.module.head.bias[...] += 1  # in place
  np.testing.assert_allclose(model(images), before + 1, atol=1e-5)
  nnx.update(model.module, jax.tree.map(jnp.zeros_like, nnx.state(model.module)))
  np.testing.assert_array_equal(model(images), np.zeros((3, 8)))
  assert not shapes  # other numbers need no other program
  model.module.head = nnx.Linear(32, 4, bias_init=nnx.initializers.ones, rngs=nnx.Rngs(0))
  np.testing.assert_array_equal(model(images), np.ones((3, 4)))
  assert model.num_classes == 4 and len(shapes) == 1


@pytest.mark.slow
def test_it_works_in_a_users_own_jit_vmap_and_grad_and_with_numbers_of_numpy():
  model, images = loaded(), tiny.images()
  np.testing.assert_array_equal(model.features(images, np.int64(0)), model.features(images, 0))
  logits = model(images)
  np.testing.assert_allclose(jax.jit(lambda x: 2 * model(x))(images), 2 * logits, rtol=1e-5, atol=1e-5)
  np.testing.assert_allclose(jax.vmap(model)(jnp.stack([images, images]))[1], logits, rtol=1e-5, atol=1e-5)
  gradient = jax.grad(lambda x: model(x)[:, 0].sum())(images)
  step = 1e-2 * np.sign(gradient)
  change = model(images + step)[:, 0].sum() - model(images - step)[:, 0].sum()
  np.testing.assert_allclose(change, 2 * (gradient * step).sum(), rtol=0.02)


@pytest.mark.slow
def test_images_and_parameters_of_several_devices_stay_there():
  model, images = loaded(), tiny.images(8)
  logits = model(images)
  mesh = jax.make_mesh((8,), ('data',), axis_types=(jax.sharding.AxisType.Auto,))
  split = jax.device_put(images, NamedSharding(mesh, P('data')))
  for _ in range(2):  # parameters of one device, then of all
    out = model(split)
    assert len(out.sharding.device_set) == 8
    np.testing.assert_allclose(out, logits, rtol=1e-5, atol=1e-5)
    nnx.update(model.module, jax.device_put(nnx.state(model.module), NamedSharding(mesh, P())))


@pytest.mark.parametrize(
  'duplicate', [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))], ids=['deepcopy', 'pickle']
)
def test_a_copy_of_a_model_that_was_called_has_parameters_of_its_own(duplicate):
  model, images = loaded(), tiny.images()
  logits = model(images)
  other = duplicate(model)
  np.testing.assert_array_equal(other(images), logits)
  other.module.head.bias[...] += 1
  np.testing.assert_allclose(other(images), logits + 1, atol=1e-5)
  np.testing.assert_array_equal(model(images), logits)


@pytest.mark.slow
def test_lists_of_any_length_are_classified_by_few_programs(monkeypatch):
  model = loaded(num_classes=9)
  images = list(np.random.default_rng(0).integers(0, 256, (7, 12, 8, 3), dtype=np.uint8))
  shapes = count_traces(model, monkeypatch)
  best = [model.classify(images[:length]) for length in range(1, 8)]
  assert [shape[0] for shape in shapes] == [1, 2, 4, 8]
  assert [found == best[-1][: len(found)] for found in best] == [True] * 7
  assert best[-1] == [str(number) for number in np.asarray(model(model.preprocess(images))).argmax(axis=-1)]


@pytest.mark.parametrize(
  ('change', 'said'),
  [
    (lambda x: x.transpose(0, 3, 1, 2), r'images of 3 channels.*give images\.transpose\(0, 2, 3, 1\)'),
    (lambda x: x[..., :1], r'images of 3 channels.*\(3, 12, 8, 1\); write model\(model\.preprocess'),
    (lambda x: x[:0], 'no pixels.*give at least one image'),
    (lambda x: x.astype(object), r'and this is object \(3, 12, 8, 3\)'),
  ],
  ids=['channels_first', 'gray', 'none', 'object'],
)
def test_arrays_that_no_preprocess_makes_are_refused_in_one_sentence(change, said):
  with pytest.raises(UserError, match=said) as error:
    loaded()(change(np.asarray(tiny.images())))
  assert '\n' not in str(error.value)


@pytest.mark.slow
def test_tensors_of_pytorch_are_images_too():
  torch = pytest.importorskip('torch')
  model, images = loaded(), np.array(tiny.images())
  np.testing.assert_array_equal(model(torch.tensor(images)), model(images))
  with pytest.raises(UserError, match=r'and this is torch\.uint8 \(1, 12, 8, 3\)'):
    model(torch.zeros(1, 12, 8, 3, dtype=torch.uint8))
  with pytest.raises(UserError, match=r'and this is torch\.float32'):
    model(torch.tensor(images, requires_grad=True))


@pytest.mark.slow
def test_feature_maps_have_the_sizes_of_their_stages_and_the_order_of_features():
  images = jnp.asarray(np.random.default_rng(0).normal(size=(2, 32, 64, 3)), jnp.float32)
  model = loaded(tiny.resnet(), image_size=(32, 64))
  maps = model.feature_maps(images, [0, 1])
  assert [z.shape for z in maps] == [(2, 8, 16, 128), (2, 4, 8, 256)]
  np.testing.assert_array_equal(maps[1].reshape(2, 32, 256), model.features(images, 1))
  with pytest.raises(UserError, match=r'norm is True, and .* has no norm for the features of its blocks'):
    model.feature_maps(images, 0, norm=True)
  mixer = loaded(tiny.mixer(), image_size=(32, 64))
  np.testing.assert_array_equal(mixer.feature_maps(images)[1, 2, 3], mixer.features(images)[1, 2 * 16 + 3])


def test_norm_of_every_block_is_refused_where_the_norm_is_that_of_the_pooled_vector():
  model = loaded(tiny.options(final_norm='pooled', pool='gap'))
  with pytest.raises(UserError, match='no norm of its tokens'):
    model.feature_maps(tiny.images(), 0, norm=True)


@pytest.mark.parametrize('layer', [2, -2, '1', 1.0])
def test_block_that_is_not_there_is_refused(layer):
  with pytest.raises(UserError, match='choose a block from 0 to 1, or None'):
    loaded().features(tiny.images(), layer)


@pytest.mark.parametrize(
  ('config', 'how'),
  [
    (tiny.options(), 'map'),
    (tiny.options(pool='gap', class_token=False), 'token'),
    (tiny.mixer(), 'token'),
  ],
)
def test_pooling_that_the_model_cannot_do_is_refused(config, how):
  """Not another one in its place: without a class token the first token is a patch."""
  model = loaded(config)
  tokens = model.features(tiny.images())
  with pytest.raises(UserError, match=f"how is '{how}', and .* pools by"):
    model.pool(tokens, how)
  with pytest.raises(ValueError, match='pools by'):
    model.module.pool(tokens, how)
  with pytest.raises(UserError, match=r'and this is float32 \(\d, 32\)'):
    model.pool(tokens[0])


@pytest.mark.parametrize(
  ('config', 'classes', 'said'),
  [(tiny.options(), 0, 'has no head'), (tiny.options(pool='none'), 5, "logits of every token.*pool='gap'")],
)
def test_model_without_logits_of_an_image_does_not_classify(config, classes, said):
  with pytest.raises(UserError, match=said):
    loaded(config, num_classes=classes).classify([np.zeros((9, 9, 3), np.uint8)])
