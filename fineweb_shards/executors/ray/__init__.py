"""Run the tasks of a build on a Ray cluster: one on this machine, or one that is there already.

executor.py is where to start; worker.py is what runs on the nodes. Ray is an extra: it is imported when it is needed
(`load_ray` in cluster.py), and then by no other name.
"""
