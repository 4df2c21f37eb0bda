"""The command line: for each subcommand its flags (`add_build_flags`), its work (`run_build`) and its output."""
