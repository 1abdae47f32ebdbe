"""EfficientNets of transformers against transformers itself, and the names of timm's against timm."""

import dataclasses
import json

import jax
import numpy as np
import pytest
import tiny
from flax import nnx
from released_files import read, write_run
from transformers_peers import (
  images_of,
  make_images,
  make_ours,
  tensors_in,
  to_torch,
  torch,
  transformers,
)

import vit_jax
from vit_jax import config
from vit_jax.foundation.errors import UserError
from vit_jax.models.base import Architecture
from vit_jax.models.efficientnet_families import rounded_channels
from vit_jax.pretrained import average, transformers_efficientnet
from vit_jax.pretrained.timm_efficientnet import TimmEfficientNetFormat
from vit_jax.pretrained.transformers_efficientnet import EfficientNetFormat

pytestmark = pytest.mark.slow  # it compares with another framework

torch.set_num_threads(1)

TINY = 0.5, 0.3  # the multipliers: eight blocks, of which the fifth and the sixth are one stage
# transformers pads evenly in these blocks, for images of 40 and of 64 pixels.
PADDING = {40: [3, 5], 64: []}


def make_peer(width: float, depth: float, cls: str = 'EfficientNetForImageClassification', **options):
  """One of random parameters and random running statistics, whose activations neither vanish nor explode."""
  options = {'image_size': 64, 'num_labels': 5} | options
  config = transformers.EfficientNetConfig(
    width_coefficient=width,
    depth_coefficient=depth,
    hidden_dim=rounded_channels(1280, width),
    depthwise_padding=PADDING[options['image_size']],
    **options,
  )
  torch.manual_seed(0)
  peer = getattr(transformers, cls)(config).eval()
  with torch.no_grad():
    for name, tensor in peer.state_dict().items():
      if name.endswith('num_batches_tracked'):
        tensor.fill_(7)
        continue
      noise = torch.randn(tensor.shape)
      if tensor.ndim > 1:
        tensor.copy_(noise * (2 / tensor[0].numel()) ** 0.5)
      elif name.endswith('running_var'):
        tensor.copy_(noise.abs() + 0.5)
      else:
        norm_scale = '_conv' not in name and name.endswith('weight')
        tensor.copy_(0.2 * noise + norm_scale)
  return peer


def assert_equals(folder, peer, size: tuple[int, int], block: int | None) -> None:
  """The number of parameters, the cells after a block and the logits of a folder are those of transformers."""
  model = vit_jax.load(folder).module
  count = sum(leaf.size for leaf in jax.tree.leaves(nnx.state(model, nnx.Param)))
  assert count == sum(parameter.numel() for parameter in peer.parameters())
  images = images_of(size)
  with torch.no_grad():
    theirs = peer(to_torch(images), output_hidden_states=True)
  graphdef, state = nnx.split(model)

  def found(state, x):
    model = nnx.merge(graphdef, state)
    return None if block is None else model.features(x, block), model(x)

  with jax.default_matmul_precision('highest'):
    cells, logits = jax.jit(found)(state, images)
  if block is not None:
    other = theirs.hidden_states[1 + block].permute(0, 2, 3, 1).flatten(1, 2)
    np.testing.assert_allclose(cells, other, atol=1e-4 * float(other.abs().max()))
  assert float(theirs.logits.std()) > 0.1
  np.testing.assert_allclose(logits, theirs.logits, atol=1e-4)


@pytest.mark.nightly(but='tiny')
@pytest.mark.parametrize(
  ('multipliers', 'image_size'),
  [
    pytest.param(TINY, 40, id='tiny, padded evenly'),
    pytest.param((1.0, 1.0), 64, id='B0'),
    pytest.param((1.0, 1.1), 64, id='B1'),
    pytest.param((1.1, 1.2), 64, id='B2'),
    pytest.param((1.2, 1.4), 64, id='B3'),
    pytest.param((4.3, 0.3), 64, id="L2's widths"),
    pytest.param((0.5, 5.3), 64, id="L2's depths"),
  ],
)
def test_logits_of_random_parameters_and_statistics_are_transformers(multipliers, image_size, tmp_path):
  peer = make_peer(*multipliers, image_size=image_size)
  peer.save_pretrained(tmp_path)
  assert_equals(tmp_path, peer, (image_size, image_size), 5 if multipliers == TINY else None)


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  """A tiny EfficientNet of transformers, with its image processor."""
  path = tmp_path_factory.mktemp('efficientnet')
  peer = make_peer(*TINY, id2label=dict(enumerate('abcde')))
  peer.save_pretrained(path)
  processor = transformers.EfficientNetImageProcessorPil(
    size={'height': 64, 'width': 64}, image_mean=[0.485, 0.456, 0.406], image_std=[0.478, 0.473, 0.474]
  )
  processor.save_pretrained(path)
  return path


