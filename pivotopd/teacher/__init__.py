"""Teachers: they read finished episodes and name gold actions."""
