"""Do the work of the subcommands: settings become a job; plan, build, export and upload.

May import: everything but `commands`.
"""
