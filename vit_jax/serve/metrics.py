"""What the service counts, in Prometheus' format."""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)


class Metrics:
  """Counters of one service."""

  def __init__(self, waiting: Callable[[], int], batch_sizes: list[int]):
    """`waiting` says how many photos have not been answered."""
    self._registry = registry = CollectorRegistry()
    ProcessCollector(registry=registry)  # memory, processor time, open files
    self._requests = Counter('vit_jax_requests', 'Requests answered.', ['path', 'status'], registry=registry)
    self._seconds = Histogram(
      'vit_jax_request_seconds', 'From head to answer.', ['path'], buckets=_SECONDS, registry=registry
    )
    self._images = Histogram(
      'vit_jax_batch_images', 'Images in a batch.', buckets=batch_sizes, registry=registry
    )
    self._padding = Counter('vit_jax_padding_images', 'Rows of zeros in batches.', registry=registry)
    Gauge('vit_jax_waiting_images', 'Images not answered yet.', registry=registry).set_function(waiting)

  def answered(self, path: str, status: int, seconds: float) -> None:
    """Counts a request."""
    self._requests.labels(path, str(status)).inc()
    self._seconds.labels(path).observe(seconds)

  def ran(self, images: int, size: int) -> None:
    """Counts a batch."""
    self._images.observe(images)
    self._padding.inc(size - images)

  def text(self) -> bytes:
    """All of them, as Prometheus reads them."""
    return generate_latest(self._registry)
