"""A MONAI bundle as a client's script under NVIDIA FLARE: receive, train, send."""

import sys

import nvflare.client as flare

sys.path.insert(0, sys.argv[1])  # where a site has algo.py and its bundle
from algo import open_algo, train

flare.init()
algo = open_algo(int(flare.get_site_name().rpartition("-")[2]) - 1)
while flare.is_running():
    received = flare.receive()
    weights, images, steps = train(algo, received.params)
    meta = {"num_examples": images, "NUM_STEPS_CURRENT_ROUND": steps}
    flare.send(flare.FLModel(params=weights, meta=meta))