def assert_same_tensors(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
  """All bits, but for the counts of steps, which must only be there."""
  assert found.keys() == expected.keys()
  for name, tensor in expected.items():
    assert found[name].dtype == tensor.dtype
    if not name.endswith('num_batches_tracked'):
      np.testing.assert_array_equal(found[name], tensor, err_msg=name, strict=True)


@pytest.mark.nightly  # checksums are compiled for each of sixty shapes
def test_every_bit_survives_a_run_and_the_way_back(folder, tmp_path):
  first = read(folder)
  assert first.notes == () and first.class_names == tuple('abcde')
  write_run(first, tmp_path / 'run')
  second = read(tmp_path / 'run')
  resolved = first.architecture.model.resolved()  # a run's config names the family
  assert second.architecture == dataclasses.replace(first.architecture, model=resolved)
  assert EfficientNetFormat().write(second, tmp_path / 'copy') == ()
  assert_same_tensors(tensors_in(tmp_path / 'copy'), tensors_in(folder))
  third = read(tmp_path / 'copy')
  assert third.architecture == first.architecture and third.class_names == first.class_names
  np.testing.assert_allclose(third.preprocess.std, first.preprocess.std, rtol=1e-12)


def test_transformers_loads_what_we_write(folder, tmp_path):
  EfficientNetFormat().write(read(folder), tmp_path)
  cls = transformers.EfficientNetForImageClassification
  peer, said = cls.from_pretrained(tmp_path, output_loading_info=True)
  assert not said['missing_keys'] and not said['unexpected_keys']
  images = to_torch(images_of((64, 64)))
  with torch.no_grad():
    assert torch.equal(peer(images).logits, cls.from_pretrained(folder)(images).logits)
  assert peer.config.id2label == dict(enumerate('abcde'))


def test_a_mean_of_checkpoints_says_that_its_running_statistics_are_of_others(folder):
  assert 'the mean of the running statistics' in average.of(read(folder), [read(folder)]).notes[-1]


def test_model_without_head_is_read_and_written(tmp_path):
  make_peer(*TINY, cls='EfficientNetModel').save_pretrained(tmp_path / 'theirs')
  pretrained = read(tmp_path / 'theirs')
  assert pretrained.architecture.num_classes == 0
  EfficientNetFormat().write(pretrained, tmp_path / 'ours')
  assert_same_tensors(tensors_in(tmp_path / 'ours'), tensors_in(tmp_path / 'theirs'))


def test_b0_has_timms_names_there_and_the_same_bits_back(tmp_path):
  timm = pytest.importorskip('timm', reason='needs timm and torchvision', exc_type=ImportError)
  make_peer(1.0, 1.0).save_pretrained(tmp_path / 'theirs')
  pretrained = read(tmp_path / 'theirs')
  assert TimmEfficientNetFormat().write(pretrained, tmp_path / 'timm') == ()
  found = {name: tensor.shape for name, tensor in tensors_in(tmp_path / 'timm').items()}
  peer = timm.create_model('tf_efficientnet_b0', num_classes=5)
  assert found == {name: tuple(tensor.shape) for name, tensor in peer.state_dict().items()}
  said = json.loads((tmp_path / 'timm' / 'config.json').read_text())
  assert said['architecture'] == 'tf_efficientnet_b0'
  back = read(tmp_path / 'timm')
  # Dropout has no place there: the rates of B0 are taken, where transformers' config says 0.5.
  assert back.architecture == Architecture(config.EfficientNetConfig('B0').resolved(), (64, 64), 3, 5)
  EfficientNetFormat().write(back, tmp_path / 'copy')
  assert_same_tensors(tensors_in(tmp_path / 'copy'), tensors_in(tmp_path / 'theirs'))


@pytest.mark.parametrize('name', ['tf_efficientnet_lite0', 'tf_efficientnet_es', 'tf_efficientnetv2_b0'])
def test_timms_other_families_have_its_logits_and_are_written_for_it(name, tmp_path):
  timm = pytest.importorskip('timm', reason='needs timm and torchvision', exc_type=ImportError)
  hub = pytest.importorskip('timm.models._hub', reason='needs timm and torchvision')
  torch.manual_seed(0)
  peer = timm.create_model(name, num_classes=5).eval()
  for key, buffer in peer.named_buffers():
    if key.endswith(('running_mean', 'running_var')):
      buffer.uniform_(0.5, 1.5)
  peer.pretrained_cfg['input_size'] = (3, 64, 64)
  hub.save_for_hf(peer, tmp_path / 'theirs', safe_serialization=True)
  pretrained = read(tmp_path / 'theirs')
  images = make_images(pretrained)
  with torch.no_grad():
    theirs = peer(to_torch(images)).numpy()
  ours = tiny.apply(*nnx.split(make_ours(pretrained)), images)
  assert abs(ours - theirs).max() < 1e-4 * abs(theirs).max()
  TimmEfficientNetFormat().write(pretrained, tmp_path / 'ours')
  again = timm.create_model(f'local-dir:{tmp_path / "ours"}', pretrained=True).eval()
  with torch.no_grad():
    np.testing.assert_array_equal(again(to_torch(images)), theirs)


@pytest.mark.parametrize(
  ('said', 'message'),
  [
    ({'architecture': 'tf_efficientnet_cc_b0_4e'}, 'cc_b0_4e, which vit_jax does not have; .*_b0 to b8, l2'),
    (
      {'architecture': 'tf_efficientnet_l2_ns_475'},
      'calls for a model of 88 blocks, and there are 1 tensors',
    ),
    (
      {'architecture': 'tf_efficientnet_b0', 'model_args': {'act_layer': 'relu'}},
      'its model_args set act_layer',
    ),
    ({'architecture': 'resnetv2_50x1_bit', 'global_pool': 'max'}, "global_pool 'max', and vit_jax"),
    ({'architecture': 'mixer_s16_224', 'model_args': {'global_pool': ''}}, "global_pool '', and vit_jax"),
  ],
)
def test_timms_models_that_we_do_not_have_are_refused(said, message, tmp_path):
  from safetensors.numpy import save_file

  save_file({'classifier.bias': np.zeros(5, np.float32)}, tmp_path / 'model.safetensors')
  (tmp_path / 'config.json').write_text(json.dumps(said))
  with pytest.raises(UserError, match=message):
    read(tmp_path)


@pytest.mark.parametrize(
  ('changes', 'message'),
  [
    ({'hidden_act': 'relu'}, "hidden_act 'relu', and vit_jax has EfficientNets with 'swish' only"),
    ({'hidden_dim': 1280}, 'hidden_dim 1280, and vit_jax has 640 at this width_coefficient'),
    ({'width_coefficient': 0.25, 'hidden_dim': 320}, 'adds the input in the first block'),
  ],
)
def test_configs_of_other_models_are_refused(changes, message, folder, tmp_path):
  said = json.loads((folder / 'config.json').read_text()) | changes
  (tmp_path / 'config.json').write_text(json.dumps(said))
  (tmp_path / 'model.safetensors').symlink_to(folder / 'model.safetensors')
  with pytest.raises(UserError, match=message):
    read(tmp_path)


def test_models_that_a_kind_cannot_hold_are_refused_with_the_reason(folder):
  pretrained = read(folder)
  other = dataclasses.replace(pretrained, architecture=Architecture(config.ResNetConfig(), (64, 64), 3, 5))
  assert EfficientNetFormat().unfit(other) == 'it is for EfficientNets, and this is a ResNet'
  assert TimmEfficientNetFormat().unfit(pretrained).startswith('it has the published sizes only')
  narrow = config.EfficientNetConfig('custom', 0.25, 0.3)
  other = dataclasses.replace(pretrained, architecture=Architecture(narrow, (64, 64), 3, 5))
  assert EfficientNetFormat().unfit(other) == 'the first block of a stage never adds its input there'


def test_another_padding_than_the_published_codes_is_noted(folder, tmp_path):
  """475 pixels, L2's, are odd, for which transformers has no padding of TensorFlow's."""
  pretrained = read(folder)
  architecture = dataclasses.replace(pretrained.architecture, image_size=(475, 475))
  (note,) = EfficientNetFormat().write(dataclasses.replace(pretrained, architecture=architecture), tmp_path)
  assert 'Images of 475 x 475 are padded as by the published code' in note
  said = json.loads((folder / 'config.json').read_text()) | {'depthwise_padding': [3]}
  (tmp_path / 'config.json').write_text(json.dumps(said))
  assert 'Images of 64 x 64 are padded' in ' '.join(read(tmp_path).notes)


# The published ones: google/efficientnet-b1 to b7 as far as they are known to pad evenly anywhere.
@pytest.mark.parametrize(
  ('variant', 'image_size', 'blocks'),
  [('B0', 224, []), ('B1', 240, [16]), ('B3', 300, [5, 18]), ('B7', 600, [18])],
)
def test_even_padding_is_where_the_published_configs_say(variant, image_size, blocks):
  model = config.EfficientNetConfig(variant)
  assert transformers_efficientnet.padded_evenly(model, (image_size, image_size)) == blocks
