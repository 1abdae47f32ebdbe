"""The named sizes of the Vision Transformer and its hybrids."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Sizes:
  """What decides the shapes of the blocks of a Vision Transformer or a hybrid."""

  patch: int  # pixels along a side of a patch; in a hybrid, cells of the ResNet's output
  width: int  # D, the size of a token
  mlp_dim: int  # hidden units of a block's MLP
  depth: int  # L, encoder blocks
  heads: int
  stem_blocks: tuple[int, ...] | None = None  # bottlenecks in each stage of a hybrid's ResNet
  stem_width: int = 64  # channels of its root
  stem_convolutions: tuple[tuple[int, int], ...] = ()  # channels and stride of each convolution in front


# Table 1 of the paper (B, L, H), 'Training data-efficient image transformers' (Ti, S) and 'Scaling Vision
# Transformers' (g, G). Hybrids: the paper, and 'How to train your ViT?' (arXiv 2106.10270), whose authors
# call R+Ti/16 so although its tokens are of 32 pixels.
VARIANTS = {
  'Ti/16': Sizes(patch=16, width=192, mlp_dim=768, depth=12, heads=3),
  'S/16': Sizes(patch=16, width=384, mlp_dim=1536, depth=12, heads=6),
  'S/32': Sizes(patch=32, width=384, mlp_dim=1536, depth=12, heads=6),
  'B/8': Sizes(patch=8, width=768, mlp_dim=3072, depth=12, heads=12),
  'B/16': Sizes(patch=16, width=768, mlp_dim=3072, depth=12, heads=12),
  'B/32': Sizes(patch=32, width=768, mlp_dim=3072, depth=12, heads=12),
  'L/16': Sizes(patch=16, width=1024, mlp_dim=4096, depth=24, heads=16),
  'L/32': Sizes(patch=32, width=1024, mlp_dim=4096, depth=24, heads=16),
  'H/14': Sizes(patch=14, width=1280, mlp_dim=5120, depth=32, heads=16),
  'g/14': Sizes(patch=14, width=1408, mlp_dim=6144, depth=40, heads=16),
  'G/14': Sizes(patch=14, width=1664, mlp_dim=8192, depth=48, heads=16),
  'R+Ti/16': Sizes(patch=8, width=192, mlp_dim=768, depth=12, heads=3, stem_blocks=()),
  'R26+S/32': Sizes(patch=1, width=384, mlp_dim=1536, depth=12, heads=6, stem_blocks=(2, 2, 2, 2)),
  'R26+B/32': Sizes(patch=1, width=768, mlp_dim=3072, depth=12, heads=12, stem_blocks=(2, 2, 2, 2)),
  'R50+B/16': Sizes(patch=1, width=768, mlp_dim=3072, depth=12, heads=12, stem_blocks=(3, 4, 9)),
  'R50+L/32': Sizes(patch=1, width=1024, mlp_dim=4096, depth=24, heads=16, stem_blocks=(3, 4, 6, 3)),
}
