"""The paper's tables and statements, recomputed."""
