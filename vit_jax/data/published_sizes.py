"""How many images published data sets have, so that a run can be planned where its data is not."""

from collections.abc import Mapping

# (config.data.source, config.data.split) -> images.
PUBLISHED_SIZES: Mapping[tuple[str, str], int] = {
  ('tfds:imagenet2012', 'train'): 1_281_167,
  ('tfds:imagenet21k', 'full[102400:]'): 14_197_122 - 102_400,
  ('tfds:jft_300m', 'train'): 303_000_000,
}
