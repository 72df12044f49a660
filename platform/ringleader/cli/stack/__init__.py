"""Everything embedded on this machine: Ray, MLflow and the API as child processes of one `ringleader up`."""
