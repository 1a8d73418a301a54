"""Speed and memory beside a bare training loop and the peers that are installed: `feddraw bench`.

Every figure is a ratio of times from alternating blocks of one run, so that whatever else the
machine does hits both sides; evaluation and checkpoints are apart. The peers' own scripts are in
`benchmarks/peers` of a source checkout.
"""
