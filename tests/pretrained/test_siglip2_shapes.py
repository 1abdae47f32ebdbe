"""SigLIP 2's checkpoints of images of any shape (NaFlex): photographs to features, as transformers does it."""

import numpy as np
import pytest
from PIL import Image
from transformers_peers import TEXT, VISION, randomise, torch, transformers

import vit_jax
from vit_jax.foundation.naflex import Patches

pytestmark = pytest.mark.slow  # it compares with another framework

SIZES = {name: size for name, size in VISION.items() if name != 'image_size'} | {'num_patches': 25}
MOST = 40  # patches


def photographs() -> list[Image.Image]:
  """Wide, high, square, larger and smaller than the model's images."""
  rng = np.random.default_rng(0)
  sizes = [(31, 77), (200, 90), (40, 40), (5, 300), (9, 4), (700, 1100)]
  return [Image.fromarray(rng.integers(0, 256, (*size, 3), np.uint8)) for size in sizes]


def processor():
  siglip2 = pytest.importorskip('transformers.models.siglip2.image_processing_pil_siglip2')
  return siglip2.Siglip2ImageProcessorPil(patch_size=8, max_num_patches=MOST)


def test_photographs_of_any_shape_give_what_transformers_gives(tmp_path):
  peer = randomise(transformers.Siglip2VisionModel(transformers.Siglip2VisionConfig(**SIZES)), 0)
  peer.save_pretrained(tmp_path)
  processor().save_pretrained(tmp_path)
  theirs, model = processor()(images=photographs(), return_tensors='pt'), vit_jax.load(tmp_path)
  real = theirs['pixel_attention_mask'].numpy().astype(bool)
  ours = model.preprocess(photographs())
  assert isinstance(ours, Patches) and np.array_equal(ours.grids, theirs['spatial_shapes'])
  pixels = ours.pixels.reshape(*real.shape, -1)
  np.testing.assert_allclose(pixels[real], theirs['pixel_values'].numpy()[real], atol=1e-6)  # of -1 to 1
  with torch.no_grad():
    output = peer(**theirs)
  np.testing.assert_allclose(model.embeddings(ours), output.pooler_output, atol=1e-5)
  np.testing.assert_allclose(
    np.asarray(model.features(ours))[real], output.last_hidden_state.numpy()[real], atol=1e-5
  )
  # Of another number of patches, and as squares.
  other = transformers.Siglip2VisionModel.from_pretrained(tmp_path)
  more = vit_jax.load(tmp_path, max_patches=64)
  theirs = processor()(images=photographs(), return_tensors='pt', max_num_patches=64)
  with torch.no_grad():
    expected = other(**theirs).pooler_output
  np.testing.assert_allclose(more.embeddings(more.preprocess(photographs())), expected, atol=1e-5)
  assert vit_jax.load(tmp_path, image_size=40).preprocess(photographs()).shape == (6, 40, 40, 3)


def test_a_classifier_averages_patches_without_padding(tmp_path):
  config = transformers.Siglip2Config(text_config=TEXT, vision_config=SIZES, num_labels=3)
  peer = randomise(transformers.Siglip2ForImageClassification(config), 0)
  peer.save_pretrained(tmp_path)
  processor().save_pretrained(tmp_path)
  model = vit_jax.load(tmp_path)
  with torch.no_grad():
    expected = peer(**processor()(images=photographs(), return_tensors='pt')).logits
  logits = model(model.preprocess(photographs()))
  np.testing.assert_allclose(logits, expected, atol=1e-5)
  assert model.classify(photographs()[:3]) == [str(number) for number in expected.argmax(dim=1).tolist()[:3]]
