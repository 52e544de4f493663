"""SpecChat: chat with a local model through speculative decoding, tune it live, see what it gains."""
