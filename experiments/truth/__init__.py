"""An engine that somebody else runs, as the truth: its results and logs read, and the simulator held against them."""
