"""What is measured from a checkout and is no part of the installed package.

Run everything from the top folder of the checkout, in an environment in which feddraw is installed.

`python -m benchmarks` (or `make bench`) measures speed and memory: `speed/` has a file for each
question, `peers/` a script for each other system. The tables of docs/scale.md come from it.

The other files are scripts with one question each; their docstrings have the command line.

- `atlas`, `atlas_runs`, `atlas_later_stages`: docs/atlas.md, when it pays to weigh, from the tables
  in docs/data
- `pretrained`: the network that the last stage of the atlas starts from
- `clients`: ten thousand simulated clients (docs/howto.md)
- `flower`: the server's work on real Flower messages (docs/federation.md)
- `hostile`, `soak`: one hostile client, thousands of rounds (docs/safety.md)
- `partial_labels`: findings that some sites do not label (docs/labels.md)
- `phantom_auc`: whether phantoms are neither trivial nor hopeless (docs/phantoms.md)
- `privacy`: what secure rounds change and hide (docs/privacy.md)
- `shared_updates`: what a cache of updates would save (docs/scale.md)
- `transport`: a round's messages over a SuperLink (docs/federation.md)
- `similarity`: what FedDRAW's similarity follows (docs/findings.md, docs/replication.md)
"""
