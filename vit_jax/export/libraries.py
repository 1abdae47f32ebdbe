"""The libraries that exporting needs, the extra 'export'."""

from vit_jax.foundation.errors import UserError


def check(kind: str) -> None:
  """UserError where the libraries of a format, 'onnx' or 'stablehlo', are missing."""
  try:
    if kind == 'onnx':
      import onnx  # noqa: F401
      import onnxruntime  # noqa: F401
    else:
      import flatbuffers  # noqa: F401
  except ImportError as error:
    raise UserError(f"The format {kind} needs {error.name}; pip install 'vit_jax[export]'.") from error
