"""What `vit_jax export` writes, called by onnxruntime and plain JAX, beside the model that it was made of."""

import collections
import dataclasses
import json
import pathlib
import re
import subprocess
import sys

import commands
import fork_server
import jax
import numpy as np
import onnx
import onnxruntime
import pytest
import tiny
from flax import nnx
from jax import export as jax_export
from PIL import Image
from released_files import path
from safetensors.numpy import load_file

from vit_jax import export
from vit_jax.data.preprocess import Preprocess
from vit_jax.export import (
  check,
  inference,
  int8,
  onnx_functions,
  onnx_graph,
  onnx_images,
  onnx_primitives,
  writing,
)
from vit_jax.export.onnx_graph import Graph, Node, Tensor
from vit_jax.foundation import pytrees
from vit_jax.foundation.errors import UserError
from vit_jax.loaded_model import LoadedModel

DOCS = pathlib.Path(__file__).parents[2] / 'docs/export.md'
CLASSES = ('bee', 'cat', 'dog', 'elk', 'fox')
SIZES = ((30, 41), (64, 20), (9, 7))
KINDS = {
  'vit': (tiny.options(), (12, 8)),
  'registers': (
    tiny.options(register_tokens=3, layer_scale=0.3, pool='gap_patches', activation='gelu'),
    (12, 8),
  ),
  'dinov2 registers': (tiny.options(register_tokens=3, pool='token_gap'), (12, 8)),
  'clip': (tiny.options(pre_norm=True, activation='quick_gelu', cosine_head=True), (12, 8)),
  'siglip': (tiny.options(pool='map', class_token=False), (12, 8)),
  'dinov3': (tiny.options(position='rotary_dinov3', mlp='swiglu', register_tokens=2), (12, 8)),
  'beit': (tiny.options(position='relative', qk_norm=True, pool='gap'), (12, 8)),
  'rms norm': (tiny.options(norm='rms_norm'), (12, 8)),
  'axial': (tiny.options(axial=True, pool='gap', mlp='local'), (12, 8)),
  'parallel': (tiny.options(block='parallel', distillation_token=True), (12, 8)),
  'mixer': (tiny.mixer(layer_scale=0.2), (12, 8)),
  'hybrid': (tiny.options(stem_blocks=(1, 2), stem_width=32, patch=1), (64, 64)),
  'resnet': (tiny.resnet(), (64, 64)),
  'efficientnet': (tiny.efficientnet(), (64, 64)),
}
FAST = ('vit', 'mixer')


