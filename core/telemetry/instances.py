"""Metrics of instances: how long each tier takes to serve, and how often an instance was there already."""

from prometheus_client import Counter, Gauge, Histogram

_BUCKETS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 45, 90, 180, 300, 600)

wake_seconds = Histogram(
    "gatehouse_instance_wake_seconds",
    "From the word to start or wake to the first token, by where the weights were: cold, staged, asleep.",
    ["tier"],
    buckets=_BUCKETS,
)
acquisitions = Counter(
    "gatehouse_instance_acquisitions", "Instances acquired for tenants: reused, or started anew.", ["how"]
)
reuse_ratio = Gauge(
    "gatehouse_instance_reuse_ratio",
    "Share of all acquisitions that found an instance there.",
    multiprocess_mode="livemostrecent",
)
