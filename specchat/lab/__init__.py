"""Measuring and explaining: what speculation gains here, why not, and what to set."""
