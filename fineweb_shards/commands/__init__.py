"""The command line: one file per subcommand, with its flags (`add_flags`), its work (`run`) and its output.

May import all other packages; none of them may import it.
"""