def photo(number: int, size=(30, 41)) -> np.ndarray:
  """uint8 (*size, 3): a few edges, and noise."""
  rng = np.random.default_rng(number)
  rows, columns = (np.arange(side) * 4 // side for side in size)
  coarse = rng.integers(0, 240, (4, 4, 3))[rows][:, columns]
  return (coarse + rng.integers(0, 16, (*size, 3))).astype(np.uint8)


def model(kind: str = 'vit', **options) -> LoadedModel:
  config, size = KINDS[kind]
  graphdef, params = tiny.build(config, image_size=size)
  preprocess = Preprocess(size, antialias=True, method='bicubic', **options)
  return LoadedModel(nnx.merge(graphdef, params), preprocess, CLASSES)


def write(loaded: LoadedModel, folder: pathlib.Path, **options) -> export.Exported:
  asked = {'format': 'onnx', 'input': 'images', 'precision': 'float32', 'outputs': ('probabilities',)}
  writing.write(loaded, folder, **{**asked, **options}, source='x')
  return export.read(folder)


def expected(loaded: LoadedModel, photos) -> np.ndarray:
  return np.asarray(loaded.probabilities(loaded(loaded.preprocess(photos))))


def operations(folder: pathlib.Path) -> collections.Counter:
  return collections.Counter(node.op_type for node in onnx.load(folder / 'model.onnx').graph.node)


@pytest.mark.parametrize(
  'kind', [name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in KINDS]
)
def test_onnxruntime_gives_the_probabilities_of_the_model_for_photos_of_any_size(kind, tmp_path):
  loaded, photos = model(kind), [photo(number, size) for number, size in enumerate(SIZES)]
  written = write(loaded, tmp_path)
  np.testing.assert_allclose(written(photos), expected(loaded, photos), atol=3e-6)
  assert {'Loop', 'Scan', 'If', 'Einsum'}.isdisjoint(operations(tmp_path))
  onnx.checker.check_model(onnx.load(tmp_path / 'model.onnx'), full_check=True)


@pytest.mark.parametrize(
  'options',
  [
    {'antialias': True, 'method': 'bilinear'},
    {'antialias': True, 'method': 'bicubic', 'shorter': 40},
    {'antialias': True, 'method': 'lanczos', 'shorter': 36, 'timm': 'center'},
    {'antialias': True, 'method': 'bicubic', 'shorter': 0, 'timm': 'center'},
    {
      'antialias': True,
      'method': 'bicubic',
      'timm': 'border',
      'mean': (0.5, 0.4, 0.3),
      'std': (0.2, 0.3, 0.3),
    },
    {'antialias': True, 'method': 'bilinear', 'shorter': 30},
    {'antialias': True, 'method': 'bilinear', 'shorter': 29},  # an odd row of a border
    {'antialias': True, 'method': 'nearest'},
    {'antialias': False, 'method': 'bilinear', 'shorter': 37},
    {'antialias': False, 'method': 'bilinear'},
  ],
  ids=lambda options: '-'.join(str(value) for value in options.values()),
)
def test_pixels_within_the_graph_are_those_of_preprocess(options, tmp_path):
  preprocess, graph = Preprocess((36, 32), **options), Graph()
  sides = jax_export.symbolic_shape('batch, height, width')
  prepared = onnx_images.add(graph, preprocess, *sides)
  graph.nodes.append(Node('Identity', [prepared.name], ['prepared'], {}))
  graph.outputs.append(Tensor('prepared', prepared.shape, prepared.dtype))
  graph.remove_unused()
  path = tmp_path / 'model.onnx'
  graph.save(path, {})
  session = onnxruntime.InferenceSession(path)
  tolerance = (
    1e-6 if preprocess.antialias else 2e-3
  )  # OpenCV's float32; half a thousandth is a tenth of a level
  for number, size in enumerate([(36, 32), (75, 100), (101, 67), (20, 31), (5, 3), (37, 150)]):
    photos = np.stack([photo(number, size), photo(number + 10, size)])
    found = session.run(None, {'images': photos})[0]
    np.testing.assert_allclose(found, preprocess(photos), atol=tolerance, err_msg=str(size))


def test_graph_has_the_operations_that_runtimes_have_kernels_for_and_each_weight_once(tmp_path):
  loaded = model()
  outputs = ('probabilities', 'logits', 'embeddings', 'features', 'attention')
  write(loaded, tmp_path, input='tensor', outputs=outputs)
  counts, tensors = operations(tmp_path), onnx.load(tmp_path / 'model.onnx').graph.initializer
  # Both blocks and the last norm, and once more what the class token's alone and all tokens have of the last block.
  assert counts['LayerNormalization'] == 7 and counts['Gelu'] == 3
  kernels = sum(np.prod(tensor.dims) for tensor in tensors if len(tensor.dims) == 2)
  assert kernels <= sum(map(np.size, _kernels(loaded)))


def _kernels(loaded: LoadedModel) -> list[jax.Array]:
  return [leaf for leaf in jax.tree.leaves(nnx.state(loaded.module)) if leaf.ndim > 1]


@pytest.mark.slow
@pytest.mark.parametrize(
  ('kind', 'half', 'apart'), [('onnx', 'float16', 5e-3), ('stablehlo', 'bfloat16', 2e-2)]
)
def test_16_bits_halve_the_weights_and_keep_the_probabilities(kind, half, apart, tmp_path):
  loaded, photos, sizes = model(), [photo(number) for number in range(4)], []
  for precision, tolerance in (('float32', 1e-6), (half, apart)):
    written = write(loaded, tmp_path, format=kind, input='tensor', precision=precision)
    np.testing.assert_allclose(written(photos), expected(loaded, photos), atol=tolerance)
    if kind == 'onnx':
      tensors = onnx.load(tmp_path / 'model.onnx').graph.initializer
      sizes.append(sum(len(tensor.raw_data) for tensor in tensors if len(tensor.dims) > 1))
    else:
      sizes.append((tmp_path / 'model.stablehlo.safetensors').stat().st_size)
      weights = load_file(tmp_path / 'model.stablehlo.safetensors')
      for name, leaf in pytrees.flatten(nnx.state(loaded.module)).items():
        if 'head/' in name or '_norm/' in name:  # which compute in float32
          np.testing.assert_array_equal(weights[name], leaf)
  assert sizes[1] <= 0.55 * sizes[0]


def test_int8_says_sizes_and_accuracies_of_images_that_did_not_calibrate_it(tmp_path, monkeypatch):
  monkeypatch.setattr(int8, '_CALIBRATED', 8)
  loaded, photos = _uneven(), [photo(number) for number in range(30)]
  probabilities = expected(loaded, photos)
  for number, row in enumerate(probabilities):
    folder = tmp_path / 'photos' / CLASSES[int(row.argmax())]
    folder.mkdir(parents=True, exist_ok=True)
    Image.fromarray(photos[number]).save(folder / f'{number}.png')
  (tmp_path / 'out').mkdir()
  write(loaded, tmp_path / 'out', input='tensor')
  said = int8.quantise(tmp_path / 'out', sorted(tmp_path.glob('photos/*/*')), 'photos')
  assert re.search(r'by 8 images .* accuracy of 22 other images 100.00% before, (100|9\d).\d\d% after', said)
  written = export.read(tmp_path / 'out')
  assert written.description.precision == 'int8'
  assert np.abs(written(photos) - probabilities).mean() <= 0.01
  options = onnxruntime.SessionOptions()
  options.optimized_model_filepath = str(tmp_path / 'optimised.onnx')
  onnxruntime.InferenceSession(tmp_path / 'out/model.onnx', options)
  run = collections.Counter(node.op_type for node in onnx.load(tmp_path / 'optimised.onnx').graph.node)
  # Of the two blocks' twelve products eight have kernels that bytes do not hold; each other multiplies bytes twice.
  assert run['MatMulIntegerToFloat'] == 2 * (12 - 8)


def saved(photos, folder: pathlib.Path) -> list[pathlib.Path]:
  files = [folder / f'{number}.png' for number in range(len(photos))]
  for file, pixels in zip(files, photos, strict=True):
    Image.fromarray(pixels).save(file)
  return files


def test_bytes_that_are_multiplied_have_seven_bits(tmp_path):
  """Since processors without VNNI add two products of eight in 16 bits, and saturate; so nothing is lost on any."""
  loaded, photos = model(), [photo(number) for number in range(8)]
  write(loaded, tmp_path, input='tensor')
  int8.quantise(tmp_path, saved(photos, tmp_path), 'photos')
  graph = onnx.load(tmp_path / 'model.onnx')
  bytes_ = [node.output[0] for node in graph.graph.node if node.op_type == 'QuantizeLinear']
  for name in bytes_:
    graph.graph.output.append(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.UINT8, None))
  onnx.save(graph, tmp_path / 'bytes.onnx')
  session = onnxruntime.InferenceSession(tmp_path / 'bytes.onnx')
  found = session.run(bytes_, {session.get_inputs()[0].name: loaded.preprocess(photos)})
  assert found
  assert max(array.max() for array in found) <= 127


