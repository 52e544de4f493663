"""Everything that knows transformers: where models come from, whether two fit together, how one runs."""
