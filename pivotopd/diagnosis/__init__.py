"""Diagnosis: where episodes are lost, and how sure a figure about it is."""
