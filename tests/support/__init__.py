"""What tests share (CONTRIBUTING.md, "Tests")."""
