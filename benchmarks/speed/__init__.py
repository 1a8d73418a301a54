"""Speed and memory beside a bare training loop and the peers that are installed.

`python -m benchmarks` runs these parts. Every figure is a ratio of times from alternating blocks of
one run, so that whatever else the machine does hits both sides; evaluation and checkpoints are
not included. `document` puts the parts together, `printed_table` shows them.
"""
