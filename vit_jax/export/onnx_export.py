"""A loaded model as an ONNX graph: traced in its form for inference, translated, simplified."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import export as jax_export

from vit_jax.export import inference, onnx_images, onnx_simplify
from vit_jax.export.description import Input, Precision
from vit_jax.export.onnx_graph import Graph, Node, Tensor
from vit_jax.export.onnx_translation import Translator
from vit_jax.loaded_model import LoadedModel


def graph_of(model: LoadedModel, outputs: Sequence[str], kind: Input, precision: Precision) -> Graph:
  """The graph of a model, from 'images' to `outputs`.

  Raises:
    UserError: a part of the model, or its preprocessing, cannot be expressed.
  """
  module = inference.for_inference(model, precision)
  batch, height, width = jax_export.symbolic_shape('batch, height, width')
  graph = Graph()
  shape = (batch, *model.preprocess.size, model.preprocess.channels)
  if kind == 'images':
    prepared = onnx_images.add(graph, model.preprocess, batch, height, width)
  else:
    prepared = Tensor('images', shape, np.dtype(np.float32))
    graph.inputs.append(prepared)
  graphdef, state = nnx.split(module)
  leaves, structure = jax.tree.flatten(state)
  of = inference.function(model, outputs)

  def traced(leaves: list[jax.Array], images: jax.Array) -> list[jax.Array]:
    results = of(nnx.merge(graphdef, jax.tree.unflatten(structure, leaves)), images)
    return [results[name] for name in outputs]

  closed = jax.make_jaxpr(traced)(leaves, jax.ShapeDtypeStruct(shape, jnp.float32))
  (graph.batch,) = graph.add('Shape', [prepared], start=0, end=1)
  values = Translator(graph).run(closed.jaxpr, closed.consts, [*map(np.asarray, leaves), prepared])
  for name, value, variable in zip(outputs, values, closed.jaxpr.outvars, strict=True):
    full = graph.full(value, variable.aval.shape)
    graph.nodes.append(Node('Identity', [graph.name_of(full)], [name], {}))
    graph.outputs.append(Tensor(name, variable.aval.shape, np.dtype(np.float32)))
  onnx_simplify.simplify(graph)
  return graph
