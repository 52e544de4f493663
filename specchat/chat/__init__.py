"""Conversation ↔ ids ↔ text. Knows messages, token ids and text; no tensors, no models, no page."""
