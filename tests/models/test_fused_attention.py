"""Attention kernels: those of TPUs are interpreted on the CPU; for cuDNN's, its call in the program is checked."""

import dataclasses
import functools
import re
import types

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
from attention_reference import attention_in_float64
from flax import nnx
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from vit_jax import config as c
from vit_jax.adapters import lora
from vit_jax.adapters.lora import AdapterConfig
from vit_jax.foundation import pytrees
from vit_jax.foundation.errors import UserError
from vit_jax.models.base import Architecture
from vit_jax.models.parts import fused_attention, short_attention
from vit_jax.models.parts.attention import Attention, How
from vit_jax.parallel import mesh as mesh_lib
from vit_jax.training import auto
from vit_jax.training.run import Dataset, Run


def _sharding(devices=None, **axes):
  """The sharding of the residual stream on a mesh with these axes."""
  return mesh_lib.batch_sharding(mesh_lib.make_mesh(c.MeshConfig(**axes), devices))


def _random(shape, dtype=jnp.float32):
  rng = np.random.default_rng(3)
  return [jnp.asarray(2 * rng.standard_normal(shape), dtype) for _ in range(4)]


def _with_gradients(sharding, kernel='splash', interpret=True):
  """(query, key, value, gradient of the result) -> (result, gradients), compiled."""

  def run(query, key, value, grad):
    def attend(*args):
      return fused_attention.attend(kernel, *args, sharding, interpret=interpret)

    out, backward = jax.vjp(attend, query, key, value)
    return out, *backward(grad)

  return jax.jit(run)


# One block with padding, a whole number of lanes, several blocks (of 384) with padding; the heads of H/14,
# B/16, and of a small model.
@pytest.mark.slow
@pytest.mark.parametrize(
  'tokens, head_size, axes',
  [
    (130, 80, {'data': 4, 'tensor': 2}),
    (128, 64, {'data': 2, 'fsdp': 2, 'tensor': 2}),
    (5, 16, {'data': 8}),
    (300, 24, {'data': 4, 'tensor': 2}),
  ],
)
def test_splash_equals_attention_in_float64(tokens, head_size, axes, monkeypatch):
  monkeypatch.setattr(fused_attention, '_LARGEST_BLOCK', 256)
  inputs = _random((8, tokens, 2, head_size))
  with jax.default_matmul_precision('highest'):
    found = _with_gradients(_sharding(**axes))(*inputs)
  for ours, expected in zip(found, attention_in_float64(*inputs), strict=True):
    np.testing.assert_allclose(ours, expected, atol=1e-5 * abs(expected).max())


@pytest.mark.slow
def test_splash_in_bfloat16_is_close_to_attention_in_float64():
  inputs = _random((8, 70, 2, 64), jnp.bfloat16)
  for ours, expected in zip(
    _with_gradients(_sharding())(*inputs), attention_in_float64(*inputs), strict=True
  ):
    chex.assert_type(ours, jnp.bfloat16)
    np.testing.assert_allclose(ours.astype(np.float32), expected, atol=0.03 * abs(expected).max())


