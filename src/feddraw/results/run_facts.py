"""What is written down about a run before its first round: who was dealt what, the network, and the
method's kind.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from feddraw.core import Layout, Method
from feddraw.core.capabilities import why_not_averaged
from feddraw.core.classifier_layer import classifier_in_words
from feddraw.data.dataset import FINDINGS_TASK, Dataset
from feddraw.data.finding_counts import findings_per_split
from feddraw.data.image_summary import ImageSummary
from feddraw.data.scenarios.partition import Partition


@dataclass(frozen=True, eq=False)
class RunFacts:
    """What is written down about a run before its first round, beside its settings."""

    partition: Partition
    parameters: int  # in all updates together, by which they are summed
    layout: Layout
    method: Method
    dataset: Dataset | None = None
    devices: Mapping[str, Any] = field(default_factory=dict)
    images: ImageSummary | None = None  # that were trained on, where they are at hand

    def partition_record(self) -> dict[str, Any]:
        """Who was dealt what: a hash, and, where the data is at hand, how many images of each
        finding every client has.
        """
        partition = self.partition
        dataset = self.dataset
        record: dict[str, Any] = {"scenario": partition.scenario, "sha256": partition.sha256}
        if dataset is None:
            return record
        labels = dataset.training_labels()
        rows = {shard.client: shard.rows for shard in partition.shards}
        if labels.task != FINDINGS_TASK:
            record["task"] = labels.task
        record["findings"] = list(dataset.findings)
        record["normalization"] = [dataset.mean, dataset.std]
        record["sizes"] = {shard.client: len(shard) for shard in partition.shards}
        record["positives"] = {
            client: labels.values[images].sum(axis=0).tolist() for client, images in rows.items()
        }
        record["splits"] = findings_per_split(dataset)
        if labels.known is not None:
            record["known"] = {
                client: labels.known_counts(images).tolist() for client, images in rows.items()
            }
        return record

    def network_record(self) -> dict[str, Any]:
        """What of the network follows from no setting: above all which layer was taken as the
        classifier.
        """
        layout = self.layout
        record: dict[str, Any] = {
            "classifier": classifier_in_words(layout.classifier, layout.outputs),
            "parameters": layout.length("param"),
        }
        frozen = sum(array.size for array in layout.frozen.values())
        if frozen:
            record["frozen"] = frozen
        return record

    def method_record(self) -> dict[str, Any]:
        """What of the method follows from its rules and not from its name."""
        why = why_not_averaged(self.method)
        return {"not_averaged": why} if why else {}
