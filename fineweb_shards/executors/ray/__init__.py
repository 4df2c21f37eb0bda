"""Run the tasks of a build on a Ray cluster: an existing one, or one started on this machine.

Start reading in executor.py; worker.py runs on the nodes. Ray is an extra, imported only by `load_ray` in cluster.py.
"""
