"""Looking after stored runs: list, verify, copy, prune. Manifests say what there is."""
