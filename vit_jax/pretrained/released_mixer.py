"""The MLP-Mixer in the released .npz files, which call its tensors the same in both namings."""

from vit_jax.models.base import Architecture
from vit_jax.models.mixer import MixerConfig
from vit_jax.pretrained.released_names import Naming, ReleasedNames, Tensors, renamed

_BLOCK = 'MixerBlock_'
_AROUND = {'patch_embedding': 'stem', 'norm': 'pre_head_layer_norm', 'head': 'head'}
_IN_BLOCK = {
  'token_norm': 'LayerNorm_0',
  'token_mlp/dense_in': 'token_mixing/Dense_0',
  'token_mlp/dense_out': 'token_mixing/Dense_1',
  'channel_norm': 'LayerNorm_1',
  'channel_mlp/dense_in': 'channel_mixing/Dense_0',
  'channel_mlp/dense_out': 'channel_mixing/Dense_1',
}


class MixerNames(ReleasedNames[MixerConfig]):
  """Of `MixerConfig`."""

  marks = (_BLOCK, 'stem/')

  def architecture(self, tensors: Tensors, image_size: tuple[int, int] | None) -> Architecture:
    patch, channels, width = tensors.patches('stem/kernel')
    tokens, tokens_mlp_dim = tensors.shape(f'{_BLOCK}0/token_mixing/Dense_0/kernel', 2)
    _, mlp_dim = tensors.shape(f'{_BLOCK}0/channel_mixing/Dense_0/kernel', 2)
    model = MixerConfig(
      variant='custom',
      patch=patch,
      width=width,
      mlp_dim=mlp_dim,
      depth=tensors.depth(_BLOCK),
      tokens_mlp_dim=tokens_mlp_dim,
    )
    return Architecture(model, tensors.square(tokens, patch, image_size), channels, tensors.classes())

  def name(self, path: str, naming: Naming) -> str | None:
    if path.startswith('blocks/'):
      return renamed(path.removeprefix('blocks/'), _IN_BLOCK, f'{_BLOCK}{{}}/')
    return renamed(path, _AROUND)
