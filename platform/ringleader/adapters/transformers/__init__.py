"""The `Trainer` of transformers on a session."""

from ringleader.adapters.transformers.trainer import ElasticTrainer

__all__ = ["ElasticTrainer"]
