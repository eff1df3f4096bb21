"""Diagnosis: where a policy fails, whether one early mistake decides, whether it recovers."""
