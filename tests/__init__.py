"""Tests mirror the package: one folder per room."""