# Rows of 128 numbers that heads fill or do not, all heads at once or some, and more tokens than a row has numbers;
# nothing is turned by its place, all examples alike, or each in its own way.
@pytest.mark.parametrize(
  'tokens, heads, head_size, axes, turns_of',
  [
    (130, 16, 80, {'data': 4, 'tensor': 2}, None),
    (197, 4, 64, {'data': 2, 'fsdp': 2, 'tensor': 2}, (8,)),
    (5, 3, 16, {'data': 8}, None),
    (5, 3, 16, {'data': 8}, ()),
  ],
)
def test_the_kernel_of_short_sequences_equals_attention_in_float64(tokens, heads, head_size, axes, turns_of):
  sharding = _sharding(**axes)
  inputs = _random((8, tokens, heads, head_size))
  biases = jnp.asarray(np.random.default_rng(4).standard_normal((3, heads * head_size)), jnp.float32)

  half, turns, angles = head_size // 2, (), np.zeros(1)
  if turns_of is not None:
    angles = np.random.default_rng(5).uniform(-3, 3, (*turns_of, tokens, 1, half))
    both = [np.cos(angles)] * 2, [-np.sin(angles), np.sin(angles)]
    turns = tuple(jnp.asarray(np.concatenate(waves, axis=-1), jnp.float32) for waves in both)

  def turned(x, sign):
    pairs = (np.float64(x[..., :half]) + 1j * np.float64(x[..., half:])) * np.exp(sign * 1j * angles)
    return np.concatenate([pairs.real, pairs.imag], axis=-1)

  def run(query, key, value, grad):
    def attend(rows, biases):
      return fused_attention.attend_rows(rows, biases, turns, head_size, sharding, interpret=True)

    *rows, grad = (x.reshape(8, tokens, -1) for x in (query, key, value, grad))
    out, backward = jax.vjp(attend, tuple(rows), biases)
    gradients, dbiases = backward(grad)
    return out, *gradients, dbiases

  with jax.default_matmul_precision('highest'):
    *found, dbiases = jax.jit(run)(*inputs)
  biased = [x + bias.reshape(heads, head_size) for x, bias in zip(inputs[:3], biases, strict=True)]
  query, key, value = biased
  out, dq, dk, dv = attention_in_float64(turned(query, 1), turned(key, 1), value, inputs[3])
  wanted = out, turned(dq, -1), turned(dk, -1), dv
  for ours, expected in zip(found, wanted, strict=True):
    np.testing.assert_allclose(ours, expected.reshape(ours.shape), atol=1e-5 * abs(expected).max())
  sums = np.stack([x.sum(axis=(0, 1)).reshape(-1) for x in wanted[1:]])
  np.testing.assert_allclose(dbiases, sums, atol=1e-5 * abs(sums).max())


@pytest.mark.parametrize('wide', [False, True])
def test_the_kernel_of_short_sequences_in_bfloat16_is_close_to_attention_in_float64(wide, monkeypatch):
  monkeypatch.setattr(short_attention, 'is_wide', lambda _: wide)
  inputs = _random((8, 70, 2, 64), jnp.bfloat16)
  found = _with_gradients(_sharding(), 'short')(*inputs)
  for ours, expected in zip(found, attention_in_float64(*inputs), strict=True):
    chex.assert_type(ours, jnp.bfloat16)
    np.testing.assert_allclose(ours.astype(np.float32), expected, atol=0.03 * abs(expected).max())


def test_keys_and_values_are_of_the_tokens_that_are_attended_to(monkeypatch):
  """Also where these are as many as those that attend, and a kernel takes the projections as matrices."""
  attend_rows = fused_attention.attend_rows
  monkeypatch.setattr(fused_attention, 'attend_rows', lambda *args, **_: attend_rows(*args, interpret=True))
  x, memory = (
    jnp.asarray(array) for array in np.random.default_rng(5).standard_normal((2, 8, 6, 12), np.float32)
  )
  found = []
  for kernel in ('xla', 'short'):
    monkeypatch.setattr(fused_attention, 'choose', lambda *_, kernel=kernel, **__: kernel)
    attention = Attention(12, 3, how=How('auto', sharding=_sharding()), rngs=nnx.Rngs(0))
    found.append(attention(x, memory))
  np.testing.assert_allclose(*found, atol=1e-5)
  assert abs(found[0] - attention(x, x)).max() > 0.1


@pytest.mark.parametrize(
  'sizes, here, on_v3',
  [
    ((50, 12, 64), 6, 6),  # B/32
    ((197, 16, 64), 8, 8),  # L/16
    ((197, 3, 64), 3, 3),  # Ti/16, all of them
    ((257, 16, 80), 8, 8),  # H/14
    ((257, 16, 104), 16, None),  # G/14: fewer do not fill rows of 128 numbers
    ((577, 12, 64), 6, 2),
    ((1025, 12, 64), 2, None),
    ((729, 16, 72), None, None),
    ((4097, 12, 64), None, None),
  ],
)
def test_short_sequences_are_those_of_which_some_heads_fit_into_memory(sizes, here, on_v3):
  assert short_attention.heads_at_once(*sizes, wide=False) == here
  assert short_attention.heads_at_once(*sizes, wide=True) == on_v3


