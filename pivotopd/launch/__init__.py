"""Launchers: where a stage or a whole training runs. ``base`` says what all of them share."""
