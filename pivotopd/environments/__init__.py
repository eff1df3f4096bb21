"""Environments: one folder each, behind the protocol of :mod:`pivotopd.environments.base`."""
