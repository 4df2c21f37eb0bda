"""Do the work of the subcommands: settings become a job; plan, build and export."""
