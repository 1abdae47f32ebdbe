"""The FLOP count against the paper's exaFLOPs, and against the products that the model really computes."""

import dataclasses
import math
import re

import jax
import pytest
import tiny
from flax import nnx

from vit_jax import config as c
from vit_jax.config import ResNetConfig, ViTConfig
from vit_jax.models import flops
from vit_jax.models.base import Architecture
from vit_jax.models.flops import TRAINING
from vit_jax.objectives.self_distillation import SelfDistillationObjective
from vit_jax.training.run import Dataset, Run

# Paper, table 6: exaFLOPs of pre-training on JFT-300M. Ours are within 0.2 % of the rounded figures but
# for B/32: 56.3 (2.3 % more) where they say 55. L/32, with the same 50 tokens, fits.
PAPER = [
  ('B/32', 7, 55, 0.025),
  ('B/16', 7, 224, 0.002),
  ('L/32', 7, 196, 0.002),
  ('L/16', 7, 783, 0.002),
  ('L/16', 14, 1567, 0.002),
  ('H/14', 14, 4262, 0.002),
  # Of ResNets it leaves out the multiplications with padding, with which ours are 3.5 % to 5 % more.
  ('R50x1', 7, 50, 0.05),
  ('R50x2', 7, 199, 0.04),
  ('R101x1', 7, 96, 0.04),
  ('R152x1', 7, 141, 0.045),
  ('R152x2', 7, 563, 0.04),
  ('R200x3', 14, 3306, 0.04),
]


@pytest.mark.parametrize('variant, epochs, exaflops, tolerance', PAPER)
def test_exaflops_are_those_of_the_paper(variant, epochs, exaflops, tolerance):
  model = ViTConfig(variant=variant) if '/' in variant else ResNetConfig(variant=variant)
  forward = Architecture(model, (224, 224), 3, 18_291).forward_flops()
  total = TRAINING * forward * 303e6 * epochs
  assert total == pytest.approx(exaflops * 1e18, rel=tolerance)


@pytest.mark.parametrize(
  'model',
  [
    tiny.options(),
    tiny.options(pre_logits_size=24),
    tiny.options(pool='gap'),
    tiny.options(pool='gap', class_token=True),
    tiny.options(pool='map'),
    tiny.options(pool='none', class_token=True, pre_logits_size=24),
    tiny.options(pool='token_gap', register_tokens=3),
    tiny.options(pool='token_gap', pre_logits_size=24),
    tiny.options(distillation_token=True, register_tokens=2),
    tiny.options(position='relative_query', register_tokens=1),
    tiny.options(pool='gap', axial=True),
    tiny.options(position='relative_query_1d'),
    tiny.options(pool='gap', axial=True, position='relative_query'),
    tiny.options(patch_dropout=0.6, register_tokens=2),
    tiny.options(block='parallel_pairs'),
    tiny.options(block='parallel_pairs', pool='gap', axial=True),
    tiny.options(pool='map_patches', register_tokens=2),
    tiny.mae(),
    tiny.dino(),
    tiny.moco(pool='token_gap'),
    tiny.mixer(tokens_mlp_dim=20),
    tiny.options(stem_blocks=(), stem_width=32, patch=2),
    tiny.options(stem_convolutions=((32, 2), (64, 1)), patch=1),
    tiny.options(stem_blocks=(1, 2, 1), stem_width=32, patch=1),
    tiny.resnet(blocks=(1, 2, 1)),
    tiny.efficientnet(),
  ],
)
def test_the_count_is_that_of_the_products_computed(model):
  convolves = model.first_layer.kernel != 'patch_embedding/kernel'
  image_size = (30, 14) if convolves else (12, 8)
  graphdef, params = tiny.build(model, image_size=image_size, channels=2)
  training = getattr(model, 'patch_dropout', 0) > 0
  x, keys = tiny.images(1, image_size, channels=2), tiny.keys(1) if training else None
  jaxpr = jax.make_jaxpr(lambda params, x: nnx.merge(graphdef, params)(x, keys=keys))(params, x)
  count = 0
  for equation, times in tiny.equations(jaxpr.jaxpr):
    if equation.primitive.name == 'dot_general':
      (contracted, _), _ = equation.params['dimension_numbers']
      length = math.prod(equation.invars[0].aval.shape[axis] for axis in contracted)
      result = equation.outvars[0].aval
      count += 2 * times * length * result.size
    elif equation.primitive.name == 'conv_general_dilated':
      *window, inputs, _ = equation.invars[1].aval.shape  # of the kernel, HWIO
      count += 2 * times * math.prod(window) * inputs * equation.outvars[0].aval.size
  assert Architecture(model, image_size, 2, 5).forward_flops(training=training) == count


