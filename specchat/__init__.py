"""SpecChat: chat with a local model through speculative decoding, tune it live, see what it gains."""

import os

# How long a thread of torch's looks for the others before it sleeps, in turns of a loop (GNU's OpenMP reads it when
# torch is loaded). Unlimited, as it is by default, two threads on two cores take fifty times as long as one while
# another process is at work; much less than this, and they sleep between any two products.
os.environ.setdefault("GOMP_SPINCOUNT", "5000")
