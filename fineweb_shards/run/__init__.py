"""Do the work of the subcommands: turn settings into a job, plan and build it; export and upload finished shards.

May import: everything but `commands`.
"""