def flops_of_a_step(config):
  """The compiler's count and ours, of images of 16 pixels."""
  run = Run(config, Dataset(64, num_classes=200), jax.devices()[:1])
  step = run.program.step.lower(run.program.state, run.program.batch, {}).compile()
  return step.cost_analysis()['flops'], run.step_flops((16, 16))


@pytest.mark.slow
@pytest.mark.parametrize(
  'options',
  [
    {'freeze_blocks': 2},
    {'freeze': ('^(?!head/)',)},
    {'freeze': ('kernel$',)},
    {'freeze': ('^patch', '^blocks')},
  ],
)
def test_frozen_parameters_take_from_a_step_what_the_compiler_counts(options):
  """Beside the step that trains all, which also computes no gradient by the image."""

  def counted(**options):
    config = c.Config(
      total='1 steps',
      batch_size=64,
      model=tiny.options(width=64, mlp_dim=256, depth=4, heads=2, pool='gap', unroll=True),
      data=c.DataConfig(image_size=(16, 16), num_classes=200),
      optimizer=c.OptimizerConfig(name='sgd', **options),
      mesh=c.MeshConfig(data=1),
    )
    return flops_of_a_step(config)

  (whole, said_whole), (part, said_part) = counted(), counted(**options)
  assert said_part / said_whole == pytest.approx(part / whole, rel=0.06)


@pytest.mark.parametrize('size', [(8, 8), (16, 16)])
def test_a_teacher_sees_the_image_and_its_second_crop_whatever_the_local_crops_are(size):
  objective = SelfDistillationObjective(local_crops=3, local_size=size, patch_weight=0.0)
  model = tiny.dino()
  data = c.DataConfig(image_size=(16, 16))
  config = c.Config(total='1 steps', batch_size=2, model=model, objective=objective, data=data, ema=0.9)
  run = Run(dataclasses.replace(config, mesh=c.MeshConfig(data=1)), Dataset(64), jax.devices()[:1])
  one, local = (run.architecture.forward_flops(each) for each in ((16, 16), size))
  assert run.step_flops((16, 16)) == 2 * (3 * (2 * one + 3 * local) + 2 * one)


@pytest.mark.parametrize(
  ('patterns', 'image', 'text'), [(('^(?!text_tower|logit_)',), 1, 3), (('^text_tower',), 3, 1)]
)
def test_a_frozen_tower_takes_its_forward_pass_alone(patterns, image, text):
  """Of LiT the image tower; a trained tower takes three passes but for the gradient by the pixels."""
  model = tiny.two_towers(depth=2, text_depth=2)
  architecture = Architecture(model, (16, 16), 3, 0)
  layers = model.layers(architecture)
  trained = [
    path for path in architecture.shapes() if not any(re.search(pattern, path) for pattern in patterns)
  ]
  products = {True: 0, False: 0}
  for layer in layers:
    products[layer.name.startswith('text_tower')] += layer.multiplications
  pixels = layers[0].multiplications if image == 3 else 0
  assert flops.of_training(layers, trained, 0) == image * products[False] + text * products[True] - pixels


@pytest.mark.slow
def test_scores_of_masked_patches_add_to_a_step_what_the_compiler_counts():
  """The share of the whole step that a self-distillation without them takes."""

  def counted(patch_weight):
    config = c.Config(
      total='1 steps',
      batch_size=16,
      ema=0.9,
      model=tiny.dino(width=64, mlp_dim=256, unroll=True, prototypes=1024, projection_hidden=256),
      objective=SelfDistillationObjective(local_crops=0, patch_weight=patch_weight, koleo_weight=0.0),
      data=c.DataConfig(image_size=(16, 16)),
      optimizer=c.OptimizerConfig(name='sgd'),
      mesh=c.MeshConfig(data=1),
    )
    return flops_of_a_step(config)

  (whole, said_whole), (part, said_part) = counted(1.0), counted(0.0)
  assert said_part / said_whole == pytest.approx(part / whole, rel=0.06)
