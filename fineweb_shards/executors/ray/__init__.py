"""Ray tasks; start reading in executor.py. Ray is an extra, imported only by `load_ray` in cluster.py."""
