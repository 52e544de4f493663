"""SpecChat: chat with a local model through speculative decoding, tune it live, see what it gains."""

import os

# How long a thread of torch's looks for the others before it sleeps, in turns of a loop (GNU's OpenMP reads it when
# torch is loaded; 300,000 by default). With the default, two threads on two cores took fifty times as long as one
# while another process was at work; with much less than this, they sleep between any two products.
SPINS = "5000"
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", SPINS)
