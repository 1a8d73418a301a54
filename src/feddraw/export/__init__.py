"""A run's model for use elsewhere: ONNX, MONAI bundle, safetensors, and the model card."""

from feddraw.export.run_export import Check, Export, export_run

__all__ = ["Check", "Export", "export_run"]
