"""Methods: one file each; rows and signals in, per-token advantages out."""
