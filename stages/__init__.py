"""Stages: typed batch jobs. Each reads artifacts, calls the core and publishes one artifact."""
