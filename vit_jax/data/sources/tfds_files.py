"""The names of the files beside the shards of a TFDS data set, and of the weights and captions in its records.

TFDS itself names the first three. `vit_jax.prepare` writes all of them, and the source 'tfds' reads them.
"""

INFO = 'dataset_info.json'  # written last: without it the folder is no data set
FEATURES = 'features.json'
METADATA = 'metadata.json'  # how the data set was prepared

CHECKSUMS = 'SHA256SUMS'
BAD_IMAGES = 'bad_images.csv'  # which images were left out, and why
DUPLICATES = 'duplicates.csv'  # which images are equal

WEIGHTS = 'weights'  # the feature that has a weight for each of an image's classes
CAPTIONS = 'captions'  # the feature that has the texts of an image