@pytest.mark.slow
def test_constants_beyond_the_largest_file_lie_beside_it_and_int8_of_such_a_model_is_one_file(
  tmp_path, monkeypatch
):
  monkeypatch.setattr(onnx_graph, '_LARGEST_FILE', 1000)
  loaded, photos = model(), [photo(number) for number in range(8)]
  probabilities = write(loaded, tmp_path, input='tensor')(photos)
  assert (tmp_path / 'model.onnx.data').stat().st_size > 10 * 1024
  np.testing.assert_allclose(probabilities, expected(loaded, photos), atol=1e-6)
  int8.quantise(tmp_path, saved(photos, tmp_path), 'photos')
  assert [path.name for path in tmp_path.glob('model.onnx*')] == ['model.onnx']
  assert np.abs(export.read(tmp_path)(photos) - probabilities).mean() <= 0.01


@pytest.mark.slow
@pytest.mark.parametrize('kind', ['resnet', 'hybrid'])
def test_int8_of_convolutions_is_of_their_kernels_alone(kind, tmp_path):
  loaded, photos = model(kind), [photo(number) for number in range(8)]
  (tmp_path / 'out').mkdir()
  wanted = write(loaded, tmp_path / 'out', input='tensor')(photos)
  convolutions = operations(tmp_path / 'out')['Conv']
  int8.quantise(tmp_path / 'out', saved(photos, tmp_path), 'photos')
  assert np.abs(export.read(tmp_path / 'out')(photos) - wanted).mean() <= 0.02
  found = operations(tmp_path / 'out')
  # The first convolution stays; each other has a kernel of bytes, and each product such a kernel and such an input.
  assert found['DequantizeLinear'] - found['QuantizeLinear'] >= convolutions - 1


def _uneven() -> LoadedModel:
  """`model()`, but its norms give some channels a thousand times as large as others, and kernels undo that."""
  network = model().module
  factors = np.geomspace(1, 1000, 32)
  blocks = network.blocks
  for norm, kernels in (
    (blocks.attention_norm, [blocks.attention.query, blocks.attention.key, blocks.attention.value]),
    (blocks.mlp_norm, [blocks.mlp.dense_in]),
  ):
    norm.scale[...], norm.bias[...] = norm.scale * factors, norm.bias * factors
    for layer in kernels:
      layer.kernel[...] = layer.kernel / factors.reshape(32, *[1] * (layer.kernel.ndim - 2))
  return LoadedModel(network, model().preprocess, CLASSES)


