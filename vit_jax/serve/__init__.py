"""A model as an HTTP service: predictions, embeddings and attention of photos, and a page to try them."""
