"""Where samples come from: from paths, globs, folders and URLs to shards that can be opened within a budget."""
