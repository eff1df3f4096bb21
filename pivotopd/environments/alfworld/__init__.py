"""ALFWorld: household text games on a native engine, with an exact oracle and a generator of new games."""
