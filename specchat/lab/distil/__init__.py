"""Makes a small draft for a target without any data set: the target writes the text, the draft learns to guess it."""
