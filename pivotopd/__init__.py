"""PivotOPD: train multi-turn LLM agents to avoid pivotal mistakes, and to recover from them.

The package holds the method and knows no workflow engine. Importing it is cheap: torch, transformers,
DeepSpeed, MLflow and pyarrow are imported by the modules that need them.

Axis letters in tensor code: B rows, L tokens of a row, R response tokens, V vocabulary, H hidden size.
"""

__version__ = "0.1.0"
