"""A site's script, as FLARE runs it: receive, train, send. It knows nothing of feddraw."""

from task import Net, load, train

import nvflare.client as flare

flare.init()
features, labels = load(int(flare.get_site_name().rpartition("-")[2]) - 1)
while flare.is_running():
    received = flare.receive()
    model = Net()
    model.load_state_dict(received.params)
    steps = train(model, features, labels, lr=0.1)
    meta = {"NUM_STEPS_CURRENT_ROUND": steps, "num_examples": len(labels)}
    flare.send(flare.FLModel(params=model.state_dict(), metrics={"loss": 0.0}, meta=meta))
