"""Tests: the folders are those of the package (CONTRIBUTING.md, "Tests")."""