@pytest.mark.slow
def test_stablehlo_is_called_by_plain_jax_as_the_docs_say(tmp_path):
  loaded, photos = model(), [photo(number) for number in range(3)]
  write(loaded, tmp_path, format='stablehlo', input='tensor')
  images = loaded.preprocess(photos)
  np.save(tmp_path / 'images.npy', images)
  blocks = re.findall(r'```python\n(.*?)```', DOCS.read_text(), re.DOTALL)
  (block,) = (text for text in blocks if 'deserialize' in text)
  code = f'{block}\nimport sys\nnp.save("found.npy", probabilities)\nassert "vit_jax" not in sys.modules'
  code += '\nassert model.platforms == ("cpu", "cuda", "tpu")'
  ended = subprocess.run([sys.executable, '-c', code], cwd=tmp_path, capture_output=True, text=True)
  assert not ended.returncode, ended.stderr
  np.testing.assert_allclose(np.load(tmp_path / 'found.npy'), expected(loaded, photos), atol=1e-6)


def test_primitive_without_a_translation_is_named(tmp_path, monkeypatch):
  monkeypatch.delitem(onnx_primitives.RULES, 'concatenate')
  with pytest.raises(UserError, match="computes 'concatenate', which has no translation to ONNX yet"):
    write(model(), tmp_path)


@pytest.mark.slow
def test_float32_of_a_model_that_computes_in_bfloat16_is_compared_in_float32(tmp_path):
  own = model()
  module = inference.rebuilt(own, dataclasses.replace(own.config, dtype='bfloat16'))
  loaded = LoadedModel(module, own.preprocess, CLASSES)
  write(loaded, tmp_path)
  assert re.search(r'probabilities by \d\.\de-0[6-9]', check.compared(loaded, tmp_path))


def test_export_replaces_an_earlier_one_whole_and_other_files_stay(tmp_path):
  loaded = model()
  (tmp_path / 'notes.txt').write_text('mine')
  write(loaded, tmp_path)
  write(loaded, tmp_path, input='tensor', outputs=('embeddings',))
  assert {path.name for path in tmp_path.iterdir()} == {'notes.txt', 'model.json', 'model.onnx'}


def test_graph_that_computes_otherwise_is_refused(tmp_path, monkeypatch):
  loaded = model()
  write(loaded, tmp_path)
  said = check.compared(loaded, tmp_path)
  assert re.fullmatch(r'Compared with .* 3 images: probabilities by \d\.\de-0\d at most\.', said)
  monkeypatch.setitem(
    onnx_functions._FUNCTIONS,
    ('activations', 'gelu_tanh'),
    lambda graph, equation, inputs: [graph.tensor('Relu', inputs, inputs[0])],
  )
  write(loaded, tmp_path)
  with pytest.raises(UserError, match='gives other probabilities than the model'):
    check.compared(loaded, tmp_path)
  with pytest.raises(UserError, match=r'has no model\.json'):
    export.read(tmp_path)


@pytest.mark.slow
def test_command_writes_a_model_that_says_what_it_is(golden, tmp_path):
  ended = fork_server.run(
    'vit_jax.export', str(path(golden, 'a_vit_token')), 'out', '--format=onnx', '--license=mit', cwd=tmp_path
  )
  assert ended.returncode == 0, ended.stderr
  assert 'Compared with the model on 3 images' in ended.stdout
  told = json.loads((tmp_path / 'out/model.json').read_text())
  metadata = {entry.key: entry.value for entry in onnx.load(tmp_path / 'out/model.onnx').metadata_props}
  assert metadata['license'] == told['license'] == 'mit' and metadata['source'] == told['source']
  assert json.loads(metadata['preprocess']) == told['preprocess']
  assert 'onnxruntime-web' in (tmp_path / 'out/index.html').read_text()


@pytest.mark.parametrize(
  ('line', 'said'),
  [
    ('x out --format=stablehlo --input=images', 'StableHLO takes what model.preprocess gives'),
    ('x out --format=onnx --int8=photos --dtype=float16', '--int8 makes 8 bits of float32'),
    ('x out --format=onnx --dtype=bfloat16', 'say --dtype=float16'),
    ('x gs://out --format=onnx', 'is an address, which this command does not write to'),
    ('x --format=onnx', 'two names and not 1'),
  ],
)
def test_flags_that_do_not_go_together_are_said_in_one_sentence(line, said, tmp_path):
  commands.assert_said(fork_server.run('vit_jax.export', *line.split(), cwd=tmp_path), said)
