"""A run's model for use elsewhere: ONNX, MONAI bundle, safetensors, and the model card."""

from feddraw.export.run_export import Export, ExportCheck, export_run

__all__ = ["Export", "ExportCheck", "export_run"]