def test_blocks_are_few_and_pad_little():
  assert fused_attention.blocks(197) == (256, 256)
  assert fused_attention.blocks(577) == (640, 640)
  assert fused_attention.blocks(1025) == (640, 1280)
  for tokens in range(1, 5000, 7):
    block, padded = fused_attention.blocks(tokens)
    assert block % 128 == padded % block == 0 and block <= 1024
    assert tokens <= padded < tokens + 128 * (padded // block)


@pytest.mark.slow
def test_a_model_computes_the_same_with_the_kernel(monkeypatch):
  """The same logits and gradients; the weights of `attention` still come from XLA."""
  sharding = _sharding(data=4, tensor=2)
  attend = fused_attention.attend
  used = []

  def interpreted(kernel, *args):
    used.append(kernel)
    return attend(kernel, *args, interpret=True)

  monkeypatch.setattr(fused_attention, 'attend', interpreted)
  results = {}
  for kernel in ('xla', 'splash'):
    monkeypatch.setattr(fused_attention, '_kernel_of', lambda _, kernel=kernel: kernel)
    graphdef, params = tiny.build(
      tiny.options(attention=kernel, remat='dots', pool='map'), activation_sharding=sharding
    )

    def loss(params, x, graphdef=graphdef):
      model = nnx.merge(graphdef, params)
      return jnp.square(model(x)).sum(), model.attention(x)

    with jax.default_matmul_precision('highest'):
      step = jax.jit(jax.value_and_grad(loss, has_aux=True))
      results[kernel] = step(params, tiny.images(8))
  assert set(used) == {'splash'}
  chex.assert_trees_all_close(*results.values(), rtol=1e-4, atol=1e-4)


# Projections as matrices; turned in the kernel, and before it; a norm between them and the kernel; adapters of the
# projections, and a norm behind it.
@pytest.mark.slow
@pytest.mark.parametrize(
  'options, adapted',
  [
    ({'remat': 'dots'}, False),
    ({'position': 'rotary'}, False),
    ({'position': 'rotary_mixed'}, False),
    ({'qk_norm': True}, False),
    ({'attention_sub_norm': True}, True),
  ],
)
def test_a_model_computes_the_same_with_the_kernel_of_short_sequences(options, adapted, monkeypatch):
  """Logits and gradients, as with XLA's attention, on devices that split examples and heads."""
  adapter = AdapterConfig(rank=2, targets='attention/.*kernel$', dora=True)
  sharding = _sharding(data=4, tensor=2)
  graphdef, params = tiny.build(tiny.options(**options), activation_sharding=sharding)
  weights = {}
  if adapted:
    kernels = lora.targets(nnx.merge(graphdef, params), adapter)
    weights = pytrees.flatten(lora.initial(kernels, params, adapter, jax.random.key(0)))
    weights = pytrees.unflatten({path: leaf + 0.1 for path, leaf in weights.items()})
  used = []
  attend_rows = fused_attention.attend_rows
  monkeypatch.setattr(
    fused_attention,
    'attend_rows',
    lambda *args, **_: used.append('short') or attend_rows(*args, interpret=True),
  )

  def loss(params, weights, x):
    model = nnx.merge(graphdef, params)
    if adapted:
      lora.attach(model, weights, adapter, None)
    return jnp.square(model(x)).sum()

  results = []
  for chosen in ('xla', 'short'):
    monkeypatch.setattr(fused_attention, 'choose', lambda *_, chosen=chosen, **__: chosen)
    with jax.default_matmul_precision('highest'):
      step = jax.jit(jax.value_and_grad(lambda *args: loss(*args), argnums=(0, 1)))
      results.append(step(params, weights, tiny.images(8)))
    assert bool(used) == (chosen == 'short')
  chex.assert_trees_all_close(*results, rtol=1e-4, atol=1e-4)


def _device(platform, capability=None, kind=None):
  """A sharding of the residual stream on one device of a kind."""
  device = types.SimpleNamespace(platform=platform, device_kind=kind or f'a {platform}')
  if capability:
    device.compute_capability = capability
  mesh = types.SimpleNamespace(axis_names=('data', 'tensor'), shape={'tensor': 1})
  return types.SimpleNamespace(mesh=mesh, spec=P(('data',)), device_set=[device])


TPU, GPU, CPU = _device('tpu'), _device('gpu', '9.0'), _device('cpu')


@pytest.mark.parametrize(
  'where, tokens, head_size, dtype, dropout, chosen',
  [
    (TPU, 197, 64, 'bfloat16', 0, 'short'),
    (TPU, 50, 64, 'bfloat16', 0, 'short'),
    (TPU, 2305, 64, 'bfloat16', 0, 'splash'),
    (_device('tpu', kind='TPU v3'), 577, 64, 'bfloat16', 0, 'short'),
    (_device('tpu', kind='TPU v3'), 1025, 64, 'bfloat16', 0, 'xla'),
    (TPU, 577, 64, 'float32', 0, 'xla'),
    (TPU, 577, 64, 'bfloat16', 0.1, 'xla'),
    (GPU, 197, 64, 'bfloat16', 0, 'cudnn'),
    (GPU, 197, 64, 'bfloat16', 0.1, 'xla'),
    (GPU, 197, 64, 'float32', 0, 'xla'),
    (GPU, 197, 30, 'bfloat16', 0, 'xla'),
    (GPU, 197, 192, 'bfloat16', 0, 'xla'),
    (_device('gpu', '7.0'), 197, 64, 'bfloat16', 0, 'xla'),
    (_device('gpu', 'gfx90a'), 197, 64, 'bfloat16', 0, 'xla'),
    (CPU, 1025, 64, 'bfloat16', 0, 'xla'),
    (None, 1025, 64, 'bfloat16', 0, 'xla'),
  ],
)
def test_auto_chooses_the_faster_one(where, tokens, head_size, dtype, dropout, chosen):
  query = jax.ShapeDtypeStruct((2, tokens, 12, head_size), dtype)
  for asked, expected in (('auto', chosen), ('xla', 'xla')):
    assert fused_attention.choose(asked, query, dropout=dropout, sharding=where) == expected


def test_auto_is_xla_where_heads_do_not_divide():
  query = jax.ShapeDtypeStruct((2, 1025, 3, 64), 'bfloat16')
  TPU_2 = _device('tpu')
  TPU_2.mesh.shape = {'tensor': 2}
  assert fused_attention.choose('auto', query, sharding=TPU_2) == 'xla'
  with pytest.raises(UserError, match=r'3 heads do not divide over config\.mesh\.tensor 2'):
    fused_attention.check('splash', 3, 64, TPU_2)


@pytest.mark.parametrize(
  'asked, head_size, where, message',
  [
    ('splash', 64, CPU, "'splash', which is for TPUs, v4 or newer, and this is a cpu"),
    ('cudnn', 60, GPU, 'heads are multiples of 8 up to 128, and not 60'),
    ('splash', 64, None, 'without a mesh'),
  ],
)
def test_a_kernel_that_devices_or_heads_do_not_have_is_refused(asked, head_size, where, message):
  with pytest.raises(UserError, match=message):
    fused_attention.check(asked, 12, head_size, where)


@pytest.mark.parametrize(('kernel', 'remat'), [('cudnn', 'none'), ('splash', 'dots')])
def test_shapes_and_memory_need_no_device_that_has_the_kernel(kernel, remat):
  """What is known of a network before it is on devices is the same for every kernel."""
  known = []
  for attention in ('auto', kernel):
    model = tiny.options(attention=attention, dtype='bfloat16', remat=remat)
    architecture = Architecture(model, (12, 8), 3, 5)
    known.append((architecture.shapes(), architecture.state_paths(), auto.saved_bytes(architecture)))
  assert known[0] == known[1]


@pytest.mark.parametrize('kernel', ['cudnn', 'splash'])
def test_a_run_has_the_kernel_that_its_config_asks_for(kernel, monkeypatch):
  """On the devices of this process, which are taken for those that have the kernel."""
  config = c.Config(
    total='1 steps',
    batch_size=8,
    model=tiny.options(attention=kernel, dtype='bfloat16'),
    data=c.DataConfig(image_size=(12, 8)),
  )
  asked = Run(config, Dataset(8, num_classes=5))
  with pytest.raises(
    UserError, match=rf"^config\.model\.attention is '{kernel}', which is for .* this is cpu"
  ):
    asked.program.state  # noqa: B018
  monkeypatch.setattr(fused_attention, '_kernel_of', lambda _: kernel)
  used = []
  attend = functools.partial(fused_attention.attend, 'splash', interpret=True)
  monkeypatch.setattr(fused_attention, 'attend', lambda name, *args: used.append(name) or attend(*args))
  program = Run(config, Dataset(8, num_classes=5)).program
  program.step.trace(program.state, program.batch)
  assert set(used) == {kernel}


@pytest.mark.slow
@pytest.mark.parametrize(
  'kernel, topology_name, names',
  [
    ('splash', 'v5e:2x2', {'splash_mha_fwd', 'splash_mha_dq', 'splash_mha_dkv'}),
    ('short', 'v5e:2x2', {'short_attention_forward', 'short_attention_backward'}),
    ('short', 'v3:2x1', {'short_attention_forward', 'short_attention_backward'}),
  ],
)
def test_a_tpu_compiles_a_kernel_for_the_part_of_each_device(kernel, topology_name, names):
  """And a plan knows how long it takes: no less than its products at the peak, and no more than the same for 20."""
  pytest.importorskip('libtpu')
  from vit_jax.parallel import hardware
  from vit_jax.plan import hlo, timing, topology

  machine = topology.describe(topology_name)
  sharding = _sharding(machine.devices, data=2, tensor=2)
  parts = NamedSharding(sharding.mesh, P(*sharding.spec, None, 'tensor'))
  arrays = [jax.ShapeDtypeStruct((4, 577, 4, 64), jnp.bfloat16, sharding=parts)] * 4
  _, text = hlo.compile_and_print(_with_gradients(sharding, kernel, interpret=False).lower(*arrays))
  module = hlo.parse(text)
  calls = [i for lines in module.computations.values() for i in lines if 'tpu_custom_call' in i.attributes]
  assert {re.match('splash_mha_[a-z]+|short_attention_[a-z]+', i.name)[0] for i in calls} == names
  assert 'all-gather' not in text and 'all-to-all' not in text
  known = hardware.of(machine.kind)
  seconds = sum(i.cycles for i in calls) / known.clock
  product = 2 * 2 * 2 * 577 * 577 * 64 / known.peak_flops
  assert 7 * product < seconds < 20 * 7 * product
  assert timing.estimate(module, list(machine.devices), known).unknown == 0


@pytest.mark.parametrize(
  'changes, message',
  [
    ({'attention': 'flash'}, r"choose one of .*'splash'"),
    ({'attention': 'splash', 'attention_dropout': 0.1}, r'attention_dropout is 0\.1'),
    ({'attention': 'cudnn'}, "dtype is 'float32'"),
  ],
)
def test_options_that_no_kernel_has_are_refused(changes, message):
  config = c.Config(model=dataclasses.replace(c.ViTConfig(), **changes))
  with pytest.raises(UserError, match=message):
    c.from_config_dict(c.as_json(config))


def test_cudnn_is_called_forwards_and_backwards(monkeypatch):
  """Each device calls it for its own part, padded to an even number of tokens."""
  from jax._src.cudnn import fused_attention_stablehlo

  monkeypatch.setattr(fused_attention_stablehlo, 'check_cudnn_version', lambda: 91000)  # none is here
  run = _with_gradients(_sharding(data=4, tensor=2), 'cudnn', interpret=False)
  arrays = [jax.ShapeDtypeStruct((8, 197, 4, 64), jnp.bfloat16)] * 4
  text = run.trace(*arrays).lower(lowering_platforms=('cuda',)).as_text()
  calls = re.findall(r'custom_call @(__cudnn\$fmha\w+).*?: \((tensor<\w+>)', text)
  assert calls == [
    ('__cudnn$fmhaSoftmax', 'tensor<2x198x2x64xbf16>'),
    ('__cudnn$fmhaSoftmaxBackward', 'tensor<2x198x2x64xbf16>'),
  ]
